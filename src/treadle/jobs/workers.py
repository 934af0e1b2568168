"""The workers of one process: they claim jobs that are due, run them, keep their claims, and give back what is left.

The rows are the truth. A worker may vanish at any moment; whoever claims its job next decides what that means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from treadle import ports
from treadle.errors import ClaimLost, StorageFault
from treadle.ids import new_id
from treadle.ports import Ending, Job, JobRunner, Jobs, TryLater

log = logging.getLogger("treadle.jobs")

LEASE_SECONDS = 30
STOP_SECONDS = 10.0
"""How long a runner may take to end once it was told to."""
_LONGEST_WAIT = 300.0
"""Seconds until a job whose runner keeps failing is tried again, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`poll`: seconds between looks for jobs that nobody here was told of. `watch`: seconds between renewals of the
    claims, which is also when it is noticed that another process wants a job cancelled."""

    poll: float = 5.0
    watch: float = 10.0


class Doing(ports.Work):
    """A job that is being done here."""

    def __init__(self, job: Job, jobs: Jobs) -> None:
        self.job = job
        self.ending: Ending | None = None
        self.gone = False
        self.over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self._jobs = jobs

    async def note_acted(self) -> None:
        if not self.job.acted:
            await self._jobs.note_acted(self.job.scope, self.job)
            self.job = replace(self.job, acted=True)

    def end(self, ending: Ending) -> None:
        if self.ending is not None or self.task is None or self.task.done():
            return
        if ending == "cancelled" and not self.begun:
            # A task that is cancelled before its first step never runs, and the runner is to write what became of it.
            self.job = replace(self.job, cancelled=True)
            return
        self.ending = ending
        self.task.cancel()


@dataclass(slots=True)
class _Crew:
    """Those who do the jobs of one kind."""

    kind: str
    runner: JobRunner
    workers: int
    busy: int = 0
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while not all are busy."""

    def took(self, count: int) -> None:
        self.busy += count
        if self.busy < self.workers:
            self.room.set()
        else:
            self.room.clear()


class Workers:
    """`start` and `stop` belong to one event loop."""

    def __init__(self, jobs: Jobs, pace: Pace | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._jobs = jobs
        self._pace = pace or Pace()
        self._clock = clock
        self._crews: dict[str, _Crew] = {}
        self._doing: dict[str, Doing] = {}
        self._dispatchers: list[asyncio.Task[None]] = []
        self._watcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._claiming = 0
        self._early: set[str] = set()
        """Jobs that were cancelled while claims were on their way, perhaps for them."""

    def handle(self, kind: str, runner: JobRunner, *, workers: int) -> None:
        crew = self._crews[kind] = _Crew(kind, runner, workers)
        crew.took(0)

    async def start(self) -> None:
        crews = [crew for crew in self._crews.values() if crew.workers]
        self._dispatchers = [
            asyncio.create_task(self._dispatch(crew), name=f"treadle-jobs-{crew.kind}") for crew in crews
        ]
        self._watcher = asyncio.create_task(self._watch(), name="treadle-jobs-watch")

    async def stop(self) -> None:
        """Claims no more, and has what is being done given back or ended."""
        self._stopping = True
        for crew in self._crews.values():
            crew.woken.set()
        await asyncio.gather(*self._dispatchers, return_exceptions=True)
        for doing in list(self._doing.values()):
            doing.end("stopping")
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def wake(self, kind: str) -> None:
        if (crew := self._crews.get(kind)) is not None:
            crew.woken.set()

    def wake_later(self, kind: str, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake, kind)

    async def cancel(self, job_id: str) -> None:
        """Ends work on a job here, if it is done here. Returns when that is over, or takes too long."""
        doing = self._doing.get(job_id)
        if doing is None:
            if self._claiming:
                self._early.add(job_id)
            return
        doing.end("cancelled")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await doing.over.wait()
        except TimeoutError:
            log.warning("%s did not end when it was told to", job_id)

    async def do(self, kind: str, job_id: str) -> None:
        """Does this job, once somebody has time for it, if it is still to be done. Returns when that is over."""
        crew = self._crews[kind]
        await crew.room.wait()
        if await self._take_up(crew, 1, job_id) and (doing := self._doing.get(job_id)) is not None:
            await doing.over.wait()

    # ---------------------------------------------------------------------------------------- claiming

    async def _dispatch(self, crew: _Crew) -> None:
        while not self._stopping:
            crew.woken.clear()
            free = crew.workers - crew.busy
            if free and await self._take_up(crew, free) == free:
                continue  # there may be more, for whoever is done by now
            try:
                async with asyncio.timeout(self._pace.poll):
                    await crew.woken.wait()
            except TimeoutError:
                continue

    async def _take_up(self, crew: _Crew, free: int, job_id: str | None = None) -> int:
        if self._stopping:
            return 0
        self._claiming += 1
        crew.took(free)
        unused = free
        try:
            claimed = await self._jobs.claim(crew.kind, new_id("claim"), self._lease(), free, job_id=job_id)
            for job in claimed:
                unused -= 1
                task = asyncio.create_task(self._do(crew, job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(0)  # now they have begun, and can be cancelled
            return len(claimed)
        except StorageFault as fault:
            log.warning("jobs have to wait: %s", fault.message)
        except Exception:
            log.exception("claiming jobs failed in a way that it should not")
        finally:
            crew.took(-unused)
            self._claiming -= 1
            if not self._claiming:
                self._early.clear()
        return 0

    def _lease(self) -> int:
        return int(self._clock()) + LEASE_SECONDS

    # ------------------------------------------------------------------------------------------- doing

    async def _do(self, crew: _Crew, job: Job) -> None:
        if job.id in self._early:
            job = replace(job, cancelled=True)
        doing = self._doing[job.id] = Doing(job, self._jobs)
        try:
            if self._stopping:
                await self._jobs.release(job.scope, job, counted=False)
            else:
                doing.task = asyncio.create_task(_begun(crew.runner, doing))
                await asyncio.wait((doing.task,))
                await self._conclude(crew, doing, doing.task)
        except StorageFault as fault:
            log.warning("%s %s stays claimed until its lease ends: %s", job.kind, job.id, fault.message)
        except asyncio.CancelledError:
            if doing.task is not None:
                doing.task.cancel()
            raise
        finally:
            if self._doing.get(job.id) is doing:
                del self._doing[job.id]
            crew.took(-1)
            crew.woken.set()
            doing.over.set()

    async def _conclude(self, crew: _Crew, doing: Doing, task: asyncio.Task[None]) -> None:
        """What becomes of the row. StorageFault if that cannot be written."""
        job = doing.job
        error = None if task.cancelled() else task.exception()
        if doing.gone or doing.ending == "lost" or isinstance(error, ClaimLost):
            return
        if task.cancelled() and doing.ending != "cancelled":
            await self._jobs.release(job.scope, job, counted=False)
        elif error is None:
            await self._jobs.finish(job.scope, job)
        else:
            seconds, counted = _pause(job, error), True
            if isinstance(error, TryLater):
                seconds, counted = error.seconds, error.counted
            await self._jobs.release(job.scope, job, delay=seconds, counted=counted)
            self.wake_later(crew.kind, seconds + 0.01)

    # ------------------------------------------------------------------------------------------ claims

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._pace.watch)
            doing = list(self._doing.values())
            if not doing:
                continue
            try:
                kept = await self._jobs.renew([one.job for one in doing], self._lease())
            except StorageFault as fault:
                log.warning("claims of jobs could not be renewed: %s", fault.message)
                continue
            except Exception:
                log.exception("renewing claims failed in a way that it should not")
                continue
            for one in doing:
                if kept.get(one.job.id) is None:
                    one.end("lost")
                elif kept[one.job.id]:
                    one.end("cancelled")


async def _begun(runner: JobRunner, doing: Doing) -> None:
    doing.begun = True
    await runner(doing)


def _pause(job: Job, error: BaseException) -> float:
    """Says why a runner failed; seconds until it is tried again."""
    if isinstance(error, StorageFault):
        log.warning("%s %s is tried again: %s", job.kind, job.id, error.message)
    elif not isinstance(error, TryLater):
        log.error("%s %s failed in a way that it should not", job.kind, job.id, exc_info=error)
    return min(2.0 ** min(job.attempts, 10) / 2, _LONGEST_WAIT)
