"""Runs the calls that the server owns: together within a bound, answers in call order. Running never raises.

A fault becomes the call's output, marked failed, and a text that the model can act on (architecture §5, ToolFault).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from treadle.engine.assembler import ModelCallMade
from treadle.engine.calls import BROKEN_ARGUMENTS, Call, announce, conclude, is_object
from treadle.engine.turn import Keep, Turn
from treadle.engine.untrusted import wrapped
from treadle.errors import ServerError
from treadle.ids import new_id
from treadle.ports import ToolOutcome
from treadle.wire.events import Event
from treadle.wire.items import CallOutput, CustomToolCallOutput, FunctionCallOutput

log = logging.getLogger("treadle.dispatch")

MAX_OUTPUT = 262_144
"""Characters of a tool's text that go to the model and the client; the rest is cut with a visible note."""
MAX_KEPT = 33_554_432
"""Bytes of the whole text that are kept as a file of the caller."""
_KEEP_SECONDS = 30.0
_HARMLESS = ("file_search", "web_search")
"""Kinds of tools that may run again for the same call: they only look."""


async def run_calls(turn: Turn, made: list[ModelCallMade]) -> AsyncGenerator[tuple[ModelCallMade, ToolOutcome], None]:
    """Each call with its outcome, in call order, as soon as those before it are there."""
    allowed = [_count(turn, one) for one in made]
    if turn.response.parallel_tool_calls is False or any(_exclusive(one) for one in made):
        for one, may_run in zip(made, allowed, strict=True):
            yield one, await outcome_of(turn, one.call, may_run=may_run)
        return
    bound = asyncio.Semaphore(turn.plan.max_parallel_tools)

    async def run(call: Call, may_run: bool) -> ToolOutcome:
        async with bound:
            return await outcome_of(turn, call, may_run=may_run)

    tasks = [asyncio.create_task(run(one.call, may)) for one, may in zip(made, allowed, strict=True)]
    try:
        for one, task in zip(made, tasks, strict=True):
            yield one, await task
    finally:
        # When nobody listens any more, what still runs ends with the turn.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def outcome_of(turn: Turn, call: Call, *, may_run: bool = True) -> ToolOutcome:
    """Runs one call within the plan's time. Never raises: what goes wrong is the outcome (bug cases 46, 57)."""
    binding = call.binding
    if binding.tool is None:
        offered = ", ".join(function.name for function in turn.plan.tools.functions) or "none"
        return ToolOutcome(
            f"There is no tool named '{binding.seen}' that may be called. Tools: {offered}.", failed=True
        )
    if not may_run:
        return ToolOutcome("Not run: the limit of tool calls for this response is reached.", failed=True)
    arguments = call.arguments.strip() or "{}"
    if not is_object(arguments):
        return ToolOutcome(BROKEN_ARGUMENTS, failed=True)
    deadline = asyncio.timeout(turn.plan.tool_seconds)
    try:
        with turn.watch.tool(binding.name, call.call_id, kind=binding.kind, label=binding.label) as watch:
            async with deadline:
                if turn.acting is not None and binding.kind not in _HARMLESS:
                    await turn.acting()
                outcome = await binding.tool.run(binding.name, arguments, turn.plan.scope)
            watch.answered(failed=outcome.failed)
    except ServerError as fault:
        return ToolOutcome(f"The tool failed: {fault.message}", failed=True)
    except TimeoutError:
        if not deadline.expired():
            return ToolOutcome("The tool ran into a time limit of its own.", failed=True)
        return ToolOutcome(f"The tool did not answer within {turn.plan.tool_seconds:g} seconds.", failed=True)
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        # The tool cancelled itself; that is the call's fault, not the turn's end.
        return ToolOutcome("The tool was cancelled before it answered.", failed=True)
    except Exception:
        log.exception("the tool %r raised", binding.name[:64])
        return ToolOutcome("The tool failed with an internal error.", failed=True)
    outcome.text = await _fitted(turn, binding.name, outcome.text)
    return outcome


def record(turn: Turn, call: Call, outcome: ToolOutcome, out: list[Event]) -> None:
    """The output of a call whose own item does not hold it."""
    item: CallOutput
    item_id = new_id("ctco" if call.binding.kind == "custom" else "fco")
    # The item is all that a later turn knows of the call, so the marks have to be in it.
    text = wrapped(outcome.text, item_id) if outcome.untrusted else outcome.text
    if call.binding.kind == "custom":
        item = CustomToolCallOutput(id=item_id, status="in_progress", call_id=call.call_id, output=text)
    else:
        item = FunctionCallOutput(id=item_id, status="in_progress", call_id=call.call_id, output=text)
    turn.keep_images(item.id or "", outcome.images)
    index = announce(turn, item, out)
    item.status = "incomplete" if outcome.failed else "completed"
    conclude(turn, item, index, out)


def _exclusive(made: ModelCallMade) -> bool:
    return made.binding.tool is not None and made.binding.tool.exclusive


def _count(turn: Turn, made: ModelCallMade) -> bool:
    """Charges a call against `max_tool_calls`; False when it is over the limit and must not run."""
    if made.binding.tool is None:
        return True
    limit = turn.response.max_tool_calls
    if limit is not None and turn.server_calls >= limit:
        return False
    turn.server_calls += 1
    return True


async def _fitted(turn: Turn, tool: str, text: str) -> str:
    """A tool's text within MAX_OUTPUT, and such that it can be written: no halves of surrogate pairs. The whole of a
    longer one is kept as a file, which the note at its end names."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    if len(text) <= MAX_OUTPUT:
        return text
    note = f"{len(text) - MAX_OUTPUT} more characters were cut off."
    if turn.plan.keep is not None:
        note += await _kept(turn.plan.keep, tool, text)
    return f"{text[:MAX_OUTPUT]}\n[{note}]"


async def _kept(keep: Keep, tool: str, text: str) -> str:
    """Keeps the text, and says where it is or why it is not there. Never raises."""
    data = text.encode()
    part = "Full text"
    if len(data) > MAX_KEPT:
        text, part = data[:MAX_KEPT].decode("utf-8", "ignore"), f"The first {MAX_KEPT} bytes"
    del data
    try:
        async with asyncio.timeout(_KEEP_SECONDS):
            row = await keep(f"{tool[:64]}.txt", text)
    except ServerError as fault:
        return f" Keeping the full text as a file failed: {fault.message}"
    except TimeoutError:
        return f" Keeping the full text as a file took longer than {_KEEP_SECONDS:g} seconds and was given up."
    except Exception:
        log.exception("the text of the tool %r could not be kept", tool[:64])
        return " Keeping the full text as a file failed."
    return f" {part}: {row.id}, GET /v1/files/{row.id}/content"
