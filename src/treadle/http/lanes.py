"""The requests of one `stream_id` of a WebSocket connection, answered one after the other.

A lane drains a run as an event stream does, and what it sends goes straight to the socket: a client that reads slowly
delays the send, and with it the next read of the model's answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import dataclass

from treadle.api.remembered import ConnectionMemory
from treadle.api.responses import ResponseService, Run
from treadle.errors import ServerError, Stopping
from treadle.http.frames import Gone, Outlet
from treadle.http.replies import internal
from treadle.http.sse import HOLD_SECONDS
from treadle.scope import LOCAL
from treadle.wire.base import encode
from treadle.wire.events import Event
from treadle.wire.sockets import ResponseCreate

_WHERE = "/v1/responses (WebSocket)"


@dataclass(slots=True)
class Asked:
    """A frame that waits its turn: a request, or what is wrong with it. Faults are told in turn too, because clients
    know only by the order what an event without a response belongs to."""

    what: ResponseCreate | ServerError
    size: int = 0
    previous: str | None = None
    """The response that it wanted to continue."""


@dataclass(slots=True)
class Shared:
    """What the lanes of a connection have in common."""

    service: ResponseService
    memory: ConnectionMemory
    outlet: Outlet
    refusing: ServerError | None = None
    """Set when the connection is to end: why no further request is begun."""
    interrupted: bool = False
    """Set just before tasks are cancelled whose clients have to be told."""


class Lane:
    """One lane. Its owner runs `answer` for each request, in a task that `interrupt` may cancel."""

    def __init__(self, stream_id: str | None, shared: Shared) -> None:
        self.stream_id = stream_id
        self.waiting: deque[Asked] = deque()
        self.task: asyncio.Task[None]
        self._shared = shared
        self._run: Run | None = None
        self._tail = b"" if stream_id is None else b',"stream_id":' + encode(stream_id) + b"}"

    async def answer(self, asked: Asked) -> None:
        """One request, to its last event or to the one event that refuses it. Gone if the client has left."""
        shared = self._shared
        try:
            if shared.refusing is not None:
                raise shared.refusing
            if isinstance(asked.what, ServerError):
                raise asked.what
            self._run = await shared.service.create(
                LOCAL, asked.what, remembered=shared.memory.recall, generate=asked.what.generate is not False
            )
            await self._drain(self._run, asked)
            return
        except ServerError as refused:
            fault = refused
        except asyncio.CancelledError:
            if not shared.interrupted:
                raise
            fault = Stopping()
        except Gone:
            raise
        except Exception:  # noqa: BLE001 -- a bug of ours ends the request, not the connection
            fault = internal(_WHERE)
        finally:
            self._run = None
        shared.memory.forget(asked.previous)
        await shared.outlet.fault(fault, self.stream_id)

    def interrupt(self) -> None:
        """Ends what runs, with an error that its client can read."""
        if self._run is None or self._run.interrupt(Stopping()):
            self.task.cancel()

    async def send(self, batch: list[Event]) -> None:
        fault = self._run.turn.fault if self._run is not None else None
        await self._shared.outlet.events(batch, self._tail, 500 if fault is None else fault.status)

    async def _drain(self, run: Run, asked: Asked) -> None:
        """Sends the events. The first batch waits for the second or HOLD_SECONDS: a model server that refuses makes
        the request a refused one, and not a response that begins only to fail."""
        opening = _Opening(self)
        remembered = False
        try:
            async with aclosing(run.__aiter__()) as batches:
                async for batch in batches:
                    if not batch:
                        continue
                    if run.turn.settling and not remembered:
                        # Before its last event is sent: who has read that may continue the response at once.
                        remembered = True
                        self._remember(run, asked)
                    if opening.batch is None:
                        opening.hold(batch)
                        continue
                    if opening.held and run.turn.fault is not None:
                        raise run.turn.fault
                    await opening.release()
                    await self.send(batch)
        finally:
            opening.drop()

    def _remember(self, run: Run, asked: Asked) -> None:
        turn = run.turn
        if turn.fault is not None:
            self._shared.memory.forget(asked.previous)
        else:
            self._shared.memory.keep_turn(turn, asked.size + sum(len(raw) for raw in turn.raws.values()))


class _Opening:
    """The first batch of a response, held back for a moment."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.batch: list[Event] | None = None
        self.held = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def hold(self, batch: list[Event]) -> None:
        self.batch, self.held = batch, True
        self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._late, batch)

    async def release(self) -> None:
        """Sent when this returns."""
        if self.held:
            self.drop()
            self.held = False
            assert self.batch is not None
            await self._lane.send(self.batch)
        elif self._sending is not None:
            sending, self._sending = self._sending, None
            await sending

    def drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def _late(self, batch: list[Event]) -> None:
        self.held = False
        self._sending = asyncio.create_task(self._send(batch))

    async def _send(self, batch: list[Event]) -> None:
        with suppress(Gone):  # whoever sends next meets it too
            await self._lane.send(batch)
