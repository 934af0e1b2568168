"""Work that outlives a request: owned by the app, which waits for it when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger("treadle.tasks")


class Tasks:
    """A bounded-by-its-callers set of tasks. A fault in one is logged, never lost; `join` waits for all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def run(self, work: Coroutine[None, None, None]) -> None:
        """Awaits work that goes on when the caller is cancelled. Its fault is the caller's to handle."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._done)
            raise
        finally:
            task.add_done_callback(self._tasks.discard)

    async def join(self, seconds: float) -> None:
        """Waits for the tasks that are running now, and cancels what is not done in time."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work after a request failed", exc_info=error)
