"""A real database file for every test, copied from one that was migrated once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.store.conversations import SqlConversations
from treadle.store.responses import SqlResponses, fail_interrupted
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
    return Path(shutil.copy(migrated, tmp_path / "treadle.db"))


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Sqlite]:
    database = Sqlite(path, recover=fail_interrupted)
    await database.start()
    yield database
    await database.close()


@pytest.fixture
def responses(database: Sqlite) -> SqlResponses:
    return SqlResponses(database, clock=lambda: 1_800_000_000)


@pytest.fixture
def conversations(database: Sqlite) -> SqlConversations:
    return SqlConversations(database)
