"""Real databases for every test, on both engines: a SQLite file copied from one that was migrated once, and an emptied
Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.unit.store.on_sqlite import conversations, migrated, path, responses
from treadle.store.connect import connect
from treadle.store.db import Database

__all__ = ["conversations", "migrated", "path", "responses"]

Another = Callable[[], Awaitable[Database]]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """What `store.url` would say: a test that asks for it, or for the database there, runs on both engines."""
    return str(request.getfixturevalue("path" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = connect(url, connections=3)  # each takes its time
    await database.start()
    yield database
    await database.close()


@pytest.fixture
async def another(url: str) -> AsyncIterator[Another]:
    """Opens what `database` has open once more, as another process would."""
    opened: list[Database] = []

    async def open_it() -> Database:
        opened.append(connect(url, connections=3))
        await opened[-1].start()
        return opened[-1]

    yield open_it
    await asyncio.gather(*(database.close() for database in opened))
