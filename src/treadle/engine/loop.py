"""One turn: rounds until done. Read this first.

The generator yields batches of events, one per network read, and ends with exactly one terminal event. Streaming,
non-streaming, background and in-process use are ways of draining it (architecture §1).
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from treadle.engine.assembler import Assembler
from treadle.engine.calls import Call
from treadle.engine.discovery import discover, run_approved, settle_denials
from treadle.engine.dispatch import record, run_calls
from treadle.engine.guard import Blocked, text_of
from treadle.engine.render import render
from treadle.engine.retrieve import search_first
from treadle.engine.round import Round
from treadle.engine.turn import Again, ClientAction, Finished, Plan, Stopped, Turn
from treadle.engine.window import Window
from treadle.errors import ContextTooLong, Internal, ServerError, StorageFault
from treadle.ports import ModelMessage, ToolOutcome
from treadle.wire.events import (
    ErrorEvent,
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)
from treadle.wire.items import Item, McpListTools, OpaqueItem

log = logging.getLogger("treadle.loop")

Settle = Callable[[Turn], Awaitable[None]]
"""Stores the finished turn in one transaction, or raises."""


async def run(turn: Turn, settle: Settle) -> AsyncGenerator[list[Event], None]:
    """The events of one response.

    The outcome stands in `turn.response` and, for a failure, `turn.fault`. The terminal event leaves only after
    `settle` returned; a fault in storing is reported as such and never as success.
    """
    if first := opening(turn):
        yield first
    try:
        async with aclosing(_turn(turn)) as batches:
            async for batch in batches:
                yield batch
        if turn.guard is not None:
            await turn.guard.conclude(turn)
    except ServerError as fault:
        turn.fail(fault)
    except asyncio.CancelledError:
        if turn.cancelling:
            turn.cancel()
        elif turn.interruption is not None:
            turn.fail(turn.interruption)
        else:
            raise
    except Exception:  # noqa: BLE001 -- a bug of ours ends the response, not the server
        turn.fail(unexpected())
    turn.settling = True
    try:
        with turn.watch.settling():
            await settle(turn)
    except ServerError as fault:
        turn.fail(fault if isinstance(fault, StorageFault) or turn.fault is None else turn.fault)
    except Exception:  # noqa: BLE001 -- a bug of ours ends the response, not the server
        turn.fail(unexpected())
    if last := closing(turn):
        yield last


async def _turn(turn: Turn) -> AsyncGenerator[list[Event], None]:
    """The server's own search, discovery and approved calls first, where there are any, and then the rounds."""
    plan = turn.plan
    if turn.guard is not None and await turn.guard.judge_input(plan.inputs, _around(plan)):
        refusal: list[Event] = []
        Assembler(turn).refuse(turn.guard.message, refusal)
        yield refusal
        turn.complete()
        return
    if not plan.generate:
        turn.complete()
        return
    messages = list(plan.messages)
    await settle_denials(turn)
    if plan.first_search is not None:
        async with aclosing(search_first(turn, plan.first_search)) as batches:
            async for batch in batches:
                yield batch
    searched = list(turn.items)
    if searched:
        messages = _asked(turn, searched)
    if plan.remote and plan.remote_tools is not None:
        async with aclosing(discover(turn, plan.remote_tools, fatal=plan.remote_fatal)) as batches:
            async for batch in batches:
                yield batch
        # Only now are the names known under which the model sees the tools of its earlier calls.
        messages = _asked(turn, searched)
        if plan.approved:
            first = len(turn.items)
            async with aclosing(run_approved(turn, plan.remote_tools)) as batches:
                async for batch in batches:
                    yield batch
            messages += _said(turn, first)
    async with aclosing(_rounds(turn, messages)) as batches:
        async for batch in batches:
            yield batch


async def _rounds(turn: Turn, messages: list[ModelMessage]) -> AsyncGenerator[list[Event], None]:
    final, turn.asked = False, messages
    window = Window(turn, messages)
    started = time.monotonic()
    while True:
        if made := await window.make_room():
            yield made
        round_, unheard = Round(turn, window.messages, final=final), True
        try:
            with turn.watch.round(turn.plan.request, round_.assembler) as watch:
                async with aclosing(round_.events()) as batches:
                    async for batch in batches:
                        if unheard:
                            unheard = False
                            watch.heard()
                        yield batch
            window.heard(round_.assembler.usage)
            if not isinstance(round_.decision, Stopped):
                async with aclosing(_run_server_calls(turn, round_)) as batches:
                    async for batch in batches:
                        yield batch
        except Blocked:
            assert turn.guard is not None
            refusal: list[Event] = []
            round_.refuse(turn.guard.message, refusal)
            yield refusal
            turn.complete()
            return
        except BaseException as error:
            if unheard and isinstance(error, ContextTooLong) and (shortened := await window.shorten()) is not None:
                if shortened:
                    yield shortened
                continue
            out: list[Event] = []
            round_.abort(out)
            # A client that left gets no more events, but what it had is stored.
            if out and (isinstance(error, Exception) or turn.ended_from_outside):
                yield out
            raise
        match round_.decision:
            case Finished() | ClientAction():
                turn.complete()
                return
            case Stopped(reason):
                out = []
                round_.abort(out)  # calls that a limit keeps from being run
                if out:
                    yield out
                turn.stop(reason)
                return
            case Again():
                if time.monotonic() - started > turn.plan.max_seconds:
                    turn.stop("max_iterations_exceeded")
                    return
                window.add(_said(turn, round_.assembler.first_index))
                final = round_.unfit


async def _run_server_calls(turn: Turn, round_: Round) -> AsyncGenerator[list[Event], None]:
    """Runs the round's calls that are not the client's, and yields the events of their ends in call order."""
    made = [one for one in round_.made if one.binding.owner != "client" and not one.binding.asks]
    apart: list[tuple[Call, ToolOutcome]] = []
    async with aclosing(run_calls(turn, made)) as ended:
        async for one, outcome in ended:
            out: list[Event] = []
            if one.call.pending:
                round_.assembler.settle(one.call, outcome, out)
            else:
                apart.append((one.call, outcome))
            if out:
                yield out
    # Outputs that are items of their own come after all items of the round.
    for call, outcome in apart:
        out = []
        record(turn, call, outcome, out)
        yield out


def _around(plan: Plan) -> list[str]:
    """What the caller wrote beside the input: instructions, and what filled the places of a prompt."""
    return [plan.instructions or "", *(text_of(item) for item in plan.shown[: plan.lead])]


def _asked(turn: Turn, searched: list[Item]) -> list[ModelMessage]:
    """The messages of the first round, with what was searched for it."""
    plan = turn.plan
    shown = [*plan.shown, *(item for item in searched if not isinstance(item, OpaqueItem))]
    return render(shown, plan.tools, plan.capabilities, plan.instructions, attached=plan.attached)


def _said(turn: Turn, first: int) -> list[ModelMessage]:
    """What the items from `first` on add to the model's messages, rendered like any history."""
    items = [item for item in turn.items[first:] if not isinstance(item, OpaqueItem | McpListTools)]
    return render(items, turn.plan.tools, turn.plan.capabilities, images=turn.images)


def opening(turn: Turn) -> list[Event]:
    """The first events, without those that are told already."""
    kinds = (ResponseCreated, ResponseInProgress)[turn.announced :]
    turn.snapshot()
    return [kind(sequence_number=turn.next_sequence(), response=copy.copy(turn.response)) for kind in kinds]


def closing(turn: Turn) -> list[Event]:
    """The terminal event; before a failure, the `error` event that says precisely what happened (contract §7.2). For
    a cancelled response there is none."""
    response = copy.copy(turn.response)
    match response.status:
        case "completed":
            return [ResponseCompleted(sequence_number=turn.next_sequence(), response=response)]
        case "incomplete":
            return [ResponseIncomplete(sequence_number=turn.next_sequence(), response=response)]
        case "cancelled":
            return []
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
    """A bug of ours, met while a response was made."""
    return Internal.logged(log, "the loop")
