"""The queue of a server that is the only one on its database: workers in this process, woken without any detour."""

from __future__ import annotations

import time
from collections.abc import Callable

from treadle import ports
from treadle.jobs.workers import Pace, Workers
from treadle.ports import JobRunner, Jobs, NewJob


class LocalQueue(ports.JobQueue):
    """The `JobQueue` port in one process. At its start it takes up what an earlier one has left."""

    def __init__(self, jobs: Jobs, pace: Pace | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._workers = Workers(jobs, pace, clock=clock)

    def handle(self, kind: str, runner: JobRunner, *, workers: int) -> None:
        self._workers.handle(kind, runner, workers=workers)

    async def put(self, job: NewJob) -> None:
        if job.delay > 0:
            self._workers.wake_later(job.kind, job.delay)
        else:
            self._workers.wake(job.kind)

    async def cancel(self, job_id: str) -> None:
        await self._workers.cancel(job_id)

    async def start(self) -> None:
        await self._workers.start()

    async def stop(self) -> None:
        await self._workers.stop()
