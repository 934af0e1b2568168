"""The HTTP server as a user meets it: it says when it is ready, and how it stops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn

GRACEFUL_SECONDS = 5
LAST_WORDS_SECONDS = 3
"""After that, how long the requests that were ended may take to tell their clients."""

_LOOK_SECONDS = 0.05


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
