"""Workers of one process: how many, what becomes of a job whose runner returns, raises or is told to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.unit.store.on_sqlite import database, migrated, path
from tests.unit.store.support import ALICE
from treadle.errors import StorageFault
from treadle.jobs.local import LocalQueue
from treadle.jobs.workers import Pace
from treadle.ports import NewJob, TryLater, Work
from treadle.store.db import Database
from treadle.store.jobs import SqlJobs

__all__ = ["database", "migrated", "path"]

Begin = Callable[..., Awaitable[LocalQueue]]


@pytest.fixture
def jobs(database: Database) -> SqlJobs:
    return SqlJobs(database)


@pytest.fixture
async def begin(jobs: SqlJobs) -> AsyncIterator[Begin]:
    """Starts a queue with one kind of jobs."""
    started: list[LocalQueue] = []

    async def start(runner: Callable[[Work], Awaitable[None]], *, workers: int = 1) -> LocalQueue:
        queue = LocalQueue(jobs, Pace(poll=0.05, watch=0.05))
        queue.handle("x", runner, workers=workers)  # type: ignore[arg-type] # a function is a runner
        await queue.start()
        started.append(queue)
        return queue

    yield start
    for queue in started:
        await queue.stop()


async def put(jobs: SqlJobs, queue: LocalQueue, *ids: str) -> None:
    for name in ids:
        job = NewJob(id=name, kind="x")
        await jobs.put(ALICE, job)
        await queue.put(job)


async def gone(jobs: SqlJobs, name: str) -> None:
    async with asyncio.timeout(10):
        while await jobs.cancel(ALICE, name) is not None:
            await asyncio.sleep(0.01)


class Recorder:
    """A runner that notes what it did, and how it was ended. Every job waits for `gate`."""

    def __init__(self, *, open_gate: bool = False) -> None:
        self.begun: list[str] = []
        self.ended: list[str | None] = []
        self.most = 0
        self.arrived, self.gate = asyncio.Event(), asyncio.Event()
        self._now = 0
        if open_gate:
            self.gate.set()

    async def __call__(self, work: Work) -> None:
        self.begun.append(work.job.id)
        self._now += 1
        self.most = max(self.most, self._now)
        self.arrived.set()
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.ended.append(work.ending)
            raise
        finally:
            self._now -= 1


async def test_no_more_than_the_workers_run_and_all_are_done(jobs: SqlJobs, begin: Begin) -> None:
    runner = Recorder(open_gate=True)
    queue = await begin(runner, workers=3)
    names = [f"j{number}" for number in range(20)]
    await put(jobs, queue, *names)
    async with asyncio.timeout(10):
        while len(runner.begun) < 20:
            await asyncio.sleep(0.01)
    assert sorted(runner.begun) == sorted(names)
    assert 1 <= runner.most <= 3


async def test_what_nobody_was_told_of_is_found(jobs: SqlJobs, begin: Begin) -> None:
    runner = Recorder(open_gate=True)
    await begin(runner)
    await jobs.put(ALICE, NewJob(id="quiet", kind="x"))
    async with asyncio.timeout(10):
        await runner.arrived.wait()
    assert runner.begun == ["quiet"]


@pytest.mark.parametrize("fault", [TryLater(0.01), StorageFault("The disk is full."), ValueError("a bug")])
async def test_a_runner_that_raises_is_called_again(jobs: SqlJobs, begin: Begin, fault: Exception) -> None:
    attempts: list[int] = []

    async def run(work: Work) -> None:
        attempts.append(work.job.attempts)
        if len(attempts) == 1:
            raise fault

    queue = await begin(run)
    await put(jobs, queue, "j")
    async with asyncio.timeout(10):
        while len(attempts) < 2:
            await asyncio.sleep(0.01)
    assert attempts == [1, 2]


async def test_a_cancel_ends_the_work_and_returns_afterwards(jobs: SqlJobs, begin: Begin) -> None:
    runner = Recorder()
    queue = await begin(runner)
    await put(jobs, queue, "j")
    async with asyncio.timeout(10):
        await runner.arrived.wait()
        assert await jobs.cancel(ALICE, "j") is True
        await queue.cancel("j")
    assert runner.ended == ["cancelled"]
    assert await jobs.cancel(ALICE, "j") is None


async def test_a_mark_of_another_process_is_noticed(jobs: SqlJobs, begin: Begin) -> None:
    runner = Recorder()
    queue = await begin(runner)
    await put(jobs, queue, "j")
    async with asyncio.timeout(10):
        await runner.arrived.wait()
        await jobs.cancel(ALICE, "j")
        while not runner.ended:
            await asyncio.sleep(0.01)
    assert runner.ended == ["cancelled"]


async def test_a_claim_that_was_lost_ends_the_work_and_leaves_the_row(
    jobs: SqlJobs, begin: Begin, database: Database
) -> None:
    runner = Recorder()
    queue = await begin(runner)
    await put(jobs, queue, "j")
    async with asyncio.timeout(10):
        await runner.arrived.wait()
        await database.write(lambda c: c.change("UPDATE jobs SET claim = 'another', lease = ?", (1 << 40,)))
        while not runner.ended:
            await asyncio.sleep(0.01)
    assert runner.ended == ["lost"]
    assert await jobs.cancel(ALICE, "j") is True


async def test_what_runs_when_the_process_stops_is_given_back(jobs: SqlJobs, begin: Begin) -> None:
    runner = Recorder()
    queue = await begin(runner)
    await put(jobs, queue, "j", "waits")
    async with asyncio.timeout(10):
        await runner.arrived.wait()
        await queue.stop()
    assert runner.ended == ["stopping"]
    found = await jobs.claim("x", "next", 1 << 40, 5)
    assert [(one.id, one.attempts) for one in found] == [("j", 1), ("waits", 1)]


async def test_a_job_cancelled_at_any_moment_of_its_beginning_is_seen_by_its_runner(
    jobs: SqlJobs, begin: Begin
) -> None:
    seen: list[bool] = []

    async def run(work: Work) -> None:
        if work.job.cancelled:
            seen.append(True)
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(work.ending == "cancelled")
            raise

    queue = await begin(run, workers=4)
    for number in range(40):
        name = f"j{number}"
        await put(jobs, queue, name)
        for _ in range(number % 7):
            await asyncio.sleep(0)
        if await jobs.cancel(ALICE, name):
            await queue.cancel(name)
        await gone(jobs, name)
    assert seen == [True] * 40
