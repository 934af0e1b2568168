"""Reading processes that are kept for the next document, and lent to one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from treadle.errors import Internal, Stopping
from treadle.retrieval.extract.process import ReadingProcess

_MAX_DOCUMENTS = 100
"""A process is replaced after so many, so that what parsers leak does not add up."""
_MAX_MEMORY_MB = 400
"""A process that holds more than this between two documents is replaced."""


class ProcessPool:
    """At most `limit` processes. Those without work are ended after `idle_seconds`."""

    def __init__(self, limit: int, idle_seconds: float) -> None:
        self._free = asyncio.Semaphore(limit)
        self._idle_seconds = idle_seconds
        self._idle: dict[ReadingProcess, asyncio.TimerHandle] = {}
        self._busy: set[ReadingProcess] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._warming: asyncio.Task[None] | None = None
        self._is_closed = False

    def warm_up(self, folder: Path) -> None:
        """Begins to start a process, if there is none."""
        if not (self._idle or self._busy or self._warming or self._is_closed):
            self._warming = asyncio.get_running_loop().create_task(self._warm(folder), name="treadle-reader-start")

    async def _warm(self, folder: Path) -> None:
        try:
            self._give_back(await ReadingProcess.start(folder))
        except Internal:
            return  # the log has it, and the borrower, who tries again, reports it
        finally:
            self._warming = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in [*self._idle, *self._busy]]

    @asynccontextmanager
    async def borrow(self, folder: Path) -> AsyncIterator[ReadingProcess]:
        """A process for one document, as soon as one is free. One that did not come to its end is killed.

        Internal if none can be started; Stopping once the pool is closed.
        """
        async with self._free:
            process = await self._taken(folder)
            try:
                yield process
            finally:
                self._busy.discard(process)
                self._give_back(process)

    async def _taken(self, folder: Path) -> ReadingProcess:
        if self._warming is not None:
            await asyncio.wait([self._warming])
        while self._idle and not self._is_closed:
            process, timer = self._idle.popitem()
            timer.cancel()
            if process.is_idle:
                self._busy.add(process)
                return process
            self._end(process)
        process = await ReadingProcess.start(folder)
        if self._is_closed:
            await process.end()
            raise Stopping
        self._busy.add(process)
        return process

    def _give_back(self, process: ReadingProcess) -> None:
        is_worn = process.served >= _MAX_DOCUMENTS or process.memory_mb > _MAX_MEMORY_MB
        if is_worn or self._is_closed or not process.is_idle:
            self._end(process)
            return
        timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._retire, process)
        self._idle[process] = timer

    def _retire(self, process: ReadingProcess) -> None:
        del self._idle[process]
        self._end(process)

    def _end(self, process: ReadingProcess) -> None:
        process.kill()
        task = asyncio.get_running_loop().create_task(process.end(), name="treadle-reader-end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends all processes, also those at work: whoever waits for them gets Stopping."""
        self._is_closed = True
        for timer in self._idle.values():
            timer.cancel()
        for process in [*self._idle, *self._busy]:
            self._end(process)
        self._idle.clear()
        while self._warming or self._ending:
            await asyncio.wait([*self._ending, *([self._warming] if self._warming else [])])
