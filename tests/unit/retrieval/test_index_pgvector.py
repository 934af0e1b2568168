"""The index in Postgres passes the suite, on a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from treadle.errors import StorageFault
from treadle.testing.conformance_index import (
    PersistentIndexSuite,
    collection,
    matching,
    names,
    nearest,
    piece,
    published,
)

pytest.importorskip("psycopg_pool", reason="the extra `postgres` is not installed")

from treadle.retrieval import bm25
from treadle.retrieval.in_memory import InMemoryIndex
from treadle.retrieval.pgvector import PgVectorIndex


@pytest.fixture
async def pgvector(postgres: str) -> AsyncIterator[PgVectorIndex]:
    index = PgVectorIndex(postgres)
    await index.start()
    yield index
    await index.close()


class TestPgVector(PersistentIndexSuite):
    exact_weights = True

    @pytest.fixture
    def index(self, pgvector: PgVectorIndex) -> PgVectorIndex:
        return pgvector

    @pytest.fixture
    async def again(self, index: PgVectorIndex, postgres: str) -> AsyncIterator[PgVectorIndex]:
        again = PgVectorIndex(postgres)
        await again.start()
        yield again
        await again.close()


async def test_a_word_counts_as_often_as_it_occurs_up_to_255_times(pgvector: PgVectorIndex) -> None:
    where, reference = collection(), InMemoryIndex()
    chunks = [piece(count, "word " * count + "other") for count in (1, 2, 3, 10, 100, 254, 255)]
    await published(pgvector, where, "a", *chunks)
    await published(reference, where, "a", *chunks)
    got = await pgvector.matching(where, "word", files=None, limit=10)
    expected = await reference.matching(where, "word", files=None, limit=10)
    assert names(got) == names(expected)
    assert [hit.score for hit in got] == pytest.approx([hit.score for hit in expected], abs=1e-5)


async def test_common_words_are_left_out_of_large_collections(
    pgvector: PgVectorIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "MANY_CHUNKS", 50)
    where = collection()
    await published(pgvector, where, "a", *(piece(n, f"the {n} tea{n % 9}") for n in range(100)))
    assert await matching(pgvector, where, "the 42") == [("a", 42)]
    assert len(await matching(pgvector, where, "the tea3", limit=100)) >= 11


async def test_a_database_that_is_away_is_a_fault_of_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.retrieval.pgvector.CONNECT_SECONDS", 0.5)
    index = PgVectorIndex("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StorageFault):
        await index.start()
    with pytest.raises(StorageFault):
        await nearest(index, collection())
