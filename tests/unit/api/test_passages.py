"""Searching without HTTP: access first, filters before limits, one embedding per model, faults of single stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.behaviour.manifest import behaviour
from tests.unit.api.knowledge_kit import EMBEDDER, Knowledge, WordEmbedder
from tests.unit.api.test_ingest import attach, store
from tests.unit.store.on_sqlite import database, migrated, path
from tests.unit.store.support import ALICE, BOB
from treadle.api import listings
from treadle.errors import InvalidRequest, NotFound, ServerError, StorageFault, UpstreamFault
from treadle.ports import PassageQuery
from treadle.scope import LOCAL, Scope
from treadle.store.sqlite import Sqlite
from treadle.wire.retrieval import AttributeValue, Filter, RankerWeights, RankingOptions
from treadle.wire.vector_io import EmbeddedChunk, InsertChunks, QueryChunks, QueryParams
from treadle.wire.vector_stores import (
    AttachFile,
    CreateFileBatch,
    CreateVectorStore,
    ExpiresAfter,
    SearchVectorStore,
    UpdateVectorStore,
    UpdateVectorStoreFile,
)

__all__ = ["database", "migrated", "path"]


@pytest.fixture
async def knowledge(database: Sqlite) -> AsyncIterator[Knowledge]:
    made = Knowledge(database)
    made.ingestion.start()
    yield made
    await made.ingestion.stop()


async def put(knowledge: Knowledge, store_id: str, text: str, name: str = "a.txt", **attributes: AttributeValue) -> str:
    file_id = knowledge.uploads.put(text, name)
    file = await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=file_id, attributes=attributes))
    assert file.status == "completed"
    return file_id


def query(*stores: str, text: str = "apple", **more: object) -> PassageQuery:
    return PassageQuery(stores=list(stores), queries=[text], **more)  # type: ignore[arg-type] # test data


def eq(key: str, value: AttributeValue) -> Filter:
    return Filter(type="eq", key=key, value=value)


async def test_passages_carry_the_files_own_id_name_and_attributes(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    file_id = await put(knowledge, store_id, "apple pie\npear cake", "Menü.txt", course="dessert", year=2024)
    found = await knowledge.passages.passages(LOCAL, query(store_id))
    best = found.found[0]
    assert (best.file_id, best.filename, best.text, best.store) == (file_id, "Menü.txt", "apple pie", store_id)
    assert best.attributes == {"course": "dessert", "year": 2024}
    assert found.broken == {}
    assert all(0 <= passage.score <= 1 for passage in found.found)


@behaviour("bug-76")
async def test_nobody_gets_at_the_stores_of_others_by_any_door(knowledge: Knowledge) -> None:
    store_id, secret = await store(knowledge), knowledge.uploads.put("apple secret")
    mine = (await knowledge.stores.create(BOB, CreateVectorStore())).id
    batch = await knowledge.batches.create(LOCAL, store_id, CreateFileBatch(file_ids=[secret]))
    await put(knowledge, store_id, "apple secret")
    chunk = EmbeddedChunk(content="x", chunk_id="c", embedding=[1.0] * 8)
    listing = {"status": None, "after": None, "before": None, "limit": 20, "order": "asc"}
    doors: list[Callable[[], object]] = [
        lambda: knowledge.stores.get(BOB, store_id),
        lambda: knowledge.stores.update(BOB, store_id, UpdateVectorStore(name="mine")),
        lambda: knowledge.stores.delete(BOB, store_id),
        lambda: knowledge.attached.attach(BOB, store_id, AttachFile(file_id=secret)),
        lambda: knowledge.attached.attach(BOB, mine, AttachFile(file_id=secret)),
        lambda: knowledge.attached.get(BOB, store_id, secret),
        lambda: knowledge.attached.get(BOB, mine, secret),
        lambda: knowledge.attached.list(BOB, store_id, **listing),  # type: ignore[arg-type]
        lambda: knowledge.attached.update(BOB, store_id, secret, UpdateVectorStoreFile(attributes={})),
        lambda: knowledge.attached.detach(BOB, store_id, secret),
        lambda: knowledge.attached.content(BOB, store_id, secret, start=0, embeddings=True, metadata=True),
        lambda: knowledge.batches.create(BOB, store_id, CreateFileBatch(file_ids=[secret])),
        lambda: knowledge.batches.get(BOB, store_id, batch.id),
        lambda: knowledge.batches.get(BOB, mine, batch.id),
        lambda: knowledge.batches.files(BOB, store_id, batch.id, **listing),  # type: ignore[arg-type]
        lambda: knowledge.batches.cancel(BOB, store_id, batch.id),
        lambda: knowledge.passages.check(BOB, [mine, store_id], "tools[0].vector_store_ids"),
        lambda: knowledge.passages.passages(BOB, query(mine, store_id)),
        lambda: knowledge.search.search(BOB, store_id, SearchVectorStore(query="apple")),
        lambda: knowledge.chunks.insert(BOB, InsertChunks(vector_store_id=store_id, chunks=[chunk])),
        lambda: knowledge.chunks.query(BOB, QueryChunks(vector_store_id=store_id, query="apple")),
    ]
    for number, door in enumerate(doors):
        with pytest.raises(NotFound) as refused:
            await door()  # type: ignore[misc]
        assert "secret" not in refused.value.message, number
        assert refused.value.param, number
    taken = await knowledge.batches.create(BOB, mine, CreateFileBatch(file_ids=[secret]))
    assert (taken.status, taken.file_counts.failed) == ("failed", 1)
    assert (await knowledge.passages.passages(BOB, query(mine))).found == []
    assert (await knowledge.stores.get(LOCAL, store_id)).name == ""


async def test_the_first_store_that_is_not_the_callers_is_named_by_its_place(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    with pytest.raises(NotFound) as refused:
        await knowledge.passages.check(ALICE, [store_id], "tools[2].vector_store_ids")
    assert refused.value.param == "tools[2].vector_store_ids"
    await knowledge.passages.check(LOCAL, [store_id, store_id], "x")


async def test_what_is_middling_by_meaning_and_by_words_comes_before_what_is_good_by_one(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    # An anagram has the vector of its word and is another word; "x" is none of the query's and turns the vector away.
    lines = [*["papel epi"] * 60, *["apple pie" + " x" * 9] * 60, "apple pie apple pie x"]
    await put(knowledge, store_id, "\n".join(lines))
    [best] = (await knowledge.passages.passages(LOCAL, query(store_id, text="apple pie", limit=1))).found
    assert best.text == "apple pie apple pie x"


@behaviour("bug-64")
async def test_a_filter_is_applied_before_the_limit_however_far_away_what_it_keeps_is(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    for number in range(60):
        await put(knowledge, store_id, f"apple apple {number}", group="near")
    far = {await put(knowledge, store_id, f"zebra {number}", group="far", **{"it's": number}) for number in range(3)}
    for mode in ("vector", "hybrid"):
        found = await knowledge.passages.passages(
            LOCAL, query(store_id, filters=eq("group", "far"), mode=mode, limit=10)
        )
        assert {passage.file_id for passage in found.found} == far
    found = await knowledge.passages.passages(
        LOCAL, query(store_id, filters=Filter(type="lt", key="it's", value=2), limit=10)
    )
    assert sorted(passage.attributes["it's"] for passage in found.found) == [0, 1]  # type: ignore[type-var]


async def test_filters_see_changed_attributes_at_once_and_cost_little_the_second_time(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_id = await store(knowledge)
    file_id = await put(knowledge, store_id, "apple", group="old")
    old, new = query(store_id, filters=eq("group", "old")), query(store_id, filters=eq("group", "new"))
    assert len((await knowledge.passages.passages(LOCAL, old)).found) == 1
    calls: list[object] = []
    evaluate = listings.Listing._evaluate

    def counted(listing: listings.Listing, predicate: listings.Predicate) -> frozenset[str]:
        calls.append(predicate)
        return evaluate(listing, predicate)

    monkeypatch.setattr(listings.Listing, "_evaluate", counted)
    assert len((await knowledge.passages.passages(LOCAL, old)).found) == 1
    assert calls == []
    await knowledge.attached.update(LOCAL, store_id, file_id, UpdateVectorStoreFile(attributes={"group": "new"}))
    assert (await knowledge.passages.passages(LOCAL, old)).found == []
    assert len((await knowledge.passages.passages(LOCAL, new)).found) == 1


async def test_listings_of_many_files_make_room_for_each_other(knowledge: Knowledge) -> None:
    kept = listings.Listings(knowledge.rows, max_files=3)
    rows = []
    for number in range(3):
        store_id = await store(knowledge)
        for _ in range(2):
            await put(knowledge, store_id, f"apple {number}")
        rows.append((await knowledge.rows.find(LOCAL, [store_id]))[store_id])
    first = await kept.of(LOCAL, rows[0])
    assert await kept.of(LOCAL, rows[0]) is first
    for row in rows[1:]:
        assert len((await kept.of(LOCAL, row)).files) == 2
    assert await kept.of(LOCAL, rows[0]) is not first


async def test_a_removed_file_is_not_found_even_if_its_chunks_are_still_there(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    file_id = await put(knowledge, store_id, "apple")
    await knowledge.files.detach(LOCAL, store_id, file_id)
    assert knowledge.index.numbers(file_id) == [0]
    assert (await knowledge.passages.passages(LOCAL, query(store_id))).found == []


async def test_several_stores_are_searched_together_and_each_embedding_model_is_asked_once(
    knowledge: Knowledge,
) -> None:
    other = WordEmbedder()
    knowledge.router.embedders["local/other"] = other
    stores = [await store(knowledge), await store(knowledge), await store(knowledge, embedding_model="local/other")]
    files = [
        await put(knowledge, store_id, f"apple {word}")
        for store_id, word in zip(stores, ("", "pie", "cake"), strict=True)
    ]
    knowledge.embedder.calls.clear()
    other.calls.clear()
    found = await knowledge.passages.passages(LOCAL, query(*stores, *stores))
    assert sorted(passage.file_id for passage in found.found) == sorted(files)
    assert found.found[0].file_id == files[0]
    assert {passage.store for passage in found.found} == set(stores)
    assert (knowledge.embedder.calls, other.calls) == ([["apple"]], [["apple"]])


async def test_a_broken_store_is_reported_and_the_others_answer_but_all_broken_is_a_fault(
    knowledge: Knowledge,
) -> None:
    other = WordEmbedder()
    knowledge.router.embedders["local/other"] = other
    good, bad = await store(knowledge), await store(knowledge, embedding_model="local/other")
    file_id = await put(knowledge, good, "apple")

    def away(_: object) -> None:
        raise UpstreamFault("The embedding model is away.")

    other.before = away
    found = await knowledge.passages.passages(LOCAL, query(bad, good))
    assert [passage.file_id for passage in found.found] == [file_id]
    assert found.broken == {bad: "The embedding model is away."}
    with pytest.raises(UpstreamFault):
        await knowledge.passages.passages(LOCAL, query(bad))
    found = await knowledge.passages.passages(LOCAL, query(bad, good, mode="keyword"))
    assert found.broken == {}, "words need no embedding model"


async def test_several_queries_are_embedded_together_and_what_either_finds_is_found(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    files = [await put(knowledge, store_id, text) for text in ("apple", "zebra", "moss")]
    knowledge.embedder.calls.clear()
    found = await knowledge.passages.passages(
        LOCAL, PassageQuery(stores=[store_id], queries=["apple", "zebra"], limit=2)
    )
    assert {passage.file_id for passage in found.found} == set(files[:2])
    assert knowledge.embedder.calls == [["apple", "zebra"]]


@behaviour("bug-65")
@pytest.mark.parametrize("mode", ["vector", "keyword", "hybrid"])
async def test_a_threshold_holds_for_the_score_that_is_reported(knowledge: Knowledge, mode: str) -> None:
    store_id = await store(knowledge)
    for text in ("apple", "apple pie", "apple pie with pear", "moss"):
        await put(knowledge, store_id, text)

    async def scores(threshold: float) -> list[float]:
        options = RankingOptions(score_threshold=threshold)
        found = await knowledge.passages.passages(LOCAL, query(store_id, mode=mode, ranking=options))
        return [passage.score for passage in found.found]

    everything = await scores(0.0)
    assert everything == sorted(everything, reverse=True)
    assert all(0 <= score <= 1 for score in everything)
    for threshold in (0.5, 1.0, everything[1]):
        assert await scores(threshold) == [score for score in everything if score >= threshold]


@behaviour("bug-65")
async def test_a_reranker_orders_what_was_found_by_its_own_scores(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    for text in ("apple apple apple", "red apple pie", "moss"):
        await put(knowledge, store_id, text)
    options = RankingOptions(ranker="neural", model="scripted/judge")
    found = await knowledge.passages.passages(LOCAL, query(store_id, text="apple pie", ranking=options, limit=2))
    assert [(passage.text, passage.score) for passage in found.found] == [
        ("red apple pie", 1.0),
        ("apple apple apple", 0.5),
    ]
    ((model, text, texts),) = knowledge.reranker.calls
    assert (model, text, len(texts)) == ("scripted/judge", "apple pie", 3)
    shares = RankingOptions(weights=RankerWeights(vector=0.5, neural=0.5), model="scripted/judge")
    assert (await knowledge.passages.passages(LOCAL, query(store_id, ranking=shares))).found
    with pytest.raises(InvalidRequest) as refused:
        await knowledge.passages.passages(LOCAL, query(store_id, ranking=RankingOptions(ranker="neural")))
    assert refused.value.param == "ranking_options.model"


async def test_searching_keeps_a_store_alive_and_writes_that_once_a_minute(knowledge: Knowledge) -> None:
    created = await knowledge.stores.create(
        LOCAL, CreateVectorStore(expires_after=ExpiresAfter(anchor="last_active_at", days=1))
    )
    touched: list[int] = []
    touch = knowledge.rows.touch

    async def noted(scope: Scope, ids: list[str], now: int) -> None:
        touched.append(now)
        await touch(scope, ids, now)

    knowledge.rows.touch = noted  # type: ignore[method-assign,assignment]
    start = knowledge.now
    for after in (1, 61, 62, 100, 122, 86_400):
        knowledge.now = start + after
        await knowledge.passages.passages(LOCAL, query(created.id))
    assert touched == [int(start + after) for after in (61, 122, 86_400)]
    knowledge.now += 86_401
    with pytest.raises(InvalidRequest, match="expired"):
        await knowledge.passages.passages(LOCAL, query(created.id))


async def test_a_database_that_cannot_be_written_does_not_stop_searches(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    await put(knowledge, store_id, "apple")

    async def away(*_: object) -> None:
        raise StorageFault("The database is busy.")

    knowledge.rows.touch = away  # type: ignore[method-assign]
    knowledge.now += 120
    assert (await knowledge.passages.passages(LOCAL, query(store_id))).found


async def test_faults_of_an_index_name_the_store_and_bugs_are_not_hidden(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)

    def fail(operation: str) -> None:
        if operation == "matching":
            raise fault

    knowledge.index.before = fail
    fault: Exception = StorageFault("The index is away.")
    with pytest.raises(ServerError, match="The index is away"):
        await knowledge.passages.passages(LOCAL, query(store_id))
    fault = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await knowledge.passages.passages(LOCAL, query(store_id))


def chunk(text: str, name: str, document: str, **metadata: AttributeValue) -> EmbeddedChunk:
    vector = WordEmbedder._vector(text, 8)
    return EmbeddedChunk(content=text, chunk_id=name, metadata={"document_id": document, **metadata}, embedding=vector)


async def test_chunks_with_vectors_are_found_replaced_and_filtered_and_are_no_files(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    chunks = [chunk("apple pie", "c1", "doc1", topic="food"), chunk("green moss", "it's \0 odd", "doc2", topic="wood")]
    await knowledge.chunks.insert(LOCAL, InsertChunks(vector_store_id=store_id, chunks=chunks))
    await knowledge.chunks.insert(
        LOCAL, InsertChunks(vector_store_id=store_id, chunks=[chunk("apple cake", "c1", "doc1", topic="food")])
    )
    found = await knowledge.chunks.query(LOCAL, QueryChunks(vector_store_id=store_id, query="apple"))
    assert [one.content for one in found.chunks] == ["apple cake", "green moss"]
    assert (found.chunks[0].chunk_id, found.chunks[0].metadata) == ("c1", {"document_id": "doc1", "topic": "food"})
    assert found.scores == sorted(found.scores, reverse=True)
    assert len(found.chunks[0].embedding) == 8
    params = QueryParams(filters=eq("topic", "wood"), max_chunks=5, score_threshold=-1.0)
    found = await knowledge.chunks.query(LOCAL, QueryChunks(vector_store_id=store_id, query="apple", params=params))
    assert [one.content for one in found.chunks] == ["green moss"]
    page = await knowledge.search.search(LOCAL, store_id, SearchVectorStore(query="apple", max_num_results=1))
    assert (page.data[0].file_id, page.data[0].attributes) == ("doc1", {"document_id": "doc1", "topic": "food"})
    assert (await knowledge.stores.get(LOCAL, store_id)).file_counts.total == 0


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (EmbeddedChunk(content="x", chunk_id="c", embedding=[1.0] * 7), "chunks[0].embedding"),
        (EmbeddedChunk(content="x", chunk_id="c", embedding=[0.0] * 8), "chunks[0].embedding"),
        (EmbeddedChunk(content=" ", chunk_id="c", embedding=[1.0] * 8), "chunks[0].content"),
    ],
)
async def test_a_chunk_that_does_not_fit_is_refused_by_its_place(
    knowledge: Knowledge, given: EmbeddedChunk, param: str
) -> None:
    store_id = await store(knowledge)
    with pytest.raises(InvalidRequest) as refused:
        await knowledge.chunks.insert(LOCAL, InsertChunks(vector_store_id=store_id, chunks=[given]))
    assert refused.value.param == param


async def test_rewriting_without_a_model_is_refused_honestly(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    with pytest.raises(InvalidRequest, match="Query rewriting is not available") as refused:
        await knowledge.search.search(LOCAL, store_id, SearchVectorStore(query="x", rewrite_query=True))
    assert refused.value.param == "rewrite_query"


async def test_the_store_of_the_embedder_is_shown(knowledge: Knowledge) -> None:
    found = await knowledge.stores.get(LOCAL, await store(knowledge))
    assert (found.embedding_model, found.embedding_dimension) == (EMBEDDER, 8)
    assert (await attach(knowledge, found.id)).status == "completed"
