"""A real Postgres with pgvector for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.postgres_kit import Cluster


@pytest.fixture(scope="session")
def postgres(cluster: Cluster) -> str:
    """Its address. Skips the test where the package that brings it is not installed."""
    return cluster.url()
