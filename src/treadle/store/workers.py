"""The threads on which a database runs: a bounded queue of work, and results that go back to their event loops.

What a thread does with its connection is the engine's: `sqlite_workers.py`, `postgres.py`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

from treadle.errors import StorageFault
from treadle.store.db import Connection

T = TypeVar("T")
C = TypeVar("C")

log = logging.getLogger(__name__)

WAITING = 10_000
"""Pieces of work that may wait for one kind of worker; beyond that callers get StorageFault at once."""


class Job:
    """A piece of work and whoever waits for it. Exactly one of `value` and `error` counts once it has run."""

    __slots__ = ("asked", "error", "future", "loop", "manner", "value", "work")

    def __init__(self, work: Callable[[Connection], object], loop: asyncio.AbstractEventLoop, manner: bytes) -> None:
        self.work = work
        self.manner = manner
        self.asked = monotonic()
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.value: object = None
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        # A future cannot carry StopIteration.
        self.error = RuntimeError("work raised StopIteration") if isinstance(error, StopIteration) else error


def deliver(jobs: list[Job]) -> None:
    """Wakes the waiters: one call into each event loop, however many of them wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, group)
        except RuntimeError:
            log.warning("%d results came after their event loop was closed", len(group))


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():  # its waiter was cancelled
            if job.error is not None:
                log.warning("work failed after its caller had gone: %r", job.error)
        elif job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.value)


class Workers(Generic[C]):
    """Threads that share a queue of jobs, one for each of `connections`. `serve` runs in each until it takes a `None`
    from the queue; then `release` lets go of the connection."""

    def __init__(self, name: str, connections: Sequence[C]) -> None:
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._gate = threading.Lock()  # so that nothing enters the queue behind the end mark
        self._open = False
        self._threads = [
            threading.Thread(target=self._run, args=(connection,), name=f"treadle-{name}", daemon=True)
            for connection in connections
        ]

    def start(self) -> None:
        self._open = True
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[Connection], T], manner: bytes = b"") -> asyncio.Future[T]:
        """Must be called in an event loop. `manner` tells `serve` how to begin. StorageFault when closed or when too
        much is waiting."""
        job = Job(work, asyncio.get_running_loop(), manner)
        with self._gate:
            if not self._open:
                raise StorageFault("The database is closed.")
            if self._queue.qsize() >= WAITING:
                raise StorageFault("The database has too much to do.")
            self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Waits until everything submitted before has run."""
        with self._gate:
            if not self._open:
                return
            self._open = False
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, connection: C) -> None:
        try:
            self.serve(connection)
        finally:
            self.release(connection)

    def serve(self, connection: C) -> None:
        raise NotImplementedError

    def release(self, connection: C) -> None:
        raise NotImplementedError
