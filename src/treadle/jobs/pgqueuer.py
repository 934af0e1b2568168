"""The queue of servers that share a Postgres: PgQueuer hands each job to one process that has time for it.

PgQueuer's own rows only wake: losing one costs a moment, until a periodic look finds the job, and having one twice
costs nothing, because the job has to be claimed. So its tables need not survive a crash of the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import psycopg
from pgqueuer import Job as Wake
from pgqueuer import PsycopgDriver, Queries, QueueManager
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment, QueryQueueBuilder, QuerySchedulerBuilder
from pgqueuer.domain.settings import DBSettings, Durability
from pgqueuer.types import Channel

from treadle import ports
from treadle.jobs.workers import Pace, Workers
from treadle.ports import JobRunner, Jobs, NewJob

log = logging.getLogger("treadle.jobs")

PACE = Pace(poll=5.0, watch=2.0)
_CANCELS = "treadle_cancel"
_AGAIN_SECONDS = 2.0
_READY_SECONDS = 5.0
"""How long a process waits for the engine before it begins without."""
_SILENCE = timedelta(seconds=20)
"""After which another process is handed the job of one that gives no sign of life."""


class _Driver(PsycopgDriver):
    """Statements on a connection of their own: psycopg's listening one is busy for as long as nothing is heard. Each
    manager needs a driver of its own too, since of several on one only one is woken."""

    def __init__(self, listening: psycopg.AsyncConnection, asking: psycopg.AsyncConnection) -> None:
        super().__init__(listening)
        self._asking = PsycopgDriver(asking)

    async def fetch(self, query: str, *args: object) -> list[dict[str, object]]:
        return await self._asking.fetch(query, *args)

    async def execute(self, query: str, *args: object) -> str:
        return await self._asking.execute(query, *args)


class PgQueue(ports.JobQueue):
    """The `JobQueue` port over a Postgres at `url`. As long as that cannot be reached, jobs are found by looking."""

    def __init__(
        self, jobs: Jobs, url: str, schema: str, pace: Pace = PACE, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._workers = Workers(jobs, pace, clock=clock)
        self._url = url
        self._settings = DBSettings(db_schema=schema, prefix="", durability=Durability.volatile)
        self._crews: dict[str, int] = {}
        self._queries: Queries | None = None
        self._managers: list[QueueManager] = []
        self._keeper: asyncio.Task[None] | None = None
        self._cancels: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()

    def handle(self, kind: str, runner: JobRunner, *, workers: int) -> None:
        self._workers.handle(kind, runner, workers=workers)
        self._crews[kind] = workers

    async def put(self, job: NewJob) -> None:
        queries = self._queries
        try:
            if queries is not None:
                delay = timedelta(seconds=job.delay) if job.delay > 0 else None
                await queries.enqueue(job.kind, job.id.encode(), execute_after=delay)
                return
        except Exception as error:  # noqa: BLE001 -- whatever the engine raises: the job is there, and is found
            log.warning("workers could not be told of %s, and find it by looking: %r", job.id, error)
        self._workers.wake(job.kind)

    async def cancel(self, job_id: str) -> None:
        queries = self._queries
        try:
            if queries is not None:
                await queries.driver.notify(_CANCELS, job_id)
        except Exception as error:  # noqa: BLE001 -- whoever works on it sees its mark
            log.warning("workers could not be told that %s is cancelled: %r", job_id, error)
        await self._workers.cancel(job_id)

    async def start(self) -> None:
        await self._workers.start()
        self._keeper = asyncio.create_task(self._keep(), name="treadle-pgqueuer")
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            log.warning("the queue of jobs is not there yet; jobs are found by looking")

    async def stop(self) -> None:
        for manager in self._managers:
            manager.shutdown.set()
        await self._workers.stop()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    # ------------------------------------------------------------------------------------- the engine

    async def _keep(self) -> None:
        while True:
            try:
                async with await self._connect() as asking:
                    await self._serve(asking)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 -- the database is away, or the engine has a fault
                log.warning("the queue of jobs was interrupted and is taken up again: %r", error)
            finally:
                self._queries = None
                self._managers = []
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _connect(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, application_name="treadle", connect_timeout=5, keepalives_idle=15
        )

    async def _serve(self, asking: psycopg.AsyncConnection) -> None:
        queries = self._on(PsycopgDriver(asking))
        await _install(queries)
        self._queries = queries
        self._ready.set()
        kinds = {kind: workers for kind, workers in self._crews.items() if workers}
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for kind, workers in kinds.items():
                listening = await stack.enter_async_context(await self._connect())
                manager = self._manager(self._on(_Driver(listening, asking)), kind)
                self._managers.append(manager)
                await manager.queries.driver.add_listener(_CANCELS, self._cancelled)
                group.create_task(_run(manager, workers))
            if not kinds:
                await asyncio.Event().wait()

    def _on(self, driver: PsycopgDriver) -> Queries:
        settings = self._settings
        return Queries(
            driver,
            qbe=QueryBuilderEnvironment(settings),
            qbq=QueryQueueBuilder(settings),
            qbs=QuerySchedulerBuilder(settings),
        )

    def _manager(self, queries: Queries, kind: str) -> QueueManager:
        manager = QueueManager(queries, channel=Channel(self._settings.channel))

        @manager.entrypoint(kind)
        async def do(wake: Wake) -> None:
            await self._workers.do(kind, (wake.payload or b"").decode())

        return manager

    def _cancelled(self, payload: str | bytes | bytearray) -> None:
        job_id = payload if isinstance(payload, str) else bytes(payload).decode()
        task = asyncio.create_task(self._workers.cancel(job_id))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)


async def _run(manager: QueueManager, workers: int) -> None:
    """Takes no more than there are workers, so that the rest is left for other processes."""
    batch = max(1, workers // 2)
    await manager.run(batch_size=batch, max_concurrent_tasks=max(workers, 2 * batch), heartbeat_timeout=_SILENCE)


async def _install(queries: Queries) -> None:
    """Makes or updates the engine's tables; one process at a time."""
    async with queries.schema_lock():
        if not await queries.schema_is_installed():
            await queries.install(create_schema=False)
            return
    await queries.upgrade()
