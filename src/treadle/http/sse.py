"""Server-sent events: drains a run to the socket, one send per batch, with keep-alives between whole frames.

Nothing is sent before the second batch or HOLD_SECONDS: until then a refusal of the model server can still be what it
is, an HTTP status with the provider's code, and not a stream that starts only to fail (bug case 2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.api.responses import Run
from treadle.errors import ServerError, Stopping
from treadle.http.replies import refusal, reply
from treadle.wire.base import encode
from treadle.wire.frames import DONE, framed

log = logging.getLogger("treadle.http")

HOLD_SECONDS = 1.0
LAST_SECONDS = 2.0
"""How long the last words of an interrupted response may take to be stored and sent."""
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_PING = b": ping\n\n"
_TICK = 0.001
"""Seconds by which a timer may be early."""


@dataclass(frozen=True, slots=True)
class Reads:
    """A stream of bytes to pass on."""

    reads: AsyncGenerator[bytes, None]


class Attended:
    """An ASGI response that notices when its client leaves, and then cancels its work.

    With `keep_alive` it also fills silence, in seconds, with comments. If it is cancelled itself, the server is
    stopping: then the work is interrupted, and the client is told how it ended.
    """

    def __init__(self, keep_alive: float | None) -> None:
        self._keep_alive = keep_alive
        self._started = False
        self._held = b""
        self._sent_at = 0.0
        self._watching = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        task = asyncio.current_task()
        assert task is not None

        def finished(_: asyncio.Task[None]) -> None:
            if self._watching:
                task.cancel()

        drain = asyncio.create_task(self._drain(scope, receive))
        drain.add_done_callback(finished)
        interrupted = False
        try:
            # The drain takes its first step in any case: what it holds is let go only by code that has begun.
            await asyncio.sleep(0)
            await self._watch(receive)
        except asyncio.CancelledError:
            task.uncancel()
            interrupted = not drain.done()
        finally:
            self._watching = False
            if not interrupted or self._interrupt(Stopping()):
                drain.cancel()
        await _ended(drain, LAST_SECONDS if interrupted else None)

    async def _drain(self, scope: Scope, receive: Receive) -> None:
        raise NotImplementedError

    def _interrupt(self, fault: ServerError) -> bool:
        """The drain is about to be cancelled and has to tell its client why; False if it ends by itself."""
        raise NotImplementedError

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if not self._started:
            await self._start()
        self._sent_at = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _start(self) -> None:
        self._started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})

    async def _flush_held(self) -> None:
        """Called when nothing came for a while."""
        held, self._held = self._held, b""
        if held or self._started:
            await self._write(held or _PING)

    async def _watch(self, receive: Receive) -> None:
        """Returns when the client leaves; fills silence. One task for both, as both only wait."""
        loop, every = asyncio.get_running_loop(), self._keep_alive
        wait = None if every is None else min(HOLD_SECONDS, every)
        while True:
            try:
                async with asyncio.timeout(wait):
                    message = await receive()
            except TimeoutError:
                assert every is not None
                allowed = every if self._started else min(HOLD_SECONDS, every)
                wait = allowed - (loop.time() - self._sent_at)
                if wait <= _TICK:
                    await self._flush_held()
                    wait = every
                continue
            if message["type"] == "http.disconnect":
                return


class Whole(Attended):
    """A run drained to its end, as one JSON object."""

    def __init__(self, run: Run) -> None:
        super().__init__(None)
        self._run = run

    def _interrupt(self, fault: ServerError) -> bool:
        return self._run.interrupt(fault)

    async def _drain(self, scope: Scope, receive: Receive) -> None:
        try:
            answer = reply(await self._run.result())
        except ServerError as fault:
            answer = refusal(fault)
        await answer(scope, receive, self._send)


class EventStream(Attended):
    """The events of a run as server-sent events, ended by `[DONE]`."""

    def __init__(self, run: Run, keep_alive: float) -> None:
        super().__init__(keep_alive)
        self._run = run

    def _interrupt(self, fault: ServerError) -> bool:
        return self._run.interrupt(fault)

    async def _drain(self, scope: Scope, receive: Receive) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        first = True
        async with aclosing(self._run.__aiter__()) as batches:
            async for batch in batches:
                if not batch:
                    continue
                frames = framed(batch)
                if first:
                    self._held, first = frames, False
                    continue
                if not self._started and self._run.turn.fault is not None:
                    self._started = True
                    await refusal(self._run.turn.fault)(scope, receive, self._send)
                    return
                if self._held:
                    frames, self._held = self._held + frames, b""
                await self._write(frames)
        await self._write(DONE, more=False)


class Followed(Attended):
    """What a response that is made in the background says, ended by `[DONE]`. It goes on without this reader; when the
    server stops, the stream ends without that mark, and can be taken up again behind its last event."""

    def __init__(self, reads: AsyncGenerator[bytes, None], keep_alive: float) -> None:
        super().__init__(keep_alive)
        self._reads = reads

    def _interrupt(self, fault: ServerError) -> bool:
        return True

    async def _drain(self, scope: Scope, receive: Receive) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        last = DONE
        try:
            async with aclosing(self._reads) as reads:
                await self._start()
                async for read in reads:
                    await self._write(read)
        except asyncio.CancelledError:
            last = b""
        except ServerError as fault:  # the log cannot be read; whoever asks again is told
            log.warning("a stream was broken off: %s", fault.message)
            last = b""
        await self._write(last, more=False)


class Asked(Attended):
    """An answer that has to be waited for, such as another server's. If the client leaves, the waiting ends."""

    def __init__(self, work: Callable[[], Awaitable[ASGIApp | Reads]], keep_alive: float) -> None:
        super().__init__(keep_alive)
        self._work = work
        self._fault: ServerError | None = None

    def _interrupt(self, fault: ServerError) -> bool:
        self._fault = fault
        return True

    async def _drain(self, scope: Scope, receive: Receive) -> None:
        try:
            answer = await self._work()
        except ServerError as fault:
            answer = refusal(fault)
        except asyncio.CancelledError:
            if self._fault is None:
                raise
            answer = refusal(self._fault)
        if isinstance(answer, Reads):
            await self._pass_on(answer)
        else:
            await answer(scope, receive, self._send)

    async def _pass_on(self, stream: Reads) -> None:
        """Bytes of another server's event stream, as they come."""
        last = b""
        try:
            async with aclosing(stream.reads) as reads:
                await self._start()
                self._sent_at = asyncio.get_running_loop().time()
                async for read in reads:
                    await self._write(read)
        except asyncio.CancelledError:
            if self._fault is None:
                raise
            last = b"data: " + encode(self._fault.envelope()) + b"\n\n"
        await self._write(last, more=False)


async def _ended(drain: asyncio.Task[None], seconds: float | None) -> None:
    """Waits until the drain has ended, and raises its fault. One that takes longer than `seconds` is cut off."""
    _, late = await asyncio.wait((drain,), timeout=seconds)
    if late:
        drain.cancel()
        await asyncio.wait((drain,))
    if not drain.cancelled():
        drain.result()
