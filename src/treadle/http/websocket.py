"""`/v1/responses` over WebSocket: every text frame asks for a response, every event of one is a frame (contract §9).

One task reads the connection from its first frame to its last, so that a departure is seen at once. Requests wait in
lanes, one for each `stream_id` and one for all that name none.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from treadle.api.remembered import Memories
from treadle.api.responses import ResponseService
from treadle.errors import InvalidRequest, QuotaExceeded, ServerError, Stopping, TooLarge
from treadle.http.depth import too_deep
from treadle.http.frames import Gone, Outlet
from treadle.http.lanes import Asked, Lane, Shared
from treadle.http.sse import LAST_SECONDS
from treadle.wire.base import decode
from treadle.wire.sockets import FRAMES, MAX_STREAM_ID, STOPPING, FrameHead, ResponseCreate

EXPIRED, RESTART = 1001, 1012
"""Close codes after which clients connect again."""

_create = msgspec.json.Decoder(ResponseCreate)
_head = msgspec.json.Decoder(FrameHead)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """What one connection may take."""

    max_seconds: float = 3600.0
    max_waiting: int = 16
    """Requests, over all lanes, that wait for those before them."""
    max_lanes: int = 8
    max_frame: int = 67_108_864
    """Bytes of one request, and of all that wait together."""


class ResponsesSocket:
    """The ASGI app of all connections."""

    def __init__(self, service: ResponseService, memories: Memories, limits: SocketLimits) -> None:
        self._service = service
        self._memories = memories
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        outlet = Outlet(send, frames=FRAMES in scope.get("extensions", {}))
        memory = self._memories.open()
        try:
            await _Connection(Shared(self._service, memory, outlet), self._limits, receive).serve()
        finally:
            memory.close()


class _Connection:
    """One connection, from the accepted handshake to its end."""

    def __init__(self, shared: Shared, limits: SocketLimits, receive: Receive) -> None:
        self._shared = shared
        self._limits = limits
        self._receive = receive
        self._lanes: dict[str | None, Lane] = {}
        self._waiting = self._waiting_bytes = 0
        self._code = RESTART
        self._closing: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Returns when the connection has ended and nothing of it runs any more."""
        timer = asyncio.get_running_loop().call_later(self._limits.max_seconds, self._expire)
        try:
            await self._read()
        except asyncio.CancelledError:
            # The server is stopping and has waited as long as it could.
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._break_off()
        finally:
            timer.cancel()
            left = [lane.task for lane in self._lanes.values()]
            left += [self._closing] if self._closing is not None else []
            for one in left:
                one.cancel()
            if left:
                await asyncio.wait(left)

    async def _read(self) -> None:
        """Returns when the client is gone."""
        with suppress(Gone):
            while True:
                message = await self._receive()
                if message["type"] == "websocket.receive":
                    await self._take(*self._asked(message.get("text")))
                elif message["type"] == STOPPING:
                    self._end(Stopping(), RESTART)
                else:
                    return

    def _asked(self, text: str | None) -> tuple[str | None, Asked]:
        """A frame's lane and meaning."""
        if text is None:
            return None, Asked(InvalidRequest("Send requests as text frames.", code="invalid_frame"))
        data = text.encode()
        if len(data) > self._limits.max_frame:
            return None, Asked(TooLarge(f"The frame is larger than {self._limits.max_frame} bytes."))
        try:
            if too_deep(data):
                raise InvalidRequest("The JSON is nested too deeply.", code="invalid_json")
            request = decode(_create, data)
            if request.type != "response.create":
                raise _unknown(request.type)
        except InvalidRequest as fault:
            return _faulty(data, fault)
        request.stream, request.stream_options, request.background = True, None, None
        return request.stream_id, Asked(request, len(data), request.previous_response_id)

    async def _take(self, stream_id: str | None, asked: Asked) -> None:
        """Puts a request into its lane. What there is no room for is refused at once."""
        lane = self._lanes.get(stream_id)
        if (refused := self._shared.refusing or self._overload(lane, asked)) is not None:
            await self._shared.outlet.fault(refused, stream_id)
        elif lane is None:
            lane = self._lanes[stream_id] = Lane(stream_id, self._shared)
            lane.task = asyncio.create_task(self._work(lane, asked))
        else:
            lane.waiting.append(asked)
            self._waiting += 1
            self._waiting_bytes += asked.size

    def _overload(self, lane: Lane | None, asked: Asked) -> QuotaExceeded | None:
        limits = self._limits
        if lane is None:
            if len(self._lanes) < limits.max_lanes:
                return None
            return QuotaExceeded(
                f"This connection is busy with {limits.max_lanes} streams, the most at a time (websocket.max_streams).",
                param="stream_id",
            )
        if self._waiting < limits.max_waiting and self._waiting_bytes + asked.size <= limits.max_frame:
            return None
        return QuotaExceeded(
            f"{self._waiting} requests wait on this connection, and there is no room for this one. Send it again when "
            "others are answered (websocket.max_waiting)."
        )

    async def _work(self, lane: Lane, asked: Asked | None) -> None:
        """The task of a lane: it lasts until nothing waits there any more."""
        try:
            while asked is not None:
                await lane.answer(asked)
                asked = self._next(lane)
        except Gone:
            return  # the reader sees it too
        finally:
            del self._lanes[lane.stream_id]
        if self._shared.refusing is not None and not self._lanes:
            await self._close()

    def _next(self, lane: Lane) -> Asked | None:
        if not lane.waiting:
            return None
        asked = lane.waiting.popleft()
        self._waiting -= 1
        self._waiting_bytes -= asked.size
        return asked

    # ------------------------------------------------------------------------------------------- ending

    def _expire(self) -> None:
        fault = InvalidRequest(
            f"A WebSocket connection lasts {self._limits.max_seconds / 60:g} minutes at most. Open a new one.",
            code="websocket_connection_limit_reached",
        )
        self._end(fault, EXPIRED)

    def _end(self, why: ServerError, code: int) -> None:
        """Begins nothing more. What runs may end; the last lane to be done closes the connection."""
        if self._shared.refusing is None:
            self._shared.refusing, self._code = why, code
            if not self._lanes:
                self._closing = asyncio.create_task(self._close())

    async def _break_off(self) -> None:
        """Ends what runs now, with an error that its client can read."""
        self._shared.interrupted = True
        self._shared.refusing = self._shared.refusing or Stopping()
        tasks = [lane.task for lane in self._lanes.values()]
        for lane in list(self._lanes.values()):
            lane.interrupt()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
        await self._close()

    async def _close(self) -> None:
        """With the code that says why; the time limit is an error event besides, as clients look for that."""
        why = self._shared.refusing or Stopping()
        with suppress(Gone):
            if self._code == EXPIRED:
                await self._shared.outlet.fault(why)
            await self._shared.outlet.close(self._code, why.code or "")


def _faulty(data: bytes, fault: InvalidRequest) -> tuple[str | None, Asked]:
    """What can be told of a frame that is no valid request: its lane, and what it wanted to continue."""
    try:
        head = _head.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, Asked(fault)
    if head.type != "response.create":
        fault = _unknown(head.type)
    stream_id = head.stream_id if isinstance(head.stream_id, str) and len(head.stream_id) <= MAX_STREAM_ID else None
    previous = head.previous_response_id if isinstance(head.previous_response_id, str) else None
    return stream_id, Asked(fault, previous=previous)


def _unknown(kind: object) -> InvalidRequest:
    shown = f"'{kind[:64]}'" if isinstance(kind, str) else "none"
    return InvalidRequest(
        f"Unknown event type {shown}: this server takes 'response.create'.", param="type", code="unknown_event_type"
    )
