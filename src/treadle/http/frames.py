"""How events and errors leave over a WebSocket: one JSON text in a frame each, an event with the bytes SSE gives it."""

from __future__ import annotations

from starlette.types import Message, Send

from treadle.errors import ServerError
from treadle.wire.base import encode
from treadle.wire.events import ErrorEvent, Event
from treadle.wire.frames import append_json
from treadle.wire.sockets import FRAMES, FrameError, begin_text, end_text, told


class Gone(Exception):
    """The client has left, or the connection is closed."""


class Outlet:
    """The sending side of a connection. All raises Gone once nobody is there."""

    def __init__(self, send: Send, *, frames: bool) -> None:
        """`frames`: what runs the app takes whole frames, and so a batch of events at once."""
        self._send = send
        self._frames = frames
        self._closed = False

    async def events(self, batch: list[Event], tail: bytes, status: int) -> None:
        """`tail` is what each event ends with instead of its brace, `status` what an `error` event is given besides:
        over a WebSocket no HTTP status can say it."""
        frames = bytearray()
        for event in batch:
            start = begin_text(frames) if self._frames else 0
            append_json(event, frames)
            if type(event) is ErrorEvent:
                frames[-1:] = b',"status":%d}' % status
            if tail:
                frames[-1:] = tail
            if self._frames:
                end_text(frames, start)
            else:
                await self._text(frames)
                frames.clear()
        if frames:
            await self._pass({"type": FRAMES, "data": frames})

    async def fault(self, fault: ServerError, stream_id: str | None = None) -> None:
        """The one event of a request that is refused."""
        await self._text(encode(FrameError(status=fault.status, error=told(fault), stream_id=stream_id)))

    async def close(self, code: int, reason: str) -> None:
        if not self._closed:
            self._closed = True
            await self._pass({"type": "websocket.close", "code": code, "reason": reason})

    async def _text(self, data: bytes | bytearray) -> None:
        await self._pass({"type": "websocket.send", "text": data.decode()})

    async def _pass(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            raise Gone from None
