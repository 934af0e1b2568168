"""Wires background responses, and removes event logs whose time is up."""

from __future__ import annotations

import asyncio
import logging

from treadle.api.background import KIND, BackgroundRules, BackgroundService, Notices, none
from treadle.api.background_run import BackgroundRun
from treadle.api.event_writer import EventWriter
from treadle.api.responses import ResponseService
from treadle.api.tasks import Tasks
from treadle.errors import ServerError
from treadle.ports import JobQueue, Jobs, Responses, Sealer
from treadle.settings import Settings
from treadle.store.db import Database
from treadle.store.event_log import SqlEventLog

log = logging.getLogger("treadle.background")

_SWEEP_SECONDS = 600.0


class Background:
    """Background responses of one process. `notices` gives jobs to be put with the outcome of each."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: Responses,
        jobs: Jobs,
        queue: JobQueue,
        responses: ResponseService,
        sealer: Sealer,
        tasks: Tasks,
        *,
        shared: bool = False,
        notices: Notices = none,
    ) -> None:
        given = settings.background
        rules = BackgroundRules(
            queued=given.queued,
            timeout_seconds=given.timeout_seconds,
            events_hours=given.events_hours,
            shared=shared,
        )
        events = SqlEventLog(database)
        writer = EventWriter(events, tasks.spawn)
        self.service = BackgroundService(responses, store, jobs, events, queue, sealer, writer, rules, notices=notices)
        runner = BackgroundRun(self.service, responses, events, writer, sealer, timeout_seconds=given.timeout_seconds)
        queue.handle(KIND, runner, workers=given.workers)
        self._sweep: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweep = asyncio.create_task(self._expire(), name="treadle-event-sweep")

    async def stop(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            await asyncio.wait([self._sweep])

    async def _expire(self) -> None:
        while True:
            try:
                await self.service.expire()
            except ServerError as fault:
                log.warning("old events could not be removed: %s", fault.message)
            except Exception:
                log.exception("removing old events failed in a way that it should not")
            await asyncio.sleep(_SWEEP_SECONDS)
