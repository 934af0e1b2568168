"""`/v1/responses` over WebSocket: every text frame asks for a response, every event of one is a frame (contract §9).

One task reads the connection from its first frame to its last, so that a departure is seen at once. Requests wait in
lanes, one for each `stream_id` and one for all that name none; a lane answers in order. What a lane sends goes straight
to the socket: a client that reads slowly delays the send, and with it the next read of the model's answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec
from starlette.types import Message, Receive, Scope, Send

from treadle.api.remembered import ConnectionMemory, Memories
from treadle.api.responses import ResponseService, Run
from treadle.errors import InvalidRequest, QuotaExceeded, ServerError, Stopping, TooLarge
from treadle.http.depth import too_deep
from treadle.http.replies import internal
from treadle.http.sse import HOLD_SECONDS, LAST_SECONDS, append_json
from treadle.scope import LOCAL
from treadle.wire.base import decode, encode
from treadle.wire.events import ErrorEvent, Event
from treadle.wire.sockets import (
    FRAMES,
    MAX_STREAM_ID,
    STOPPING,
    FrameError,
    FrameHead,
    ResponseCreate,
    begin_text,
    end_text,
)

EXPIRED, RESTART = 1001, 1012
"""Close codes after which clients connect again."""

_WHERE = "/v1/responses (WebSocket)"
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


@dataclass(slots=True)
class _Asked:
    """A frame that waits its turn: a request, or what is wrong with it. Faults are told in turn too."""

    what: ResponseCreate | ServerError
    size: int
    previous: str | None


class _Gone(Exception):
    """The client has left."""


class _Lane:
    """The requests of one `stream_id`, answered one after the other by `task`."""

    def __init__(self, stream_id: str | None) -> None:
        self.stream_id = stream_id
        self.waiting: deque[_Asked] = deque()
        self.run: Run | None = None
        self.task: asyncio.Task[None]
        self._tail = b"" if stream_id is None else b',"stream_id":' + encode(stream_id) + b"}"

    def append(self, event: Event, buffer: bytearray) -> None:
        """Adds an event of the running response."""
        append_json(event, buffer)
        if type(event) is ErrorEvent:
            fault = self.run.turn.fault if self.run is not None else None
            buffer[-1:] = b',"status":%d}' % (500 if fault is None else fault.status)
        if self._tail:
            buffer[-1:] = self._tail


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
        memory = self._memories.open()
        frames = FRAMES in scope.get("extensions", {})
        connection = _Connection(self._service, memory, self._limits, receive, send, frames)
        try:
            await connection.serve()
        finally:
            memory.close()


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why the connection takes no further requests, and the code that it closes with once its lanes are done."""

    fault: ServerError
    code: int
    told: bool
    """Whether the fault is an event of its own before the close."""


class _Connection:
    """One connection, from the accepted handshake to its end."""

    def __init__(
        self,
        service: ResponseService,
        memory: ConnectionMemory,
        limits: SocketLimits,
        receive: Receive,
        send: Send,
        frames: bool,
    ) -> None:
        """`frames`: what runs the app takes whole frames."""
        self._service = service
        self._memory = memory
        self._limits = limits
        self._receive = receive
        self._send = send
        self._frames = frames
        self._lanes: dict[str | None, _Lane] = {}
        self._waiting = self._waiting_bytes = 0
        self._ending: _Ending | None = None
        self._interrupted = self._closed = False
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
            for task in left:
                task.cancel()
            if self._closing is not None:
                left.append(self._closing)
            if left:
                await asyncio.wait(left)

    async def _read(self) -> None:
        """Returns when the client is gone."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.receive":
                try:
                    await self._take(message.get("text"))
                except _Gone:
                    return
            elif message["type"] == STOPPING:
                self._end(_Ending(Stopping(), RESTART, told=False))
            else:
                return

    async def _take(self, text: str | None) -> None:
        """Puts a frame into its lane. What there is no room for is refused at once."""
        stream_id, asked = self._asked(text)
        fault = self._ending.fault if self._ending is not None else None
        lane = self._lanes.get(stream_id)
        if fault is not None:
            pass
        elif lane is None and len(self._lanes) < self._limits.max_lanes:
            lane = self._lanes[stream_id] = _Lane(stream_id)
            lane.task = asyncio.create_task(self._work(lane, asked))
            return
        elif lane is None:
            fault = QuotaExceeded(
                f"This connection is busy with {len(self._lanes)} streams, which is the most at a time "
                "(websocket.max_streams).",
                param="stream_id",
            )
        elif self._waiting >= self._limits.max_waiting or self._waiting_bytes + asked.size > self._limits.max_frame:
            fault = QuotaExceeded(
                f"Too much is waiting on this connection: {self._waiting} requests. Send this one again when others "
                "are answered (websocket.max_waiting)."
            )
        if fault is not None:
            await self._refuse(fault, stream_id)
            return
        assert lane is not None
        lane.waiting.append(asked)
        self._waiting += 1
        self._waiting_bytes += asked.size

    def _asked(self, text: str | None) -> tuple[str | None, _Asked]:
        """A frame's lane and meaning."""
        if text is None:
            return None, _Asked(InvalidRequest("Send requests as text frames.", code="invalid_frame"), 0, None)
        data = text.encode()
        if len(data) > self._limits.max_frame:
            fault = TooLarge(f"The frame is larger than {self._limits.max_frame} bytes.")
            return None, _Asked(fault, 0, None)
        try:
            if too_deep(data):
                raise InvalidRequest("The JSON is nested too deeply.", code="invalid_json")
            request = decode(_create, data)
            if request.type != "response.create":
                raise _unknown(request.type)
        except InvalidRequest as fault:
            return _faulty(data, fault)
        request.stream, request.stream_options, request.background = True, None, None
        return request.stream_id, _Asked(request, len(data), request.previous_response_id)

    # ------------------------------------------------------------------------------------------- lanes

    async def _work(self, lane: _Lane, asked: _Asked | None) -> None:
        try:
            while asked is not None:
                await self._answer(lane, asked)
                asked = self._next(lane)
        except _Gone:
            return  # the reader sees it too
        finally:
            del self._lanes[lane.stream_id]
        if self._ending is not None and not self._lanes:
            await self._close(self._ending)

    def _next(self, lane: _Lane) -> _Asked | None:
        if not lane.waiting:
            return None
        asked = lane.waiting.popleft()
        self._waiting -= 1
        self._waiting_bytes -= asked.size
        return asked

    async def _answer(self, lane: _Lane, asked: _Asked) -> None:
        """One request from the lane to its last event, or the one event that refuses it."""
        try:
            if self._ending is not None:
                raise self._ending.fault
            if isinstance(asked.what, ServerError):
                raise asked.what
            lane.run = await self._service.create(
                LOCAL, asked.what, remembered=self._memory.recall, generate=asked.what.generate is not False
            )
            await self._drain(lane, lane.run, asked)
            return
        except ServerError as refused:
            fault = refused
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            fault = Stopping()
        except _Gone:
            raise
        except Exception:  # noqa: BLE001 -- a bug of ours ends the request, not the connection
            fault = internal(_WHERE)
        finally:
            lane.run = None
        self._memory.forget(asked.previous)
        await self._refuse(fault, lane.stream_id)

    async def _drain(self, lane: _Lane, run: Run, asked: _Asked) -> None:
        """Sends the events. The first batch waits for the second or HOLD_SECONDS: a model server that refuses makes
        the request a refused one, and not a response that begins only to fail."""
        opening = _Opening(self, lane)
        remembered = False
        try:
            async with aclosing(run.__aiter__()) as batches:
                async for batch in batches:
                    if not batch:
                        continue
                    if not remembered and run.turn.settling:
                        # Before its last event is sent: who has read that may continue the response at once.
                        remembered = True
                        self._remember(run, asked)
                    if opening.batch is None:
                        opening.hold(batch)
                        continue
                    if opening.held and run.turn.fault is not None:
                        raise run.turn.fault
                    await opening.release()
                    await self.write(batch, lane)
        finally:
            opening.drop()

    def _remember(self, run: Run, asked: _Asked) -> None:
        turn = run.turn
        if turn.fault is not None:
            self._memory.forget(asked.previous)
        else:
            self._memory.keep(turn, asked.size + sum(len(raw) for raw in turn.raws.values()))

    # ------------------------------------------------------------------------------------------ sending

    async def write(self, batch: list[Event], lane: _Lane) -> None:
        frames = bytearray()
        for event in batch:
            if self._frames:
                start = begin_text(frames)
                lane.append(event, frames)
                end_text(frames, start)
            else:
                lane.append(event, frames)
                await self._send_text(frames.decode())
                frames.clear()
        if frames:
            await self._pass({"type": FRAMES, "data": frames})

    async def _refuse(self, fault: ServerError, stream_id: str | None) -> None:
        await self._send_text(encode(FrameError(status=fault.status, error=fault.body(), stream_id=stream_id)).decode())

    async def _send_text(self, text: str) -> None:
        await self._pass({"type": "websocket.send", "text": text})

    async def _pass(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            raise _Gone from None

    # ------------------------------------------------------------------------------------------- ending

    def _expire(self) -> None:
        fault = InvalidRequest(
            f"A WebSocket connection lasts {self._limits.max_seconds / 60:g} minutes at most. Open a new one.",
            code="websocket_connection_limit_reached",
        )
        self._end(_Ending(fault, EXPIRED, told=True))

    def _end(self, ending: _Ending) -> None:
        """Running responses may end; the last lane to be done closes the connection."""
        if self._ending is None:
            self._ending = ending
            if not self._lanes:
                self._closing = asyncio.create_task(self._close(ending))

    async def _break_off(self) -> None:
        """Ends what runs now, with an error that its client can read."""
        self._interrupted = True
        self._ending = self._ending or _Ending(Stopping(), RESTART, told=False)
        tasks = []
        for lane in self._lanes.values():
            tasks.append(lane.task)
            if lane.run is None or lane.run.interrupt(Stopping()):
                lane.task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
        await self._close(self._ending)

    async def _close(self, ending: _Ending) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if ending.told:
                await self._refuse(ending.fault, None)
            await self._send({"type": "websocket.close", "code": ending.code, "reason": ending.fault.code or ""})
        except (_Gone, OSError):
            return


class _Opening:
    """The first batch of a response, held back for a moment."""

    def __init__(self, connection: _Connection, lane: _Lane) -> None:
        self._connection = connection
        self._lane = lane
        self.batch: list[Event] | None = None
        self.held = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def hold(self, batch: list[Event]) -> None:
        self.batch, self.held = batch, True
        self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._late)

    async def release(self) -> None:
        """Sent when this returns."""
        if self.held:
            self.drop()
            self.held = False
            assert self.batch is not None
            await self._connection.write(self.batch, self._lane)
        elif self._sending is not None:
            sending, self._sending = self._sending, None
            await sending

    def drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def _late(self) -> None:
        self.held = False
        assert self.batch is not None
        self._sending = asyncio.create_task(self._write(self.batch))

    async def _write(self, batch: list[Event]) -> None:
        with suppress(_Gone):  # whoever sends next meets it too
            await self._connection.write(batch, self._lane)


def _faulty(data: bytes, fault: InvalidRequest) -> tuple[str | None, _Asked]:
    """What can be told of a frame that is no valid request: its lane, and what it wanted to continue."""
    try:
        head = _head.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, _Asked(fault, 0, None)
    if head.type != "response.create":
        fault = _unknown(head.type)
    stream_id = head.stream_id if isinstance(head.stream_id, str) and len(head.stream_id) <= MAX_STREAM_ID else None
    previous = head.previous_response_id if isinstance(head.previous_response_id, str) else None
    return stream_id, _Asked(fault, 0, previous)


def _unknown(kind: object) -> InvalidRequest:
    shown = f"'{kind[:64]}'" if isinstance(kind, str) else "none"
    return InvalidRequest(
        f"Unknown event type {shown}: this server takes 'response.create'.", param="type", code="unknown_event_type"
    )
