"""Runs the calls that the server owns: together within a bound, answers in call order. Running never raises.

A fault becomes the call's output, marked failed, and a text that the model can act on (architecture §5, ToolFault).
"""

from __future__ import annotations

import asyncio
import logging

from treadle.engine.assembler import ModelCallMade, announce, conclude, is_object
from treadle.engine.turn import Turn
from treadle.errors import ServerError
from treadle.ids import new_id
from treadle.ports import ToolOutcome
from treadle.wire.events import Event
from treadle.wire.items import CallOutput, CustomToolCallOutput, FunctionCall, FunctionCallOutput

log = logging.getLogger("treadle.dispatch")

MAX_OUTPUT = 262_144
"""Characters of a tool's text that go to the model and the client; the rest is cut with a visible note."""


async def run_calls(turn: Turn, made: list[ModelCallMade]) -> list[ToolOutcome]:
    """One outcome per call, in call order."""
    bound = asyncio.Semaphore(turn.plan.max_parallel_tools)
    alone = turn.response.parallel_tool_calls is False or any(_exclusive(call) for call in made)

    async def run(call: ModelCallMade, may_run: bool) -> ToolOutcome:
        async with bound:
            return await _run_one(turn, call, may_run)

    allowed = [_count(turn, call) for call in made]
    if alone:
        return [await run(call, may) for call, may in zip(made, allowed, strict=True)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(call, may)) for call, may in zip(made, allowed, strict=True)]
    return [task.result() for task in tasks]


def record(turn: Turn, made: list[ModelCallMade], outcomes: list[ToolOutcome], out: list[Event]) -> None:
    """Appends the outputs to the turn, in call order, and says so."""
    for call, outcome in zip(made, outcomes, strict=True):
        call_id, text = call.item.call_id, outcome.text
        item: CallOutput
        if isinstance(call.item, FunctionCall):
            item = FunctionCallOutput(id=new_id("fco"), status="in_progress", call_id=call_id, output=text)
        else:
            item = CustomToolCallOutput(id=new_id("ctco"), status="in_progress", call_id=call_id, output=text)
        index = announce(turn, item, out)
        item.status = "incomplete" if outcome.failed else "completed"
        conclude(turn, item, index, out)


def _exclusive(call: ModelCallMade) -> bool:
    return call.binding.tool is not None and call.binding.tool.exclusive


def _count(turn: Turn, call: ModelCallMade) -> bool:
    """Charges a call against `max_tool_calls`; False when it is over the limit and must not run."""
    if call.binding.tool is None:
        return True
    limit = turn.response.max_tool_calls
    if limit is not None and turn.server_calls >= limit:
        return False
    turn.server_calls += 1
    return True


async def _run_one(turn: Turn, call: ModelCallMade, may_run: bool) -> ToolOutcome:
    tool, name = call.binding.tool, call.binding.seen
    if tool is None:
        offered = ", ".join(function.name for function in turn.plan.tools.functions) or "none"
        return ToolOutcome(f"There is no tool named '{name}' that may be called. Tools: {offered}.", failed=True)
    if not may_run:
        return ToolOutcome("Not run: the limit of tool calls for this response is reached.", failed=True)
    arguments = call.item.arguments if isinstance(call.item, FunctionCall) else call.arguments
    if not is_object(arguments):
        return ToolOutcome("Not run: the arguments are not a JSON object. Call again with valid JSON.", failed=True)
    try:
        outcome = await tool.run(name, arguments, turn.plan.scope)
    except ServerError as fault:
        return ToolOutcome(f"The tool failed: {fault.message}", failed=True)
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        # The tool cancelled itself; that is the call's fault, not the turn's end (bug case 57).
        return ToolOutcome("The tool was cancelled before it answered.", failed=True)
    except Exception:
        log.exception("the tool %s raised", name)
        return ToolOutcome("The tool failed with an internal error.", failed=True)
    return ToolOutcome(_fit(outcome.text), outcome.failed)


def _fit(text: str) -> str:
    """A tool's text within MAX_OUTPUT, and such that it can be written: no halves of surrogate pairs."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    if len(text) > MAX_OUTPUT:
        text = text[:MAX_OUTPUT] + f"\n[{len(text) - MAX_OUTPUT} more characters were cut off.]"
    return text
