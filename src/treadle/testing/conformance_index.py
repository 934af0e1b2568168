"""The conformance suite of vector indexes, a pytest class to inherit from. It needs hypothesis besides pytest.

    from treadle.testing.conformance_index import IndexSuite

    class TestAcme(IndexSuite):
        @pytest.fixture
        async def index(self):
            async with AcmeIndex(url=...) as index:
                yield index

What it demands of `matching` is what engines of any kind can promise: which chunks are found, that weights are above 0
and fall, that a chunk with more of a query's words comes before one with fewer of them. With `exact_weights` an index
also promises the reference's BM25.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.errors import InvalidRequest
from treadle.ids import new_id
from treadle.ports import Chunk, Collection, Hit, IndexedChunk, VectorIndex
from treadle.retrieval.in_memory import InMemoryIndex
from treadle.testing.hostile_texts import QUERIES

DIMENSIONS = 4
TOLERANCE = 1e-5


def collection(tenant: str = "acme", dimensions: int = DIMENSIONS) -> Collection:
    """One that nobody used before, so that tests may share an index."""
    return Collection(tenant=tenant, store=new_id("vs"), dimensions=dimensions)


def unit(*values: float) -> list[float]:
    length = math.hypot(*values)
    return [value / length for value in values]


def piece(number: int, text: str = "text", vector: Sequence[float] = (1, 0, 0, 0)) -> IndexedChunk:
    return IndexedChunk(Chunk(number=number, text=text), unit(*vector))


def names(hits: Sequence[Hit]) -> list[tuple[str, int]]:
    return [(hit.file, hit.number) for hit in hits]


async def published(index: VectorIndex, where: Collection, file: str, *chunks: IndexedChunk) -> None:
    await index.add(where, file, chunks)
    await index.publish(where, file)


async def nearest(
    index: VectorIndex, where: Collection, vector: Sequence[float] = (1, 0, 0, 0), *files: str, limit: int = 10
) -> list[tuple[str, int]]:
    """Without `files`: in all."""
    return names(await index.nearest(where, unit(*vector), files=frozenset(files) if files else None, limit=limit))


async def matching(index: VectorIndex, where: Collection, text: str, limit: int = 10) -> list[tuple[str, int]]:
    return names(await index.matching(where, text, files=None, limit=limit))


class IndexSuite:
    """For the port VectorIndex. Provide `index`, started."""

    exact_weights = False

    @pytest.fixture
    def index(self) -> VectorIndex:
        raise NotImplementedError("a subclass provides the index under test")

    async def test_what_is_not_there_is_not_found_and_can_be_removed(self, index: VectorIndex) -> None:
        where = collection()
        assert await nearest(index, where) == []
        assert await matching(index, where, "text") == []
        assert await index.read(where, "a", start=0, limit=10) == []
        assert await index.publish(where, "a") == 0
        await index.remove(where, "a")
        await index.drop(where)
        await index.add(where, "a", [])
        assert await nearest(index, where) == []

    async def test_a_file_is_found_once_it_is_published_and_not_before(self, index: VectorIndex) -> None:
        where = collection()
        await index.add(where, "a", [piece(0, "one word"), piece(1, "another word")])
        assert await nearest(index, where) == []
        assert await matching(index, where, "word") == []
        assert await index.read(where, "a", start=0, limit=10) == []
        assert await index.publish(where, "a") == len("one wordanother word") + 2 * 4 * DIMENSIONS
        assert await nearest(index, where) == [("a", 0), ("a", 1)]
        assert set(await matching(index, where, "word")) == {("a", 0), ("a", 1)}

    async def test_a_file_can_be_added_in_parts(self, index: VectorIndex) -> None:
        where = collection()
        for number in range(5):
            await index.add(where, "a", [piece(number)])
        await index.publish(where, "a")
        assert await nearest(index, where) == [("a", number) for number in range(5)]

    async def test_a_hit_and_a_chunk_read_are_what_was_added(self, index: VectorIndex) -> None:
        where = collection()
        vector = unit(1, 2, 3, 4)
        chunk = Chunk(number=3, text='Größe: "9\'"\n\t日本 🎉', page=7, section="One > Two")
        await published(index, where, "a/b 'c\".txt", IndexedChunk(chunk, vector))
        [hit] = await index.nearest(where, vector, files=None, limit=10)
        assert (hit.file, hit.number) == ("a/b 'c\".txt", 3)
        assert hit.score == pytest.approx(1, abs=TOLERANCE)
        [by_word] = await index.matching(where, "Größe", files=None, limit=10)
        assert (by_word.file, by_word.number) == (hit.file, 3)
        assert await index.chunks(where, [(hit.file, 3)]) == [chunk]
        [read] = await index.read(where, "a/b 'c\".txt", start=0, limit=10)
        assert read.chunk == chunk
        assert read.vector == pytest.approx(vector, abs=TOLERANCE)

    async def test_chunks_come_in_the_order_asked_for_with_none_for_those_not_there(self, index: VectorIndex) -> None:
        where = collection()
        assert await index.chunks(where, [("a", 0)]) == [None]
        assert await index.chunks(where, []) == []
        await published(index, where, "a", piece(0, "first"), piece(12, "last"))
        await published(index, where, "b", piece(0, "other"))
        await index.add(where, "draft", [piece(0, "not yet")])
        places = [("b", 0), ("a", 12), ("a", 1), ("c", 0), ("draft", 0), ("a", 0), ("b", 0)]
        found = await index.chunks(where, places)
        assert [chunk and chunk.text for chunk in found] == ["other", "last", None, None, None, "first", "other"]
        assert [chunk and chunk.number for chunk in found] == [0, 12, None, None, None, 0, 0]
        assert await index.chunks(collection(), places) == [None] * 7
        await index.remove(where, "b")
        assert (await index.chunks(where, places))[0] is None

    async def test_reading_goes_on_where_it_stopped(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", *(piece(number) for number in (4, 0, 2, 7)))
        await published(index, where, "b", piece(1))
        assert [one.chunk.number for one in await index.read(where, "a", start=0, limit=2)] == [0, 2]
        assert [one.chunk.number for one in await index.read(where, "a", start=3, limit=9)] == [4, 7]
        assert await index.read(where, "a", start=8, limit=9) == []

    async def test_a_number_that_is_there_is_replaced(self, index: VectorIndex) -> None:
        where = collection()
        await index.add(where, "a", [piece(0, "old"), piece(1, "stays")])
        await published(index, where, "a", piece(0, "new", (0, 1, 0, 0)))
        assert await matching(index, where, "old") == []
        assert await matching(index, where, "new stays") == [("a", 0), ("a", 1)]
        assert await nearest(index, where, (0, 1, 0, 0)) == [("a", 0), ("a", 1)]
        assert len(await index.read(where, "a", start=0, limit=10)) == 2

    async def test_adding_to_a_published_file_takes_it_out_until_it_is_published_again(
        self, index: VectorIndex
    ) -> None:
        where = collection()
        await published(index, where, "a", piece(0, "old"))
        await nearest(index, where)
        await index.add(where, "a", [piece(1, "more")])
        assert await nearest(index, where) == []
        assert await matching(index, where, "old more") == []
        await index.publish(where, "a")
        assert await nearest(index, where) == [("a", 0), ("a", 1)]

    async def test_a_removed_file_is_gone_and_may_come_back(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", piece(0, "common first"))
        await published(index, where, "b", piece(0, "common second"))
        await nearest(index, where)
        await index.remove(where, "a")
        assert await nearest(index, where) == [("b", 0)]
        assert await matching(index, where, "first common") == [("b", 0)]
        assert await index.read(where, "a", start=0, limit=10) == []
        await published(index, where, "a", piece(5, "common third", (0, 1, 0, 0)))
        assert await nearest(index, where) == [("b", 0), ("a", 5)]
        assert await matching(index, where, "first") == []

    async def test_what_was_added_is_removed_even_if_it_was_not_published(self, index: VectorIndex) -> None:
        where = collection()
        await index.add(where, "a", [piece(0), piece(1)])
        await index.remove(where, "a")
        await published(index, where, "a", piece(2))
        assert await nearest(index, where) == [("a", 2)]

    async def test_a_dropped_collection_is_empty_and_may_come_back_with_other_vectors(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", piece(0))
        await index.add(where, "b", [piece(0)])
        await nearest(index, where)
        await index.drop(where)
        assert await nearest(index, where) == []
        assert await matching(index, where, "text") == []
        await index.publish(where, "b")
        assert await nearest(index, where) == []
        other = Collection(where.tenant, where.store, 2)
        await published(index, other, "c", piece(0, vector=(1, 1)))
        assert await nearest(index, other, (1, 0)) == [("c", 0)]

    async def test_the_nearest_come_first(self, index: VectorIndex) -> None:
        where = collection()
        directions = [(1, 0, 0, 0), (0.9, 0.1, 0, 0), (0.5, 0.5, 0, 0), (0, 1, 0, 0), (-1, 0, 0, 0)]
        for number, vector in enumerate(random.Random(3).sample(directions, 5)):  # noqa: S311 -- an order, no secret
            await published(index, where, str(number), piece(directions.index(vector), vector=vector))
        hits = await index.nearest(where, [1, 0, 0, 0], files=None, limit=10)
        assert [hit.number for hit in hits] == [0, 1, 2, 3, 4]
        assert [hit.score for hit in hits] == pytest.approx([unit(*vector)[0] for vector in directions], abs=TOLERANCE)
        assert await nearest(index, where, limit=2) == names(hits)[:2]

    async def test_ties_go_by_file_and_number(self, index: VectorIndex) -> None:
        where = collection()
        for file in ("b", "c", "a"):
            await published(index, where, file, *(piece(number, f"same {file}{number}") for number in (2, 10, 0)))
        expected = [(file, number) for file in "abc" for number in (0, 2, 10)]
        assert await nearest(index, where) == expected
        assert await nearest(index, where, limit=4) == expected[:4]
        assert await nearest(index, where, (1, 0, 0, 0), "b", "c", limit=4) == expected[3:7]
        assert await matching(index, where, "same") == expected
        assert await matching(index, where, "same", limit=4) == expected[:4]

    async def test_only_files_of_the_set_are_looked_into(self, index: VectorIndex) -> None:
        """Those that pass a filter may be the least similar of all."""
        where = collection()
        for number in range(40):
            await published(index, where, f"f{number:02}", piece(0, "the word", (40 - number, number, 0, 0)))
        last = [("f37", 0), ("f38", 0), ("f39", 0)]
        assert await nearest(index, where, (1, 0, 0, 0), "f39", "f37", "f38", "elsewhere", limit=3) == last
        hits = await index.matching(where, "word", files=frozenset({"f39", "f37", "f38"}), limit=3)
        assert sorted(names(hits)) == last

    async def test_an_empty_set_of_files_holds_nothing(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", piece(0, "word"))
        assert await index.nearest(where, [1, 0, 0, 0], files=frozenset(), limit=10) == []
        assert await index.matching(where, "word", files=frozenset(), limit=10) == []

    async def test_a_large_set_of_files_works(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "f7", piece(0, "word"))
        files = frozenset(f"f{number}" for number in range(20_000))
        assert names(await index.nearest(where, [1, 0, 0, 0], files=files, limit=10)) == [("f7", 0)]
        assert names(await index.matching(where, "word", files=files, limit=10)) == [("f7", 0)]

    @pytest.mark.parametrize("vector", [[1.0], [1.0] * 5, [math.nan, 0, 0, 0], [math.inf, 0, 0, 0]])
    async def test_vectors_that_do_not_fit_are_refused(self, index: VectorIndex, vector: list[float]) -> None:
        where = collection()
        await published(index, where, "a", piece(0))
        with pytest.raises(InvalidRequest):
            await index.nearest(where, vector, files=None, limit=10)
        with pytest.raises(InvalidRequest):
            await index.add(where, "b", [piece(0), IndexedChunk(Chunk(number=1, text="x"), vector)])
        await index.publish(where, "b")
        assert await nearest(index, where) == [("a", 0)], "chunks of a call that failed are there"

    async def test_a_collection_keeps_the_length_of_its_vectors(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", piece(0))
        other = Collection(where.tenant, where.store, 2)
        with pytest.raises(InvalidRequest):
            await index.add(other, "b", [piece(0, vector=(1, 0))])
        with pytest.raises(InvalidRequest):
            await index.nearest(other, [1, 0], files=None, limit=10)

    async def test_a_query_may_have_any_length_and_even_none(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", piece(0), piece(1, vector=(0, 1, 0, 0)))
        [first, _] = await index.nearest(where, [5, 0, 0, 0], files=None, limit=10)
        assert first.number == 0
        assert first.score == pytest.approx(1, abs=TOLERANCE)
        hits = await index.nearest(where, [0, 0, 0, 0], files=None, limit=10)
        assert [hit.score for hit in hits] == [0, 0]

    async def test_words_are_whole_and_have_no_case_and_no_accents(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", piece(0, "Crème brûlée, SERVED cold."), piece(1, "cream burner"))
        for query in ("creme", "BRÛLÉE", "served?", "  cold\n"):
            assert await matching(index, where, query) == [("a", 0)], query
        for query in ("crem", "erve", "burn"):
            assert await matching(index, where, query) == [], query

    async def test_more_words_of_the_query_come_first(self, index: VectorIndex) -> None:
        where = collection()
        filler = "alpha beta gamma delta epsilon zeta eta theta"
        for number in range(20):
            await published(index, where, f"x{number}", piece(0, f"{filler} {number}"))
        await published(index, where, "one", piece(0, f"{filler} teapot"))
        await published(index, where, "two", piece(0, f"{filler} teapot kettle"))
        hits = await index.matching(where, "teapot, kettle and saucer", files=None, limit=10)
        assert names(hits) == [("two", 0), ("one", 0)]
        assert hits[0].score > hits[1].score > 0

    @pytest.mark.parametrize("text", QUERIES, ids=lambda text: repr(text[:20]))
    async def test_any_text_can_be_looked_for(self, index: VectorIndex, text: str) -> None:
        where = collection()
        await published(index, where, "a", piece(0, "a needle in hay"), piece(1, "nothing of interest"))
        found = await index.matching(where, text, files=None, limit=10)
        assert (("a", 0) in names(found)) == ("needle" in text or "a" in text.lower().split() or "NEAR(a" in text)
        assert all(hit.score > 0 for hit in found)

    async def test_texts_without_spaces_are_found_by_their_parts(self, index: VectorIndex) -> None:
        where = collection()
        await published(index, where, "a", piece(0, "私は黒猫が好きです"), piece(1, "向量数据库"))
        assert await matching(index, where, "黒猫") == [("a", 0)]
        assert await matching(index, where, "猫") == [("a", 0)]
        assert await matching(index, where, "数据库是什么") == [("a", 1)]
        assert await matching(index, where, "狗") == []

    async def test_any_text_can_be_added(self, index: VectorIndex) -> None:
        where = collection()
        texts = ["", "\0", "nul\0inside", "'\"\\%_;--", "\ud800 half", "🎉" * 1000, "x" * 100_000, "w " * 50_000]
        await published(index, where, "a", *(piece(number, text) for number, text in enumerate(texts)))
        assert len(await index.read(where, "a", start=0, limit=100)) == len(texts)
        assert await matching(index, where, "inside") == [("a", 2)]
        assert await matching(index, where, "half") == [("a", 4)]

    async def test_collections_and_tenants_see_nothing_of_each_other(self, index: VectorIndex) -> None:
        one = collection("acme")
        others = [Collection("globex", one.store, DIMENSIONS), collection("acme")]
        await published(index, one, "a", piece(0, "secret"))
        for other in others:
            assert await nearest(index, other) == []
            await published(index, other, "a", piece(0, "public", (0, 1, 0, 0)))
            assert await matching(index, other, "secret") == []
            assert await nearest(index, other) == [("a", 0)]
            assert [chunk and chunk.text for chunk in await index.chunks(other, [("a", 0)])] == ["public"]
            await index.remove(other, "a")
            await index.drop(other)
        assert await nearest(index, one) == [("a", 0)]

    async def test_other_collections_change_no_weight(self, index: VectorIndex) -> None:
        if not self.exact_weights:
            pytest.skip("this index promises no exact weights")
        where, other = collection(), collection()
        await published(index, where, "a", piece(0, "red apple"), piece(1, "green pear tree"))
        before = await index.matching(where, "red tree", files=None, limit=10)
        await published(index, other, "b", *(piece(number, "red red red tree " * 9) for number in range(30)))
        assert await index.matching(where, "red tree", files=None, limit=10) == before

    async def test_searches_and_changes_go_on_at_once(self, index: VectorIndex) -> None:
        """Every search sees files whole: two chunks each, or none."""
        where = collection()

        async def change(file: str) -> None:
            for _ in range(5):
                await index.add(where, file, [piece(0, "word"), piece(1, "word")])
                await index.publish(where, file)
                await index.remove(where, file)
            await published(index, where, file, piece(0, "word"), piece(1, "word"))

        async def search() -> None:
            for _ in range(15):
                for hits in await asyncio.gather(
                    index.nearest(where, [1, 0, 0, 0], files=None, limit=100),
                    index.matching(where, "word", files=None, limit=100),
                ):
                    found = names(hits)
                    assert len(set(found)) == len(found)
                    assert {(file, 0) for file, _ in found} | {(file, 1) for file, _ in found} == set(found)

        files = [f"f{number}" for number in range(6)]
        await asyncio.gather(*(change(file) for file in files), *(search() for _ in range(4)))
        assert await nearest(index, where, limit=100) == [(file, number) for file in files for number in (0, 1)]

    @settings(
        max_examples=30,
        deadline=None,
        # Examples share the index and not a collection; that subclasses share the examples' database does no harm.
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(data=st.data())
    async def test_it_finds_what_the_reference_finds(self, index: VectorIndex, data: st.DataObject) -> None:
        reference, stores = InMemoryIndex(), [collection(), collection("globex")]
        for _ in range(data.draw(st.integers(1, 4))):
            for change in data.draw(st.lists(_changes, max_size=6)):
                await _apply(index, stores, change)
                await _apply(reference, stores, change)
            where = stores[data.draw(st.integers(0, 1))]
            files = data.draw(st.none() | st.frozensets(_files, max_size=3))
            limit = data.draw(st.integers(1, 12))
            vector = data.draw(_vectors)
            await _same_nearest(index, reference, where, vector, files, limit)
            text = data.draw(_texts)
            got = await index.matching(where, text, files=files, limit=limit)
            everything = await reference.matching(where, text, files=files, limit=1000)
            self.check_matching(got, everything, limit)
            file = data.draw(_files)
            assert [one.chunk for one in await index.read(where, file, start=0, limit=3)] == [
                one.chunk for one in await reference.read(where, file, start=0, limit=3)
            ]

    def check_matching(self, got: list[Hit], everything: list[Hit], limit: int) -> None:
        assert len(got) == min(limit, len(everything))
        assert len(set(names(got))) == len(got)
        assert set(names(got)) <= set(names(everything))
        assert [hit.score for hit in got] == sorted((hit.score for hit in got), reverse=True)
        assert all(hit.score > 0 for hit in got)
        if self.exact_weights:
            weights = dict(zip(names(everything), (hit.score for hit in everything), strict=True))
            assert [hit.score for hit in got] == pytest.approx([hit.score for hit in everything[:limit]], abs=TOLERANCE)
            assert [weights[name] for name in names(got)] == pytest.approx([hit.score for hit in got], abs=TOLERANCE)


_files = st.sampled_from(["a", "b", "c"])
_texts = st.lists(st.sampled_from("red green blue apple pear tree the".split()), max_size=6).map(" ".join)
_vectors = st.lists(st.integers(-3, 3), min_size=DIMENSIONS, max_size=DIMENSIONS).filter(any).map(lambda v: unit(*v))
_pieces = st.builds(
    lambda number, text, vector: IndexedChunk(Chunk(number=number, text=text), vector),
    st.integers(0, 4),
    _texts,
    _vectors,
)
_Change = tuple[str, int, str, list[IndexedChunk]]
_changes: st.SearchStrategy[_Change] = st.tuples(
    st.sampled_from(["add", "add", "add", "publish", "publish", "remove", "drop"]),
    st.integers(0, 1),
    _files,
    st.lists(_pieces, max_size=4, unique_by=lambda one: one.chunk.number),
)


async def _apply(index: VectorIndex, stores: Sequence[Collection], change: _Change) -> None:
    kind, store, file, chunks = change
    where = stores[store]
    if kind == "add":
        await index.add(where, file, chunks)
    elif kind == "publish":
        await index.publish(where, file)
    elif kind == "remove":
        await index.remove(where, file)
    else:
        await index.drop(where)


async def _same_nearest(
    index: VectorIndex,
    reference: VectorIndex,
    where: Collection,
    vector: list[float],
    files: frozenset[str] | None,
    limit: int,
) -> None:
    """The same scores in the same places; which of several equal ones is there may turn on a rounding error."""
    got = await index.nearest(where, vector, files=files, limit=limit)
    everything = await reference.nearest(where, vector, files=files, limit=1000)
    scores = dict(zip(names(everything), (hit.score for hit in everything), strict=True))
    assert [hit.score for hit in got] == pytest.approx([hit.score for hit in everything[:limit]], abs=TOLERANCE)
    assert len(set(names(got))) == len(got)
    for hit in got:
        assert scores[hit.file, hit.number] == pytest.approx(hit.score, abs=TOLERANCE)


class PersistentIndexSuite(IndexSuite):
    """For an index that outlives its process. Provide `again`: a second one on the same data, started."""

    @pytest.fixture
    def again(self) -> VectorIndex:
        raise NotImplementedError("a subclass provides the second index")

    async def test_what_is_published_is_there_for_everyone_at_once(
        self, index: VectorIndex, again: VectorIndex
    ) -> None:
        where = collection()
        assert await nearest(again, where) == []
        await published(index, where, "a", piece(0, "word"))
        assert await nearest(again, where) == [("a", 0)]
        await index.add(where, "b", [piece(0, "word")])
        await again.add(where, "b", [piece(1, "word")])
        assert await nearest(again, where) == [("a", 0)]
        await again.publish(where, "b")
        assert await nearest(index, where) == [("a", 0), ("b", 0), ("b", 1)]
        assert len(await matching(index, where, "word")) == 3
        await again.remove(where, "a")
        assert await nearest(index, where) == [("b", 0), ("b", 1)]
        await again.drop(where)
        assert await nearest(index, where) == []
