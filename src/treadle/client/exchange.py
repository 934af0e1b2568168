"""One request to an ASGI app without a socket: what a server does for its app, with a reader in its place."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

from starlette.types import ASGIApp, Message, Scope

log = logging.getLogger("treadle.client")

HIGH_WATER = 65_536
"""Bytes the app may be ahead of its reader; then its `send` waits, as it would on a full socket."""

Headers = list[tuple[bytes, bytes]]


class BrokenOff(Exception):
    """The app ended before its response did."""


class Exchange:
    """Runs the app in a task of its own: `start`, then `head`, then `read` until it returns nothing; `leave` any time.

    A fault of the app is raised to the reader. All methods belong to the event loop that called `start`.
    """

    def __init__(self, app: ASGIApp, scope: Scope, body: AsyncIterator[bytes]) -> None:
        self._app = app
        self._scope = scope
        self._body = body
        self._body_read = False
        self._head: tuple[int, Headers] | None = None
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._complete = False
        self._fault: BaseException | None = None
        self._left = asyncio.Event()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def start(self) -> asyncio.Task[None]:
        """The task that runs the app, to its end even if the reader leaves."""
        return asyncio.get_running_loop().create_task(self._run())

    async def head(self) -> tuple[int, Headers]:
        """The status and the headers of the response."""
        try:
            while self._head is None:
                await self._news()
        except BaseException:
            self.leave()
            raise
        return self._head

    async def read(self) -> bytes:
        """All that the app has sent and nobody has read, waiting for some of it; empty at the end of the body."""
        while not self._chunks:
            if self._complete:
                return b""
            await self._news()
        found = b"".join(self._chunks)
        self._chunks.clear()
        self._waiting = 0
        self._writable.set()
        return found

    def leave(self) -> None:
        """Tells the app that its client is gone. What it still sends goes nowhere, and its faults to the log."""
        self._left.set()
        self._writable.set()

    async def _news(self) -> None:
        """Waits until there is a head, a chunk or the end; raises the fault of an app that cannot send any more."""
        if self._fault is not None:
            raise self._fault
        self._readable.clear()
        await self._readable.wait()

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
            if not self._complete:
                self._fault = BrokenOff("The app ended before its response did.")
        except asyncio.CancelledError:
            self._fault = BrokenOff("The app was stopped before its response ended.")
            raise
        except Exception as fault:
            self._fault = fault
            if self._complete or self._left.is_set():
                log.exception("the app failed after its client had left")
        finally:
            self._readable.set()

    async def _receive(self) -> Message:
        if not self._body_read and not self._left.is_set():
            part = await anext(self._body, None)
            self._body_read = part is None
            return {"type": "http.request", "body": part or b"", "more_body": part is not None}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = (message["status"], list(message.get("headers", ())))
        elif message["type"] == "http.response.body" and not self._left.is_set():
            body = bytes(message.get("body", b""))
            if body and self._scope["method"] != "HEAD":
                self._chunks.append(body)
                self._waiting += len(body)
            self._complete = not message.get("more_body", False)
        self._readable.set()
        if self._complete:
            # Nobody can be waited for any more: what a server's app sees once its response is written.
            self._left.set()
        elif self._waiting > HIGH_WATER:
            self._writable.clear()
            await self._writable.wait()
