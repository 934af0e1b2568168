"""The queue of files to index: one worker for each file, in whichever process, and none that is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.store.conftest import Another
from tests.unit.store.support import ALICE, BOB, NOW
from tests.unit.store.test_vector_stores import CUT_SMALLER, new, store
from treadle.store.db import Database
from treadle.store.ingestion import SqlIngestionQueue, release_all
from treadle.store.sqlite import Sqlite
from treadle.store.vector_files import SqlStoreFiles
from treadle.store.vector_stores import SqlVectorStores


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(database: Database, clock: Clock) -> SqlIngestionQueue:
    return SqlIngestionQueue(database, clock=clock)


@pytest.fixture
async def files(database: Database) -> SqlStoreFiles:
    await SqlVectorStores(database).create(ALICE, store())
    return SqlStoreFiles(database)


async def test_a_claim_says_for_whom_and_how_to_index(
    queue: SqlIngestionQueue, files: SqlStoreFiles, database: Database
) -> None:
    await SqlVectorStores(database).create(BOB, store("vs_2", embedding_model="other", dimensions=7, shortened=True))
    await files.attach(BOB, "vs_2", [new("b", chunking=CUT_SMALLER)])
    job = await queue.claim("mine", NOW + 60)
    assert job is not None
    assert (job.scope.tenant, job.scope.owner) == (BOB.tenant, BOB.owner)
    assert (job.collection.tenant, job.collection.store, job.collection.dimensions) == (BOB.tenant, "vs_2", 7)
    assert (job.file, job.filename, job.embedding_model, job.shortened) == ("b", "b.txt", "other", True)
    assert (job.chunking, job.claim, job.attempt) == (CUT_SMALLER, "mine", 1)


async def test_processes_that_ask_at_once_never_get_the_same_file(
    queue: SqlIngestionQueue, files: SqlStoreFiles, another: Another, clock: Clock
) -> None:
    await files.attach(ALICE, "vs_1", [new(f"f{number:02}") for number in range(20)])
    queues = [queue, SqlIngestionQueue(await another(), clock=clock)]
    jobs = await asyncio.gather(*(queues[n % 2].claim(f"c{n}", NOW + 60) for n in range(30)))
    claimed = [job.file for job in jobs if job is not None]
    assert sorted(claimed) == [f"f{number:02}" for number in range(20)]


async def test_a_lease_that_ran_out_gives_the_file_to_the_next_and_fences_off_the_first(
    queue: SqlIngestionQueue, files: SqlStoreFiles, clock: Clock
) -> None:
    await files.attach(ALICE, "vs_1", [new("a")])
    first = await queue.claim("first", NOW + 60)
    assert first is not None
    assert await queue.claim("second", NOW + 60) is None
    assert await queue.renew(ALICE, first, NOW + 120, chunks=4)
    row = await files.get(ALICE, "vs_1", "a")
    assert row is not None
    assert row.chunks == 4

    clock.now = NOW + 121
    second = await queue.claim("second", NOW + 200)
    assert second is not None
    assert second.attempt == 2
    assert not await queue.renew(ALICE, first, NOW + 300, 5)
    assert not await queue.complete(ALICE, first, 10, 5)
    assert not await queue.fail(ALICE, first, "server_error", "x")
    assert not await queue.abandoned(ALICE, first), "the second one works on it: its chunks must stay"
    assert await queue.complete(ALICE, second, 10, 5)


async def test_a_file_given_back_is_free_at_once_and_does_not_count_as_tried(
    queue: SqlIngestionQueue, files: SqlStoreFiles
) -> None:
    await files.attach(ALICE, "vs_1", [new("a")])
    for _ in range(3):
        job = await queue.claim("one", NOW + 60)
        assert job is not None
        assert job.attempt == 1
        await queue.release(ALICE, job)


async def test_a_process_that_starts_alone_takes_up_at_once_what_a_dead_one_held(path: Path) -> None:
    database = Sqlite(path)
    await database.start()
    await SqlVectorStores(database).create(ALICE, store())
    await SqlStoreFiles(database).attach(ALICE, "vs_1", [new("a")])
    assert await SqlIngestionQueue(database, clock=lambda: NOW).claim("dead", NOW + 60) is not None
    await database.close()
    again = Sqlite(path, recover=release_all)
    await again.start()
    job = await SqlIngestionQueue(again, clock=lambda: NOW).claim("alive", NOW + 60)
    await again.close()
    assert job is not None
    assert job.attempt == 2


async def test_cutting_in_another_way_ends_the_claim_on_the_first_way(
    queue: SqlIngestionQueue, files: SqlStoreFiles
) -> None:
    await files.attach(ALICE, "vs_1", [new("a")])
    first = await queue.claim("first", NOW + 60)
    assert first is not None
    await files.attach(ALICE, "vs_1", [new("a", attributes={"x": 1})])
    assert await queue.renew(ALICE, first, NOW + 60, 1), "new attributes are no new work"
    await files.attach(ALICE, "vs_1", [new("a", chunking=CUT_SMALLER)])
    assert not await queue.renew(ALICE, first, NOW + 60, 1)
    second = await queue.claim("second", NOW + 60)
    assert second is not None
    assert second.chunking == CUT_SMALLER
