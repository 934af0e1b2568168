"""Background responses: put as jobs, made by workers, followed from their log, cancelled (contract §8).

The row of a response and that of its job come in one transaction and part in one: as long as the job is there, the
response has no outcome. Whoever has the claim of the job, or takes the job away, writes the outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Raw

from treadle.api.broken_off import BrokenOff, kinds
from treadle.api.event_writer import EventWriter, Live
from treadle.api.packing import unpack
from treadle.api.responses import ResponseService, inputs_of, row_of
from treadle.engine.turn import response_code
from treadle.errors import ClaimLost, InvalidRequest, NotFound, QueueFull, ServerError
from treadle.ports import (
    EventChunk,
    EventLog,
    JobEnd,
    JobQueue,
    Jobs,
    NewJob,
    Responses,
    Sealer,
    SettledTurn,
    StoredItem,
)
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.events import (
    ErrorEvent,
    Event,
    ResponseCreated,
    ResponseFailed,
    ResponseInProgress,
    ResponseQueued,
)
from treadle.wire.frames import framed, without_first
from treadle.wire.responses import CreateResponse, Response, ResponseDeleted, ResponseError

log = logging.getLogger("treadle.background")

KIND = "response"
RUNNING = ("queued", "in_progress")
CREATED, QUEUED, IN_PROGRESS = range(3)
"""The numbers of the first events. A log that goes no further shows nothing of what the model said."""

_CANCEL_SECONDS = 5.0
"""How long a worker in another process has to end what it is told to, before its claim is taken away."""
_LOOK_SECONDS = 0.05
_QUIET_SECONDS = 15.0
_CHUNKS = 64

Notices = Callable[[Scope, Response], Sequence[NewJob]]
"""Jobs that are put, in the same transaction, when a response has its outcome."""


def none(_scope: Scope, _response: Response) -> Sequence[NewJob]:
    """No notices."""
    return ()


class BackgroundRules(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds, as settings say them. `shared`: other processes make responses too, so that followers of what is not made
    here have to look for themselves."""

    queued: int = 100
    timeout_seconds: float = 300.0
    events_hours: float = 24.0
    shared: bool = False
    poll_seconds: float = 0.25


class AskedFor(msgspec.Struct, kw_only=True):
    """The payload of a job."""

    request: CreateResponse
    created_at: int


class BackgroundService:
    """What clients ask for. `background_run.py` makes the responses."""

    def __init__(
        self,
        responses: ResponseService,
        store: Responses,
        jobs: Jobs,
        events: EventLog,
        queue: JobQueue,
        sealer: Sealer,
        writer: EventWriter,
        rules: BackgroundRules,
        *,
        notices: Notices = none,
    ) -> None:
        self._responses = responses
        self._store = store
        self._jobs = jobs
        self._log = events
        self._queue = queue
        self._sealer = sealer
        self._writer = writer
        self._rules = rules
        self._notices = notices

    async def create(self, scope: Scope, request: CreateResponse) -> Response:
        """The queued response. All that can be refused is refused here, and QueueFull if too many wait."""
        run = await self._responses.create(scope, request)
        turn = run.turn
        response = turn.response
        try:
            response.background, response.status = True, "queued"
            if request.prompt is not None and response.prompt is not None:
                request.prompt.version = response.prompt.version  # the one that was shown, if another is chosen later
            asked = encode(AskedFor(request=request, created_at=response.created_at)).decode()
            job = NewJob(id=response.id, kind=KIND, payload=self._sealer.seal(asked).encode())
            await self._store.queue(
                scope,
                row_of(response),
                inputs_of(turn.plan),
                job,
                most=self._rules.queued,
                events=_first(request, response),
            )
        except QueueFull:
            raise QueueFull(
                f"{self._rules.queued} background responses are waiting already, which is the most that may "
                "(background.queued). Try again later.",
                headers={"retry-after": "5"},
            ) from None
        finally:
            run.drop()
        await self._queue.put(job)
        return response

    async def events(self, scope: Scope, response_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """The frames with numbers above `after`, up to the last there will be. Refuses before the first; the rest is
        read as the generator is."""
        state = await self._log.state(scope, response_id)
        if state is None:
            raise _missing(response_id)
        if state.last is None:
            raise InvalidRequest(
                "This response has no stored events. Only one made with 'background' and 'stream' has them, for "
                f"{self._rules.events_hours:g} hours (background.events_hours).",
                param="stream",
            )
        return self._followed(scope, response_id, after, self._writer.live(scope, response_id))

    async def _followed(self, scope: Scope, response_id: str, after: int, live: Live) -> AsyncGenerator[bytes, None]:
        seconds = self._rules.poll_seconds if self._rules.shared else _QUIET_SECONDS
        while True:
            over = live.ended
            chunks = live.since(after)
            if chunks is None or (not chunks and not over and live.due(seconds)):
                over, chunks = await self._looked(scope, response_id, after, live)
            for chunk in chunks:
                skipped = max(0, after + 1 - chunk.first)
                yield without_first(chunk.data, skipped) if skipped else chunk.data
                after = chunk.last
            if not chunks:
                if over:
                    return
                await live.wait(_QUIET_SECONDS if live.local else seconds)

    async def _looked(self, scope: Scope, response_id: str, after: int, live: Live) -> tuple[bool, list[EventChunk]]:
        """What the log has, and whether that is all. Others who follow here are told of it."""
        state = await self._log.state(scope, response_id)
        chunks = await self._log.read(scope, response_id, after, _CHUNKS)
        over = state is None or state.ended
        if not live.local:
            for chunk in chunks:
                live.publish(chunk)
            if over and len(chunks) < _CHUNKS:
                live.end()
        return over, chunks

    async def cancel(self, scope: Scope, response_id: str) -> Response:
        """The cancelled response. InvalidRequest for one that is not made in the background, or has another outcome."""
        while True:
            response = await self._responses.get(scope, response_id)
            if not response.background:
                raise InvalidRequest(
                    "Cannot cancel a response that was not made with 'background'.", param="response_id"
                )
            if response.status == "cancelled":
                return response
            if response.status not in RUNNING:
                raise InvalidRequest(f"Cannot cancel a response that is {response.status}.", param="response_id")
            working = await self._jobs.cancel(scope, response_id)
            if working is None:
                await asyncio.sleep(_LOOK_SECONDS)  # it has just ended
                continue
            if working:
                await self._queue.cancel(response_id)
                if await self._ended(scope, response_id):
                    continue
                log.warning("%s did not stop when it was cancelled, and is taken from its worker", response_id)
            with suppress(ClaimLost):  # somebody has taken it up just now, or has ended it
                await self.end(scope, JobEnd(response_id, forced=working), None)

    async def _ended(self, scope: Scope, response_id: str) -> bool:
        until = time.monotonic() + _CANCEL_SECONDS
        while True:
            state = await self._log.state(scope, response_id)
            if state is None or state.ended:
                return True
            if time.monotonic() > until:
                return False
            await asyncio.sleep(_LOOK_SECONDS)

    async def delete(self, scope: Scope, response_id: str) -> ResponseDeleted:
        """Deletes any response; one that is still made in the background is cancelled first."""
        response = await self._responses.get(scope, response_id)
        if response.background and response.status in RUNNING:
            try:
                await self.cancel(scope, response_id)
            except InvalidRequest as fault:
                log.debug("%s ended before it could be cancelled: %s", response_id, fault.message)
        return await self._responses.delete(scope, response_id)

    async def expire(self) -> None:
        """Removes event logs whose time is up."""
        await self._log.expire(int(time.time() - self._rules.events_hours * 3600))

    async def end(self, scope: Scope, job: JobEnd, fault: ServerError | None) -> bool:
        """Writes an outcome without a turn: cancelled, or failed with `fault`. False if there is one already. ClaimLost
        if it is not this caller's to write."""
        found = await self._store.get(scope, job.id)
        if found is None or found.row.status not in RUNNING:
            return False
        response = unpack(Response, found, ())
        response.status = "cancelled"
        if fault is not None:
            response.status, response.error = "failed", ResponseError(response_code(fault), fault.message)
        events, outputs = await self._rest(scope, response, fault)
        settled = SettledTurn(
            row=row_of(response),
            inputs=found.inputs,
            outputs=outputs,
            job=job,
            events=events,
            jobs=self._notices(scope, response),
        )
        await self._store.settle(scope, settled)
        self._writer.live(scope, job.id).end()
        await self.tell(settled)
        return True

    async def tell(self, settled: SettledTurn) -> None:
        """Wakes those who do what was put with an outcome."""
        for job in settled.jobs:
            await self._queue.put(job)

    async def _rest(
        self, scope: Scope, response: Response, fault: ServerError | None
    ) -> tuple[EventChunk | None, list[StoredItem]]:
        """What ends the log, if there is one, and the items that it tells of."""
        broken, first = BrokenOff(), 0
        while chunks := await self._log.read(scope, response.id, first - 1, _CHUNKS):
            for chunk in chunks:
                broken.read(chunk.data)
                first = chunk.last + 1
        if not first:
            return None, []
        frames, number = broken.close(first)
        items = kinds(data for _, data in sorted(broken.items.items()))
        response.output = [Raw(data) for _, _, data in items]
        if fault is not None:
            last = _failed(response, number, fault)
            frames += framed(last)
            number += len(last)
        stored = [StoredItem(item_id, kind, data) for item_id, kind, data in items]
        return (EventChunk(first, number - 1, frames) if frames else None), stored

    def notices(self, scope: Scope, response: Response) -> Sequence[NewJob]:
        return self._notices(scope, response)


def _first(request: CreateResponse, response: Response) -> EventChunk | None:
    if not request.stream:
        return None
    events: list[Event] = [
        ResponseCreated(sequence_number=CREATED, response=response),
        ResponseQueued(sequence_number=QUEUED, response=response),
    ]
    return EventChunk(CREATED, QUEUED, framed(events))


def _failed(response: Response, number: int, fault: ServerError) -> list[Event]:
    """What ends the log of a response that fails outside of its turn."""
    events: list[Event] = []
    if number == IN_PROGRESS:
        begun = msgspec.structs.replace(response, status="in_progress", error=None)
        events.append(ResponseInProgress(sequence_number=number, response=begun))
        number += 1
    body = fault.body()
    return [
        *events,
        ErrorEvent(sequence_number=number, code=body.code, message=body.message, param=body.param, error=body),
        ResponseFailed(sequence_number=number + 1, response=response),
    ]


def _missing(response_id: str) -> NotFound:
    return NotFound(f"Response '{response_id[:128]}' not found.", param="response_id")
