"""Rows of vector stores, their files and batches: who sees them, how they page, what attaching again does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.store.support import ALICE, NOW, STRANGERS
from treadle.errors import InvalidRequest
from treadle.ports import (
    FileBatchRow,
    NewStoreFile,
    ReadyDocument,
    StatusCounts,
    StoreChanges,
    StoreFileRow,
    VectorStoreRow,
)
from treadle.scope import Scope
from treadle.store.db import Database
from treadle.store.ingestion import SqlIngestionQueue
from treadle.store.vector_files import SqlStoreFiles
from treadle.store.vector_stores import SqlVectorStores
from treadle.wire.vector_stores import StaticChunking, StaticRules

CUT = StaticChunking(static=StaticRules(max_chunk_size_tokens=800, chunk_overlap_tokens=400))
CUT_SMALLER = StaticChunking(static=StaticRules(max_chunk_size_tokens=100, chunk_overlap_tokens=0))


@pytest.fixture
def stores(database: Database) -> SqlVectorStores:
    return SqlVectorStores(database)


@pytest.fixture
def files(database: Database) -> SqlStoreFiles:
    return SqlStoreFiles(database)


@pytest.fixture
def queue(database: Database) -> SqlIngestionQueue:
    return SqlIngestionQueue(database, clock=lambda: NOW)


def store(name: str = "vs_1", **more: object) -> VectorStoreRow:
    fields: dict[str, object] = {"created_at": NOW, "last_active_at": NOW, "embedding_model": "m", "dimensions": 3}
    return VectorStoreRow(id=name, **(fields | more))  # type: ignore[arg-type]


def new(name: str, *, created_at: int = NOW, **more: object) -> NewStoreFile:
    fields: dict[str, object] = {"filename": f"{name}.txt", "chunking": CUT}
    return NewStoreFile(file=name, created_at=created_at, **(fields | more))  # type: ignore[arg-type]


async def names(
    files: SqlStoreFiles, scope: Scope = ALICE, store_id: str = "vs_1", **more: object
) -> tuple[list[str], bool]:
    given: dict[str, object] = {"status": None, "after": None, "before": None, "limit": 20, "order": "asc"}
    page = await files.page(scope, store_id, **(given | more))  # type: ignore[arg-type]
    return [row.file for row in page.files], page.has_more


async def finish(queue: SqlIngestionQueue, count: int = 1) -> list[str]:
    """Completes the files that have waited longest."""
    done = []
    for number in range(count):
        job = await queue.claim(f"claim_{number}", NOW + 60)
        assert job is not None
        assert await queue.complete(job.scope, job, usage_bytes=10, chunks=2)
        done.append(job.file)
    return done


async def test_a_store_comes_back_as_it_was_made_and_strangers_do_not_see_it(stores: SqlVectorStores) -> None:
    row = store(name="vs_1", description="d", metadata={"a": "b"}, expires_days=3, shortened=True)
    await stores.create(ALICE, row)
    found = await stores.get(ALICE, "vs_1")
    assert found is not None
    assert (found.row, found.counts, found.usage_bytes) == (row, StatusCounts(), 0)
    for stranger in STRANGERS:
        assert await stores.get(stranger, "vs_1") is None
        assert await stores.find(stranger, ["vs_1"]) == {}
        assert await stores.update(stranger, "vs_1", StoreChanges(name="theirs", last_active_at=NOW)) is None
        assert not await stores.delete(stranger, "vs_1")
    assert await stores.find(ALICE, ["vs_1", "vs_2", "it's\0"]) == {"vs_1": row}


async def test_stores_page_in_both_directions_and_a_cursor_of_nobody_is_refused(stores: SqlVectorStores) -> None:
    for number in range(5):
        await stores.create(ALICE, store(f"vs_{number}", created_at=NOW + number // 2))

    async def page(
        *, after: str | None = None, before: str | None = None, limit: int = 2, order: str = "desc"
    ) -> tuple[list[str], bool]:
        found = await stores.page(ALICE, after=after, before=before, limit=limit, order=order)  # type: ignore[arg-type]
        return [one.row.id for one in found.stores], found.has_more

    assert await page() == (["vs_4", "vs_3"], True)
    assert await page(after="vs_3") == (["vs_2", "vs_1"], True)
    assert await page(after="vs_1") == (["vs_0"], False)
    assert await page(before="vs_1") == (["vs_3", "vs_2"], True)
    assert await page(before="vs_3") == (["vs_4"], False)
    assert await page(after="vs_4", before="vs_1", limit=9) == (["vs_3", "vs_2"], False)
    assert await page(order="asc", limit=9) == ([f"vs_{number}" for number in range(5)], False)
    for cursor in ("vs_9", "it's", ""):
        with pytest.raises(InvalidRequest) as refused:
            await page(after=cursor)
        assert refused.value.param == "after"


async def test_an_update_changes_what_it_names_and_can_take_the_expiry_away(stores: SqlVectorStores) -> None:
    await stores.create(ALICE, store(name="vs_1", metadata={"a": "b"}, expires_days=3))
    found = await stores.update(ALICE, "vs_1", StoreChanges(name="new", last_active_at=NOW + 5))
    assert found is not None
    assert (found.row.name, found.row.metadata, found.row.expires_days) == ("new", {"a": "b"}, 3)
    assert found.row.last_active_at == NOW + 5
    found = await stores.update(ALICE, "vs_1", StoreChanges(metadata={}, expires_days=None, last_active_at=NOW))
    assert found is not None
    assert (found.row.name, found.row.metadata, found.row.expires_days) == ("new", {}, None)


async def test_counts_and_usage_follow_the_files(
    stores: SqlVectorStores, files: SqlStoreFiles, queue: SqlIngestionQueue
) -> None:
    await stores.create(ALICE, store())
    await files.attach(ALICE, "vs_1", [new("a"), new("b"), new("c"), new("d", error=("invalid_file", "gone"))])
    await finish(queue, 2)
    found = await stores.get(ALICE, "vs_1")
    assert found is not None
    assert found.counts == StatusCounts(in_progress=1, completed=2, failed=1)
    assert found.usage_bytes == 20
    page = await stores.page(ALICE, after=None, before=None, limit=20, order="desc")
    assert page.stores == [found]


async def test_the_version_rises_with_every_change_that_searches_can_see(
    stores: SqlVectorStores, files: SqlStoreFiles, queue: SqlIngestionQueue
) -> None:
    await stores.create(ALICE, store())

    async def version() -> int:
        return (await stores.find(ALICE, ["vs_1"]))["vs_1"].version

    await files.attach(ALICE, "vs_1", [new("a"), new("b")])
    seen = [await version()]
    await finish(queue)
    seen.append(await version())
    await files.set_attributes(ALICE, "vs_1", "a", {"x": 1})
    seen.append(await version())
    await files.attach(ALICE, "vs_1", [new("a", attributes={"x": 2})])
    seen.append(await version())
    await files.detach(ALICE, "vs_1", "a")
    seen.append(await version())
    assert seen == sorted(set(seen))


async def test_attributes_keep_their_types_and_only_completed_files_are_searchable(
    stores: SqlVectorStores, files: SqlStoreFiles, queue: SqlIngestionQueue
) -> None:
    await stores.create(ALICE, store())
    attributes = {"whole": 1, "number": 1.0, "flag": True, "text": "1", "it's": "a 'quote'", "nul": "\0"}
    await files.attach(ALICE, "vs_1", [new("a", attributes=attributes)])
    assert await stores.searchable(ALICE, "vs_1") == []
    await finish(queue)
    (found,) = await stores.searchable(ALICE, "vs_1")
    assert (found.file, found.shown, found.filename) == ("a", "a", "a.txt")
    assert found.attributes == attributes
    assert {key: type(value) for key, value in found.attributes.items()} == {
        key: type(value) for key, value in attributes.items()
    }
    assert [await stores.searchable(stranger, "vs_1") for stranger in STRANGERS] == [[], []]


async def test_files_of_a_store_are_nobody_elses(stores: SqlVectorStores, files: SqlStoreFiles) -> None:
    await stores.create(ALICE, store())
    await files.attach(ALICE, "vs_1", [new("a")], FileBatchRow(id="vsfb_1", store="vs_1", created_at=NOW))
    for stranger in STRANGERS:
        assert await files.attach(stranger, "vs_1", [new("b")]) is None
        assert await files.get(stranger, "vs_1", "a") is None
        assert await names(files, stranger) == ([], False)
        assert await files.set_attributes(stranger, "vs_1", "a", {"x": 1}) is None
        assert not await files.detach(stranger, "vs_1", "a")
        assert await files.holders(stranger, "a") == []
        assert await files.batch(stranger, "vs_1", "vsfb_1") is None
        assert await files.cancel_batch(stranger, "vs_1", "vsfb_1") is None
        assert not await files.add_ready(stranger, "vs_1", [])
    assert await names(files) == (["a"], False)


async def test_a_filtered_list_pages_past_a_cursor_that_no_longer_matches(
    stores: SqlVectorStores, files: SqlStoreFiles, queue: SqlIngestionQueue
) -> None:
    await stores.create(ALICE, store())
    await files.attach(ALICE, "vs_1", [new(name, created_at=NOW + at) for at, name in enumerate("abcde")])
    first = await names(files, status="in_progress", limit=2)
    assert first == (["a", "b"], True)
    await finish(queue, 2)
    assert await names(files, status="in_progress", limit=2, after="b") == (["c", "d"], True)
    assert await names(files, status="in_progress", limit=2, before="c") == ([], False)
    assert await names(files, status="completed") == (["a", "b"], False)
    with pytest.raises(InvalidRequest) as refused:
        await names(files, after="nobody")
    assert refused.value.param == "after"


async def attach(files: SqlStoreFiles, wanted: NewStoreFile) -> StoreFileRow:
    rows = await files.attach(ALICE, "vs_1", [wanted])
    assert rows is not None
    return rows[0]


async def test_attaching_again_changes_attributes_and_indexes_again_only_what_needs_it(
    stores: SqlVectorStores, files: SqlStoreFiles, queue: SqlIngestionQueue
) -> None:
    await stores.create(ALICE, store())
    await attach(files, new("a", attributes={"x": 1}))
    await finish(queue)

    same = await attach(files, new("a", created_at=NOW + 9))
    assert (same.status, same.attributes, same.usage_bytes, same.created_at) == ("completed", {"x": 1}, 10, NOW)
    other = await attach(files, new("a", attributes={"x": 2}))
    assert (other.status, other.attributes) == ("completed", {"x": 2})
    cut = await attach(files, new("a", chunking=CUT_SMALLER))
    assert (cut.status, cut.attributes, cut.usage_bytes) == ("in_progress", {"x": 2}, 0)
    assert await stores.searchable(ALICE, "vs_1") == []

    job = await queue.claim("first", NOW + 60)
    assert job is not None
    assert await queue.fail(ALICE, job, "server_error", "the model is away")
    failed = await files.get(ALICE, "vs_1", "a")
    assert failed is not None
    assert (failed.status, failed.error) == ("failed", ("server_error", "the model is away"))
    again = await attach(files, new("a", chunking=CUT_SMALLER))
    assert (again.status, again.error) == ("in_progress", None)
    assert await finish(queue) == ["a"]


async def test_a_batch_counts_its_files_and_cancelling_stops_what_is_not_done(
    stores: SqlVectorStores, files: SqlStoreFiles, queue: SqlIngestionQueue
) -> None:
    await stores.create(ALICE, store())
    await files.attach(ALICE, "vs_1", [new("other")])
    batch = FileBatchRow(id="vsfb_1", store="vs_1", created_at=NOW)
    await files.attach(ALICE, "vs_1", [new(name) for name in ("a", "b", "b", "c")], batch)
    assert await finish(queue) == ["a"]
    running = await queue.claim("running", NOW + 60)
    assert running is not None
    assert running.file == "b"

    found = await files.batch(ALICE, "vs_1", "vsfb_1")
    assert found is not None
    assert found.counts == StatusCounts(in_progress=2, completed=1)
    assert await names(files, batch="vsfb_1") == (["a", "b", "c"], False)
    assert sorted(await files.cancel_batch(ALICE, "vs_1", "vsfb_1") or ()) == ["b", "c"]
    found = await files.batch(ALICE, "vs_1", "vsfb_1")
    assert found is not None
    assert (found.cancelled, found.counts) == (True, StatusCounts(completed=1, cancelled=2))
    assert not await queue.renew(ALICE, running, NOW + 99, 1)
    assert not await queue.complete(ALICE, running, 10, 1)
    assert await queue.abandoned(ALICE, running)
    assert await finish(queue) == ["other"]


async def test_deleting_a_store_takes_rows_and_batches_with_it_and_ends_claims(
    stores: SqlVectorStores, files: SqlStoreFiles, queue: SqlIngestionQueue
) -> None:
    await stores.create(ALICE, store())
    await stores.create(ALICE, store("vs_2"))
    batch = FileBatchRow(id="vsfb_1", store="vs_1", created_at=NOW)
    await files.attach(ALICE, "vs_1", [new("a")], batch)
    await files.attach(ALICE, "vs_2", [new("a", created_at=NOW + 1)])
    job = await queue.claim("one", NOW + 60)
    assert job is not None
    assert job.collection.store == "vs_1"
    assert await stores.delete(ALICE, "vs_1")
    assert await files.batch(ALICE, "vs_1", "vsfb_1") is None
    assert not await queue.complete(ALICE, job, 10, 1)
    assert await queue.abandoned(ALICE, job)
    assert [row.id for row in await files.holders(ALICE, "a")] == ["vs_2"]


async def test_chunks_that_came_with_vectors_are_searchable_and_no_files(
    stores: SqlVectorStores, files: SqlStoreFiles
) -> None:
    await stores.create(ALICE, store())

    def ready(name: str, **attributes: str) -> Sequence[ReadyDocument]:
        fields = {"document": "doc", "filename": "doc", "usage_bytes": 7, "created_at": NOW}
        return [ReadyDocument(file=name, attributes={**attributes}, **fields)]  # type: ignore[arg-type]

    assert await files.add_ready(ALICE, "vs_1", ready("#1", topic="old"))
    assert await files.add_ready(ALICE, "vs_1", ready("#1", topic="new"))
    found = await stores.get(ALICE, "vs_1")
    assert found is not None
    assert (found.counts, found.usage_bytes) == (StatusCounts(), 7)
    assert await names(files) == ([], False)
    (searchable,) = await stores.searchable(ALICE, "vs_1")
    assert (searchable.file, searchable.shown, searchable.attributes) == ("#1", "doc", {"topic": "new"})
