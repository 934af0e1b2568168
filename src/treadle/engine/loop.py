"""One turn: rounds until done. Read this first.

The generator yields batches of events, one per network read, and ends with exactly one terminal event. Streaming,
non-streaming, background and in-process use are ways of draining it (architecture §1).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from treadle.engine.dispatch import record, run_calls
from treadle.engine.render import render
from treadle.engine.round import Round
from treadle.engine.turn import Again, ClientAction, Finished, Stopped, Turn
from treadle.errors import Internal, ServerError, StorageFault
from treadle.ids import new_id
from treadle.ports import ModelMessage
from treadle.wire.events import (
    ErrorEvent,
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)
from treadle.wire.items import OpaqueItem

log = logging.getLogger("treadle.loop")

Settle = Callable[[Turn], Awaitable[None]]
"""Stores the finished turn in one transaction, or raises."""


async def run(turn: Turn, settle: Settle) -> AsyncGenerator[list[Event], None]:
    """The events of one response.

    The outcome stands in `turn.response` and, for a failure, `turn.fault`. The terminal event leaves only after
    `settle` returned; a fault in storing is reported as such and never as success.
    """
    yield opening(turn)
    try:
        async with aclosing(_rounds(turn)) as batches:
            async for batch in batches:
                yield batch
    except ServerError as fault:
        turn.fail(fault)
    except asyncio.CancelledError:
        if turn.interruption is None:
            raise
        turn.fail(turn.interruption)
    except Exception:  # noqa: BLE001 -- a bug of ours ends the response, not the server
        turn.fail(unexpected())
    turn.settling = True
    try:
        await settle(turn)
    except ServerError as fault:
        turn.fail(fault if isinstance(fault, StorageFault) or turn.fault is None else turn.fault)
    except Exception:  # noqa: BLE001 -- a bug of ours ends the response, not the server
        turn.fail(unexpected())
    yield closing(turn)


async def _rounds(turn: Turn) -> AsyncGenerator[list[Event], None]:
    messages = list(turn.plan.messages)
    final = False
    while True:
        round_ = Round(turn, messages, final=final)
        try:
            async with aclosing(round_.events()) as batches:
                async for batch in batches:
                    yield batch
        except BaseException as error:
            out: list[Event] = []
            round_.abort(out)
            # A client that left gets no more events, but what it had is stored.
            if out and (isinstance(error, Exception) or turn.interruption is not None):
                yield out
            raise
        match round_.decision:
            case Finished() | ClientAction():
                if batch := await _run_server_calls(turn, round_):
                    yield batch
                turn.complete()
                return
            case Stopped(reason):
                turn.stop(reason)
                return
            case Again():
                if batch := await _run_server_calls(turn, round_):
                    yield batch
                messages = messages + _said(turn, round_)
                final = round_.unfit


async def _run_server_calls(turn: Turn, round_: Round) -> list[Event]:
    """Runs the round's calls that are not the client's and returns the events of their outputs."""
    out: list[Event] = []
    made = [call for call in round_.made if call.binding.owner != "client"]
    if made:
        record(turn, made, await run_calls(turn, made), out)
    return out


def _said(turn: Turn, round_: Round) -> list[ModelMessage]:
    """What the round adds to the model's messages: its items, rendered like any history."""
    items = [item for item in turn.items[round_.assembler.first_index :] if not isinstance(item, OpaqueItem)]
    return render(items, turn.plan.tools, turn.plan.capabilities)


def opening(turn: Turn) -> list[Event]:
    return [
        ResponseCreated(sequence_number=turn.next_sequence(), response=copy.copy(turn.snapshot())),
        ResponseInProgress(sequence_number=turn.next_sequence(), response=copy.copy(turn.response)),
    ]


def closing(turn: Turn) -> list[Event]:
    """The terminal event; before a failure, the `error` event that says precisely what happened (contract §7.2)."""
    response = copy.copy(turn.response)
    match response.status:
        case "completed":
            return [ResponseCompleted(sequence_number=turn.next_sequence(), response=response)]
        case "incomplete":
            return [ResponseIncomplete(sequence_number=turn.next_sequence(), response=response)]
        case _:
            body = (turn.fault or unexpected()).body()
            return [
                ErrorEvent(
                    sequence_number=turn.next_sequence(),
                    code=body.code,
                    message=body.message,
                    param=body.param,
                    error=body,
                ),
                ResponseFailed(sequence_number=turn.next_sequence(), response=response),
            ]


def unexpected() -> Internal:
    """A bug of ours: an id for the caller, the trace for the log."""
    number = new_id("err")
    log.exception("internal error %s", number)  # noqa: LOG004 -- called where the error is being handled
    return Internal(f"Something went wrong inside the server. The log has the details under {number}.")
