"""Our own indexes pass the suite that every index has to pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.retrieval.in_memory import InMemoryIndex
from treadle.retrieval.sqlite_numpy import SqliteIndex
from treadle.testing.conformance_index import IndexSuite, PersistentIndexSuite


class TestInMemory(IndexSuite):
    exact_weights = True

    @pytest.fixture
    def index(self) -> InMemoryIndex:
        return InMemoryIndex()


class TestSqlite(PersistentIndexSuite):
    exact_weights = True

    @pytest.fixture
    async def index(self, tmp_path: Path) -> AsyncIterator[SqliteIndex]:
        index = SqliteIndex(tmp_path / "index.sqlite3")
        await index.start()
        yield index
        await index.close()

    @pytest.fixture
    async def again(self, index: SqliteIndex, tmp_path: Path) -> AsyncIterator[SqliteIndex]:
        again = SqliteIndex(tmp_path / "index.sqlite3")
        await again.start()
        yield again
        await again.close()


class TestSqliteWithoutRoomForVectors(TestSqlite):
    """Each search reads the vectors from the file."""

    @pytest.fixture
    async def index(self, tmp_path: Path) -> AsyncIterator[SqliteIndex]:
        index = SqliteIndex(tmp_path / "index.sqlite3", cache_bytes=1)
        await index.start()
        yield index
        await index.close()
