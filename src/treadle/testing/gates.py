"""Gates: how a test decides when something goes on, without a sleep, from any thread or event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

PATIENCE = 10.0
"""Seconds that any wait of the testing kit lasts at most."""


class Waitable(Protocol):
    """A `Gate`, or an `asyncio.Event` of the loop that waits."""

    async def wait(self) -> object: ...


class Gate:
    """A one-way latch like `asyncio.Event`, but safe across threads: opened in one, awaited in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<Gate {'open' if self.is_set() else 'shut'}>"

    def is_set(self) -> bool:
        return self._opened.is_set()

    def set(self) -> None:
        """Opens the gate for good and wakes everyone who waits."""
        with self._lock:
            self._opened.set()
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)

    async def wait(self) -> None:
        """Waits without a bound; `within` is the bounded form for tests."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._opened.is_set():
                return
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, future))
        await future

    async def within(self, seconds: float = PATIENCE) -> None:
        """TimeoutError if the gate is still shut after `seconds`."""
        async with asyncio.timeout(seconds):
            await self.wait()

    def wait_blocking(self, seconds: float = PATIENCE) -> None:
        """The form for a test without an event loop. TimeoutError if the gate stays shut."""
        if not self._opened.wait(seconds):
            raise TimeoutError(f"the gate was still shut after {seconds} s")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
