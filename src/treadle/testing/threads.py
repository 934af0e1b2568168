"""Runs an asynchronous server of the kit in a thread of its own, for tests without an event loop."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from types import TracebackType
from typing import Self

from treadle.testing.gates import PATIENCE, Gate


class InThread:
    """`with server:` is `async with server:` in a thread with a loop of its own."""

    _thread: threading.Thread | None = None
    _stop: Gate

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def __enter__(self) -> Self:
        started = Gate()
        self._stop = Gate()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name=type(self).__name__)
        self._thread.start()
        started.wait_blocking()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"{type(self).__name__} did not stop"

    async def _serve(self, started: Gate) -> None:
        async with self:
            started.set()
            await self._stop.wait()
