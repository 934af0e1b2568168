"""Making a background response: the runner of its job.

Everything that happens while it is made ends in an outcome that is written with the end of the job, or gives the job
back. It may begin again, in another process, unless a tool that acts has run or somebody could have read what it said.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from treadle.api.background import IN_PROGRESS, QUEUED, AskedFor, BackgroundService
from treadle.api.event_writer import EventWriter, Recording
from treadle.api.responses import Backing, ResponseService, Run
from treadle.engine.loop import closing
from treadle.engine.turn import Turn
from treadle.errors import (
    ConversationLocked,
    InvalidRequest,
    NotFound,
    ServerError,
    Stopping,
    StorageFault,
    TimedOut,
)
from treadle.ports import EventLog, JobEnd, Sealer, SettledTurn, TryLater, Work
from treadle.wire.responses import ConversationRef

log = logging.getLogger("treadle.background")

ATTEMPTS = 4
"""Beginnings of one response that may end without an outcome, as when the process dies of it, before it has failed."""
_GRACE_SECONDS = 3.0
"""How long a turn may take to end when it is interrupted."""
_LAST_SECONDS = 0.5
"""How long after that, when nothing of it is wanted any more."""
_LOCKED_SECONDS = 1.0

_asked = msgspec.json.Decoder(AskedFor)


class BackgroundRun:
    """The runner of jobs that make responses."""

    def __init__(
        self,
        service: BackgroundService,
        responses: ResponseService,
        events: EventLog,
        writer: EventWriter,
        sealer: Sealer,
        *,
        timeout_seconds: float,
    ) -> None:
        self.service = service
        self.responses = responses
        self.log = events
        self.writer = writer
        self.sealer = sealer
        self.timeout_seconds = timeout_seconds

    async def __call__(self, work: Work) -> None:
        await _Making(self, work).run()


class _Making(Backing):
    """One attempt at one response."""

    def __init__(self, runner: BackgroundRun, work: Work) -> None:
        self._runner = runner
        self._work = work
        self._run: Run | None = None
        self._recording: Recording | None = None
        self._settled: SettledTurn | None = None

    async def run(self) -> None:
        work = self._work
        if work.job.cancelled:
            await self._end(None)
            return
        if (why := await self._why_not_again()) is not None:
            await self._end(why)
            return
        making = asyncio.create_task(self._make())
        try:
            await self._attend(making)
            if self._settled is not None:
                await self._runner.service.tell(self._settled)
        finally:
            making.cancel()
            if self._recording is not None and not work.gone:
                self._recording.close(None, ended=False)

    async def _attend(self, making: asyncio.Task[None]) -> None:
        """Waits for the outcome, or sees to it that there is one."""
        seconds = self._runner.timeout_seconds
        try:
            done, _ = await asyncio.wait((making,), timeout=seconds)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._told_to_end(making)
            return
        if done:
            making.result()
            return
        fault = TimedOut(
            f"The response was not done after {seconds:g} seconds, the limit for background responses "
            "(background.timeout_seconds)."
        )
        await self._interrupt(making, fault)

    async def _told_to_end(self, making: asyncio.Task[None]) -> None:
        match self._work.ending:
            case "cancelled":
                await self._interrupt(making, None)
            case "stopping" if await self._may_begin_again(making):
                raise asyncio.CancelledError
            case "stopping":
                done, _ = await asyncio.wait((making,), timeout=_GRACE_SECONDS)
                if done:
                    making.result()
                else:
                    await self._interrupt(making, Stopping())
            case _:
                await self._give_up(making)
                raise asyncio.CancelledError

    async def _interrupt(self, making: asyncio.Task[None], fault: ServerError | None) -> None:
        """Ends the turn as failed with `fault`, or as cancelled. What has an outcome already keeps it."""
        run = self._run
        if run is None or (run.cancel() if fault is None else run.interrupt(fault)):
            making.cancel()
        await asyncio.wait((making,), timeout=_GRACE_SECONDS)
        if making.done() and not making.cancelled():
            making.result()
        if not self._work.gone:
            # It had no turn yet, or it clings to a tool that does not let go.
            await self._give_up(making)
            await self._end(fault)

    async def _give_up(self, making: asyncio.Task[None]) -> None:
        """Ends the turn without an outcome."""
        making.cancel()
        await asyncio.wait((making,), timeout=_LAST_SECONDS)
        if self._run is not None:
            self._run.drop()
        if self._recording is not None:
            await self._recording.drop()

    async def _may_begin_again(self, making: asyncio.Task[None]) -> bool:
        """Whether it could be given up, and has been, so that another process can begin from the start."""
        if self._work.job.acted or (self._run is not None and self._run.turn.settling):
            return False
        if self._recording is None:
            await self._give_up(making)
            return True
        await self._recording.hold()
        if self._recording.written > IN_PROGRESS:
            self._recording.resume()
            return False
        await self._give_up(making)
        return True

    # ---------------------------------------------------------------------------------------- making it

    async def _make(self) -> None:
        run = self._run = await self._prepared()
        if run is None:
            return
        run.backing = self
        run.turn.acting = self._work.note_acted
        recording = self._recording
        async for batch in run:
            if recording is not None and not self._work.gone:
                recording.add(batch)
        fault = run.turn.fault
        if not self._work.gone:
            # It has an outcome that could not be stored.
            raise fault if isinstance(fault, StorageFault) else StorageFault("The response could not be stored.")

    async def _prepared(self) -> Run | None:
        """The turn; None if it failed before it began."""
        job = self._work.job
        try:
            text = self._runner.sealer.unseal(job.payload.decode())
            if text is None:
                raise InvalidRequest("The request was kept in a form that this server does not know.")
            asked = _asked.decode(text)
            run = await self._again(asked)
        except ConversationLocked:
            raise TryLater(_LOCKED_SECONDS, counted=False) from None
        except StorageFault:
            raise
        except ServerError as fault:
            await self._end(fault)
            return None
        response = run.turn.response
        response.background, response.created_at = True, asked.created_at
        if asked.request.stream:
            last = QUEUED
            if job.attempts > 1:
                state = await self._runner.log.state(job.scope, job.id)
                last = QUEUED if state is None or state.last is None else state.last
            run.turn.sequence, run.turn.announced = last + 1, min(last, IN_PROGRESS)
            self._recording = self._runner.writer.record(job, last + 1)
        return run

    async def _again(self, asked: AskedFor) -> Run:
        job, request = self._work.job, asked.request
        try:
            return await self._runner.responses.create(job.scope, request, known_as=job.id)
        except NotFound as fault:
            conversation = request.conversation_id
            if fault.param != "conversation" or conversation is None:
                raise
        # It was deleted in the meantime, which is no reason to lose the response (bug case 70).
        request.conversation = None
        run = await self._runner.responses.create(job.scope, request, known_as=job.id)
        run.turn.response.conversation = ConversationRef(conversation)
        return run

    async def _why_not_again(self) -> ServerError | None:
        """Why it must not be begun, if it was begun before."""
        job = self._work.job
        if job.attempts == 1:
            return None
        state = await self._runner.log.state(job.scope, job.id)
        if job.acted:
            why = "a tool had been called, and might have been called twice"
        elif state is not None and state.last is not None and state.last > IN_PROGRESS:
            why = "a part of it had been streamed, and cannot be taken back"
        elif job.attempts > ATTEMPTS:
            why = f"it was begun {ATTEMPTS} times"
        else:
            return None
        return Interrupted(why)

    async def _end(self, fault: ServerError | None) -> None:
        job = self._work.job
        self._work.gone = await self._runner.service.end(job.scope, JobEnd(job.id, job.claim), fault)

    # ------------------------------------------------------------------------------------ the turn's end

    async def complete(self, turn: Turn, settled: SettledTurn) -> None:
        job = self._work.job
        settled.job = JobEnd(job.id, job.claim)
        settled.jobs = self._runner.service.notices(job.scope, turn.response)
        if self._recording is not None:
            before = turn.sequence
            settled.events = await self._recording.rest(closing(turn))
            turn.sequence = before

    def stored(self, settled: SettledTurn) -> None:
        self._work.gone = True
        self._settled = settled
        if self._recording is not None:
            self._recording.close(settled.events, ended=True)


class Interrupted(ServerError):
    """The process that made it went away, and it could not be begun again."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The server stopped while it was working on this response. It was not begun again: {why}.")
