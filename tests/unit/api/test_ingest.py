"""Indexing without HTTP: what a file's end is, what faults mean, and what happens when work is taken away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from tests.unit.api.knowledge_kit import EMBEDDER, Knowledge
from tests.unit.store.on_sqlite import database, migrated, path
from tests.unit.store.support import ALICE
from treadle.api import ingest
from treadle.errors import ContextTooLong, QuotaExceeded, StorageFault, UpstreamFault, UpstreamRefused
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.scope import LOCAL
from treadle.store.sqlite import Sqlite
from treadle.testing import ScriptedModel, says
from treadle.wire.vector_stores import (
    AttachFile,
    ContextualChunking,
    ContextualRules,
    CreateFileBatch,
    CreateVectorStore,
    StaticChunking,
    StaticRules,
    UpdateVectorStoreFile,
    VectorStoreFile,
)

__all__ = ["database", "migrated", "path"]

LINES = "\n".join(f"line {number}" for number in range(10))


@pytest.fixture
async def knowledge(database: Sqlite) -> AsyncIterator[Knowledge]:
    made = Knowledge(database)
    made.ingestion.start()
    yield made
    await made.ingestion.stop()


async def store(knowledge: Knowledge, **more: object) -> str:
    return (await knowledge.stores.create(LOCAL, CreateVectorStore(**more))).id  # type: ignore[arg-type]


async def attach(knowledge: Knowledge, store_id: str, text: str = LINES, name: str = "a.txt") -> VectorStoreFile:
    return await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=knowledge.uploads.put(text, name)))


async def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_completed_file_is_in_the_index_once_and_takes_room(knowledge: Knowledge) -> None:
    file = await attach(knowledge, await store(knowledge))
    assert (file.status, file.last_error) == ("completed", None)
    assert file.usage_bytes > 0
    assert knowledge.index.numbers(file.id) == list(range(10))
    assert [len(texts) for texts in knowledge.embedder.calls[1:]] == [4, 4, 2]


async def test_headings_are_embedded_with_a_chunk_and_not_shown_in_it(knowledge: Knowledge) -> None:
    file = await attach(knowledge, await store(knowledge), "Filters > Cleaning: once a week\nno heading")
    assert knowledge.embedder.calls[-1] == ["Filters > Cleaning\n\nonce a week", "no heading"]
    [held] = [held for (_, name), held in knowledge.index.files.items() if name == file.id]
    assert [(one.chunk.text, one.chunk.section) for one in held.chunks.values()] == [
        ("once a week", "Filters > Cleaning"),
        ("no heading", None),
    ]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("unsupported.bin", "x", "unsupported_file"),
        ("broken.pdf", "x", "invalid_file"),
        ("empty.txt", "", "invalid_file"),
        ("bug.txt", "x", "server_error"),
    ],
)
async def test_a_file_that_cannot_be_indexed_fails_with_a_reason_and_leaves_nothing(
    knowledge: Knowledge, name: str, text: str, code: str
) -> None:
    file = await attach(knowledge, await store(knowledge), text, name)
    assert file.status == "failed"
    assert file.last_error is not None
    assert file.last_error.code == code
    assert file.last_error.message
    assert "Zero" not in file.last_error.message
    assert knowledge.index.numbers(file.id) == []
    assert file.usage_bytes == 0


async def test_a_deleted_file_fails_as_invalid(knowledge: Knowledge) -> None:
    store_id, file_id = await store(knowledge), knowledge.uploads.put(LINES)
    del knowledge.uploads.bytes[file_id]
    file = await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=file_id))
    assert file.last_error is not None
    assert file.last_error.code == "invalid_file"


class Failing:
    """Raises these faults, one per call, for texts that hold a word."""

    def __init__(self, *faults: Exception, word: str = "line") -> None:
        self.faults = list(faults)
        self._word = word

    def __call__(self, texts: Sequence[str]) -> None:
        if self.faults and any(self._word in text for text in texts):
            raise self.faults.pop(0)


async def test_a_model_server_that_is_away_for_a_moment_is_asked_again(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    knowledge.embedder.before = Failing(UpstreamFault("away"), QuotaExceeded("busy"))
    assert (await attach(knowledge, store_id)).status == "completed"


@pytest.mark.parametrize(
    ("fault", "calls"),
    [(UpstreamFault("away"), 3), (UpstreamRefused("no", status=401), 1), (ContextTooLong("too long"), 1)],
)
async def test_a_fault_that_stays_fails_the_file_alone_and_attaching_again_tries_again(
    knowledge: Knowledge, fault: Exception, calls: int
) -> None:
    store_id = await store(knowledge)
    knowledge.embedder.before = Failing(*[fault] * 3, word="poison")
    bad = await attach(knowledge, store_id, "poison")
    good = await attach(knowledge, store_id)
    assert (bad.status, good.status) == ("failed", "completed")
    assert bad.last_error is not None
    assert (bad.last_error.code, bad.last_error.message) == ("server_error", str(fault))
    assert len([texts for texts in knowledge.embedder.calls if texts == ["poison"]]) == calls
    knowledge.embedder.before = lambda _: None
    again = await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=bad.id))
    assert (again.status, again.last_error) == ("completed", None)


async def test_a_model_that_gives_other_vectors_than_before_fails_files_instead_of_spoiling_the_store(
    knowledge: Knowledge,
) -> None:
    store_id = await store(knowledge)
    knowledge.embedder.dimensions = 4
    file = await attach(knowledge, store_id)
    assert file.last_error is not None
    assert EMBEDDER in file.last_error.message


async def test_a_stopped_process_gives_its_file_back_and_the_next_indexes_it_once(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)
    knowledge.embedder.gate = asyncio.Event()
    batch = await knowledge.batches.create(LOCAL, store_id, CreateFileBatch(file_ids=[knowledge.uploads.put(LINES)]))
    await eventually(lambda: len(knowledge.embedder.calls) == 2)
    await knowledge.ingestion.stop()
    assert (await knowledge.batches.get(LOCAL, store_id, batch.id)).file_counts.in_progress == 1
    knowledge.embedder.gate.set()
    other = knowledge.process(poll_seconds=60)
    other.start()
    try:
        await done(knowledge, store_id, batch.id)
    finally:
        await other.stop()
    ((file,),) = [[file.id for file in (await batch_files(knowledge, store_id, batch.id))]]
    assert knowledge.index.numbers(file) == list(range(10))


async def batch_files(knowledge: Knowledge, store_id: str, batch_id: str) -> list[VectorStoreFile]:
    page = await knowledge.batches.files(
        LOCAL, store_id, batch_id, status=None, after=None, before=None, limit=100, order="asc"
    )
    return page.data


async def done(knowledge: Knowledge, store_id: str, batch_id: str) -> None:
    async with asyncio.timeout(10):
        while (await knowledge.batches.get(LOCAL, store_id, batch_id)).status == "in_progress":
            await asyncio.sleep(0.01)


async def test_cancelling_a_batch_stops_waiting_and_running_files_and_takes_their_chunks_away(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "LEASE_SECONDS", 0.2)  # a claim is then kept every 50 ms, and its loss noticed
    store_id = await store(knowledge)
    await knowledge.ingestion.stop()
    knowledge.embedder.gate = asyncio.Event()
    ids = [knowledge.uploads.put(LINES) for _ in range(5)]
    batch = await knowledge.batches.create(LOCAL, store_id, CreateFileBatch(file_ids=ids))
    knowledge.ingestion.start()
    await eventually(lambda: len(knowledge.embedder.calls) >= 3)
    cancelled = await knowledge.batches.cancel(LOCAL, store_id, batch.id)
    assert (cancelled.status, cancelled.file_counts.cancelled) == ("cancelled", 5)
    assert await knowledge.batches.cancel(LOCAL, store_id, batch.id) == cancelled
    knowledge.embedder.gate.set()
    good = await attach(knowledge, store_id)
    assert good.status == "completed"
    await eventually(lambda: not any(knowledge.index.numbers(file) for file in ids))
    assert (await knowledge.batches.get(LOCAL, store_id, batch.id)).file_counts.cancelled == 5


async def test_a_file_removed_while_it_is_indexed_leaves_no_chunks_behind(knowledge: Knowledge) -> None:
    store_id, file_id = await store(knowledge), knowledge.uploads.put(LINES)
    knowledge.embedder.gate = asyncio.Event()
    await knowledge.batches.create(LOCAL, store_id, CreateFileBatch(file_ids=[file_id]))
    await eventually(lambda: len(knowledge.embedder.calls) == 2)
    await knowledge.attached.detach(LOCAL, store_id, file_id)
    knowledge.embedder.gate.set()
    assert (await attach(knowledge, store_id)).status == "completed"
    await eventually(lambda: not knowledge.index.numbers(file_id))


async def test_a_file_that_never_comes_to_an_end_is_given_up(knowledge: Knowledge) -> None:
    await knowledge.ingestion.stop()
    store_id, file_id = await store(knowledge), knowledge.uploads.put(LINES)
    await knowledge.batches.create(LOCAL, store_id, CreateFileBatch(file_ids=[file_id]))
    for number in range(ingest.ATTEMPTS):
        assert await knowledge.queue.claim(f"dies {number}", 0) is not None
    knowledge.ingestion.start()
    async with asyncio.timeout(10):
        while (file := await knowledge.attached.get(LOCAL, store_id, file_id)).status == "in_progress":
            await asyncio.sleep(0.01)
    assert file.last_error is not None
    assert "5 times" in file.last_error.message


async def test_a_database_that_is_away_holds_up_indexing_and_ends_nothing(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_PAUSE", 0.01)
    monkeypatch.setattr(ingest, "LEASE_SECONDS", 0)
    faults = [StorageFault("away")]

    def fail(operation: str) -> None:
        if operation == "add" and faults:
            raise faults.pop()

    knowledge.index.before = fail
    store_id, file_id = await store(knowledge), knowledge.uploads.put(LINES)
    batch = await knowledge.batches.create(LOCAL, store_id, CreateFileBatch(file_ids=[file_id]))
    await done(knowledge, store_id, batch.id)
    assert (await knowledge.attached.get(LOCAL, store_id, file_id)).status == "completed"


async def test_other_sizes_cut_a_completed_file_again(knowledge: Knowledge) -> None:
    store_id, file_id = await store(knowledge), knowledge.uploads.put(LINES)
    await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=file_id))
    calls = len(knowledge.embedder.calls)
    same = await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=file_id, attributes={"a": 1}))
    assert (same.status, same.attributes, len(knowledge.embedder.calls)) == ("completed", {"a": 1}, calls)
    smaller = StaticChunking(static=StaticRules(max_chunk_size_tokens=100))
    again = await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=file_id, chunking_strategy=smaller))
    assert again.status == "completed"
    assert again.attributes == {"a": 1}
    assert again.chunking_strategy == StaticChunking(
        static=StaticRules(max_chunk_size_tokens=100, chunk_overlap_tokens=50)
    )
    assert len(knowledge.embedder.calls) > calls
    assert knowledge.index.numbers(file_id) == list(range(10))


async def test_deleting_a_file_takes_it_out_of_all_stores(knowledge: Knowledge) -> None:
    stores, file_id = [await store(knowledge) for _ in range(2)], knowledge.uploads.put(LINES)
    for store_id in stores:
        await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=file_id))
    await knowledge.attached.forget(ALICE, file_id)
    assert len(knowledge.index.numbers(file_id)) == 20, "it is not hers"
    await knowledge.attached.forget(LOCAL, file_id)
    assert knowledge.index.numbers(file_id) == []
    assert [(await knowledge.stores.get(LOCAL, store_id)).file_counts.total for store_id in stores] == [0, 0]


async def test_an_index_that_fails_to_drop_leaves_the_store_to_be_deleted_again(knowledge: Knowledge) -> None:
    store_id = await store(knowledge)

    def fail(operation: str) -> None:
        raise StorageFault("away")

    knowledge.index.before = fail
    with pytest.raises(StorageFault):
        await knowledge.stores.delete(LOCAL, store_id)
    knowledge.index.before = lambda _: None
    assert (await knowledge.stores.delete(LOCAL, store_id)).deleted


async def test_attributes_can_change_while_a_file_is_indexed(knowledge: Knowledge) -> None:
    store_id, file_id = await store(knowledge), knowledge.uploads.put(LINES)
    knowledge.embedder.gate = asyncio.Event()
    batch = await knowledge.batches.create(LOCAL, store_id, CreateFileBatch(file_ids=[file_id]))
    await eventually(lambda: len(knowledge.embedder.calls) == 2)
    await knowledge.attached.update(LOCAL, store_id, file_id, UpdateVectorStoreFile(attributes={"a": 1}))
    knowledge.embedder.gate.set()
    await done(knowledge, store_id, batch.id)
    file = await knowledge.attached.get(LOCAL, store_id, file_id)
    assert (file.status, file.attributes) == ("completed", {"a": 1})


@pytest.fixture
async def contextual(database: Sqlite) -> AsyncIterator[tuple[Knowledge, ScriptedModel]]:
    """Vector stores with a model that writes contexts."""
    model, router = ScriptedModel(), ModelRouter({})
    router.add(ProviderEntry("scripted", model))
    made = Knowledge(database, router)
    router.embedders[EMBEDDER] = made.embedder
    made.ingestion.start()
    yield made, model
    await made.ingestion.stop()


async def test_contexts_come_before_chunks_and_a_failing_one_leaves_its_chunk_plain(
    contextual: tuple[Knowledge, ScriptedModel], caplog: pytest.LogCaptureFixture
) -> None:
    knowledge, model = contextual
    text = "alpha {{CHUNK_CONTENT}}\nbeta"
    model.script(says("About alpha."), [UpstreamFault("the model is away")])
    chunking = ContextualChunking(contextual=ContextualRules(model_id="scripted/m", max_concurrency=1))
    store_id, file_id = await store(knowledge), knowledge.uploads.put(text)
    with caplog.at_level(logging.WARNING, "treadle.ingest"):
        file = await knowledge.attached.attach(LOCAL, store_id, AttachFile(file_id=file_id, chunking_strategy=chunking))
    assert (file.status, file.chunking_strategy) == ("completed", chunking)
    page = await knowledge.attached.content(LOCAL, store_id, file_id, start=0, embeddings=False, metadata=False)
    assert [entry.text for entry in page.data] == ["About alpha.\n\nalpha {{CHUNK_CONTENT}}", "beta"]
    assert "chunk 1 is indexed without context: the model is away" in caplog.text
    prompts = [request.messages[0].content for request in model.requests]
    assert all(isinstance(prompt, str) and prompt.count(text) == 1 for prompt in prompts)
