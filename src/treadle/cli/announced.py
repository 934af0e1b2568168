"""The HTTP server as a user meets it: it says when it is ready, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

GRACEFUL_SECONDS = 5
LAST_WORDS_SECONDS = 3
"""After that, how long the requests that were ended may take to tell their clients."""

_LOOK_SECONDS = 0.05


class Starting:
    """An app whose word on why it cannot start is kept, in the place of uvicorn's lines about it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.why = ""
        """In one line; empty unless the app said that it cannot start."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def heard(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                self.why = " ".join(message.get("message", "").split()) or "the server cannot start"
                message = {"type": message["type"]}
            await send(message)

        await self._app(scope, receive, heard if scope["type"] == "lifespan" else send)

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Keeps uvicorn from saying it, too."""

        def unsaid(_: logging.LogRecord) -> bool:
            return not self.why

        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(unsaid)
        try:
            yield
        finally:
            logger.removeFilter(unsaid)


class AnnouncedServer(uvicorn.Server):
    """`ready` runs once requests are answered, `afterwards` beside them.

    When it is told to stop, requests have GRACEFUL_SECONDS to end, or until it is told again. What still runs then is
    cancelled, which the app turns into an error for the client, and the app is stopped in order all the same.
    """

    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], afterwards: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._afterwards = afterwards
        self._beside: asyncio.Future[None] | None = None
        self._hurry = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._ready()
            self._beside = asyncio.ensure_future(self._afterwards())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and not self._hurry:
            self._hurry = True
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._beside is not None:
            self._beside.cancel()
        if running := len(self.server_state.tasks):
            what = "1 request" if running == 1 else f"{running} requests"
            print(f"stopping, waiting up to {GRACEFUL_SECONDS} s for {what} (Ctrl-C again stops at once)", flush=True)
        ending = asyncio.ensure_future(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_requests(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + GRACEFUL_SECONDS
        while loop.time() < until and not self._hurry:  # noqa: ASYNC110 - a signal wakes no task
            await asyncio.sleep(_LOOK_SECONDS)
        for task in list(self.server_state.tasks):
            task.cancel()
