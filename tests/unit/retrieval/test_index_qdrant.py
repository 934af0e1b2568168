"""The index in Qdrant passes the suite, on the client's in-process engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.errors import StorageFault
from treadle.testing.conformance_index import IndexSuite, collection, nearest, piece, published

pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")

from treadle.retrieval.qdrant import QdrantIndex


class TestQdrant(IndexSuite):
    @pytest.fixture
    async def index(self) -> AsyncIterator[QdrantIndex]:
        index = QdrantIndex(":memory:")
        await index.start()
        yield index
        await index.close()


async def test_what_is_published_is_there_after_a_restart(tmp_path: Path) -> None:
    where = collection()
    index = QdrantIndex(str(tmp_path))
    await index.start()
    await published(index, where, "a", piece(0), piece(1))
    await index.add(where, "b", [piece(0)])
    await index.close()
    index = QdrantIndex(str(tmp_path))
    await index.start()
    assert await nearest(index, where) == [("a", 0), ("a", 1)]
    await index.publish(where, "b")
    assert len(await nearest(index, where)) == 3
    await index.close()


async def test_a_tie_longer_than_the_limit_is_followed_to_its_end() -> None:
    index, where = QdrantIndex(":memory:"), collection()
    await index.start()
    for file in ("b", "a"):
        await published(index, where, file, *(piece(number) for number in range(60, -1, -1)))
    assert await nearest(index, where, limit=3) == [("a", 0), ("a", 1), ("a", 2)]
    await index.close()


async def test_a_server_that_is_away_is_a_fault_of_storage() -> None:
    index = QdrantIndex("http://127.0.0.1:1")
    with pytest.raises(StorageFault):
        await index.start()
    await index.close()
    with pytest.raises(StorageFault):
        await nearest(index, collection())
