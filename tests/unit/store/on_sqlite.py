"""Fixtures for tests that need a store and do not care on which engine: a SQLite file costs the least."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.store.conversations import SqlConversations
from treadle.store.db import Database
from treadle.store.responses import SqlResponses
from treadle.store.sqlite import Sqlite


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest revision. Copy it, never open it."""
    path = tmp_path_factory.mktemp("migrated") / "empty.db"

    async def create() -> None:
        database = Sqlite(path)
        await database.start()
        await database.close()

    asyncio.run(create())
    return path


@pytest.fixture
def path(migrated: Path, tmp_path: Path) -> Path:
    """A SQLite file."""
    return Path(shutil.copy(migrated, tmp_path / "treadle.db"))


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Sqlite]:
    database = Sqlite(path)
    await database.start()
    yield database
    await database.close()


@pytest.fixture
def responses(database: Database) -> SqlResponses:
    return SqlResponses(database, clock=lambda: 1_800_000_000)


@pytest.fixture
def conversations(database: Database) -> SqlConversations:
    return SqlConversations(database)
