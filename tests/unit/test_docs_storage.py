"""The example of docs/storage.md works as it is written, but for the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_kit import Cluster
from treadle.settings import load
from treadle.store.connect import connect, look

PAGE = Path(__file__).parents[2] / "docs" / "storage.md"


@pytest.fixture
def socket(cluster: Cluster) -> Iterator[str]:
    """Where the Postgres is that has what the page speaks of: a role and a database of its own."""
    cluster.run("CREATE ROLE treadle LOGIN PASSWORD 'hu/sh'")
    cluster.run("CREATE DATABASE treadle OWNER treadle")
    yield cluster.url().partition("?")[2]
    cluster.drop("treadle")
    cluster.run("DROP ROLE treadle")


async def test_the_example_starts(tmp_path: Path, socket: str) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "treadle.yaml"
    file.write_text(example, encoding="utf-8")
    settings = load(file, environ={"DATABASE_PASSWORD": "hu%2Fsh", "TREADLE_KEY": "k"}).require()
    assert settings.secret_key == "k"
    here = f"{settings.store.url.replace('@db.internal/', '@/')}?{socket}"
    database = connect(here, connections=settings.store.connections)
    await database.start()
    await database.close()
    assert "can be used" in await look(here)


def test_without_a_key_the_example_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "treadle.yaml"
    file.write_text("store: {url: postgresql://treadle@db.internal/treadle}\n", encoding="utf-8")
    (fault,) = load(file, environ={}).faults
    assert fault.path == "secret_key"
    assert "same for all processes" in fault.message
