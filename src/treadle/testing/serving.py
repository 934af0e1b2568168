"""uvicorn for servers of the kit: it says when it is ready, and stops at once instead of at its next look."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from treadle.testing.gates import Gate

_LOOK_SECONDS = 0.005


class QuickServer(uvicorn.Server):
    """`ready` opens when requests are answered, or when that has failed; see `started`."""

    def __init__(self, config: uvicorn.Config, ready: Gate) -> None:
        super().__init__(config)
        self._ready = ready
        self._stop = Gate()

    def stop(self) -> None:
        """From any thread. Requests have the config's `timeout_graceful_shutdown` to end."""
        self.should_exit = True
        self._stop.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self._ready.set()

    async def main_loop(self) -> None:
        ticking = asyncio.ensure_future(super().main_loop())
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([ticking, stopped], return_when=asyncio.FIRST_COMPLETED)
        for one in (ticking, stopped):
            one.cancel()
        await asyncio.gather(ticking, stopped, return_exceptions=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which waits in steps of a tenth of a second."""
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        state, loop = self.server_state, asyncio.get_running_loop()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.sleep(0)
        until = loop.time() + (self.config.timeout_graceful_shutdown or 0)
        while (state.connections or state.tasks) and loop.time() < until:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(_LOOK_SECONDS)
        for task in state.tasks:
            task.cancel()
        if not state.connections:
            for server in self.servers:
                await server.wait_closed()
        await self.lifespan.shutdown()
