"""Rounds until done: what ends a turn, what is counted, and what a fault leaves behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from msgspec import Raw

from tests.behaviour.manifest import behaviour
from tests.unit.engine.support import FUNCTIONS, Look, events_of, plan_of
from treadle.engine.loop import run
from treadle.engine.turn import Turn
from treadle.errors import ContextTooLong, QuotaExceeded, StorageFault, ToolFault, UpstreamFault
from treadle.ports import Capabilities, ModelChunk, ModelUsage, OutputFormat, ToolOutcome
from treadle.testing.gates import Gate
from treadle.testing.scripted import ScriptedModel, calls, says

LOOKUP = {"type": "lookup"}
SCHEMA = OutputFormat("json_schema", name="answer", schema=Raw(b'{"type":"object","required":["a"]}'))


def looped(model: ScriptedModel, tool: Look | None = None, **more: Any) -> tuple[dict[str, Any], Turn]:
    """The response of a turn whose tools are the server's."""
    tool = tool or Look()
    events, turn = events_of(plan_of(model, tools=[LOOKUP], server_tools={"lookup": tool}, **more))
    return events[-1]["response"], turn


def test_outputs_go_back_to_the_model_until_it_answers() -> None:
    model = ScriptedModel(calls("look", text="Looking."), says("Found."))
    response, _ = looped(model)
    assert [item["type"] for item in response["output"]] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assistant, result = model.requests[1].messages[1:]
    assert (assistant.content, assistant.calls[0].id) == ("Looking.", "call_1")
    assert (result.call_id, result.content) == ("call_1", "seen")
    assert response["usage"]["total_tokens"] == 30


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (ToolFault("No such place."), "The tool failed: No such place."),
        (RuntimeError("secret"), "The tool failed with an internal error."),
        (asyncio.CancelledError(), "The tool was cancelled before it answered."),
        (ToolOutcome("x" * 300_000), "more characters were cut off"),
        (ToolOutcome("half \ud800"), "half ?"),
    ],
)
def test_whatever_a_tool_does_the_model_is_told_and_the_turn_goes_on(outcome: Any, expected: str) -> None:
    model = ScriptedModel(calls("look"), says("I see."))
    response, _ = looped(model, Look(outcome))
    assert response["status"] == "completed"
    assert expected in response["output"][1]["output"]
    assert model.requests[1].messages[-1].content == response["output"][1]["output"]
    assert "secret" not in response["output"][1]["output"]


def test_a_call_of_the_client_ends_the_turn_and_the_servers_calls_still_run() -> None:
    both = [*calls("look")[:-1], *calls("act", id="call_2")[:-1]]
    both[2].call.slot = both[3].call.slot = 1  # type: ignore[union-attr]
    tool = Look()
    model = ScriptedModel([*both, ModelChunk(finish="tool_calls")])
    events, _ = events_of(plan_of(model, tools=[*FUNCTIONS, LOOKUP], server_tools={"lookup": tool}))
    kinds = [item["type"] for item in events[-1]["response"]["output"]]
    assert kinds == ["function_call", "function_call", "function_call_output"]
    assert tool.arguments == ["{}"]


def test_the_iteration_cap_ends_the_turn_as_incomplete() -> None:
    response, _ = looped(ScriptedModel(*[calls("look")] * 3), max_infer_iters=3)
    assert response["incomplete_details"] == {"reason": "max_iterations_exceeded"}


def test_usage_of_a_round_that_broke_is_counted() -> None:
    used = ModelChunk(text="a", usage=ModelUsage(input_tokens=7, output_tokens=2))
    response, _ = looped(ScriptedModel(calls("look"), [used, UpstreamFault("It broke.")]))
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (17, 7)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (QuotaExceeded("Slow."), "rate_limit_exceeded"),
        (ContextTooLong("Long."), "invalid_prompt"),
        (UpstreamFault("Broke."), "server_error"),
    ],
)
def test_a_failed_response_has_a_code_that_strict_clients_know(fault: Exception, code: str) -> None:
    response, turn = looped(ScriptedModel([ModelChunk(text="a"), fault]))
    assert response["error"]["code"] == code
    assert turn.fault is fault
    assert response["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("fault", [StorageFault("The disk is full."), RuntimeError("secret")])
async def test_a_response_that_could_not_be_stored_is_no_success(fault: Exception) -> None:
    async def settle(_: Turn) -> None:
        raise fault

    plan = plan_of(ScriptedModel(says("Hello.")))
    turn = Turn(plan, plan.response)
    events = [event async for batch in run(turn, settle) for event in batch]
    assert type(events[-1]).__name__ == "ResponseFailed"
    assert turn.response.status == "failed"
    assert "secret" not in str(turn.response.error)


async def test_a_reader_that_leaves_closes_the_model_and_what_was_open() -> None:
    model = ScriptedModel([ModelChunk(text="Half"), Gate()])
    plan = plan_of(model)
    turn = Turn(plan, plan.response)

    async def settle(_: Turn) -> None:
        raise AssertionError("settled by whoever drives")

    async with aclosing(run(turn, settle)) as batches:
        await anext(batches)
        await anext(batches)
    assert model.abandoned == 1
    turn.cancel()
    assert len(turn.response.output) == 1
    assert b'"incomplete"' in bytes(turn.response.output[0])


@behaviour("bug-23")
def test_a_schema_is_withheld_while_tools_are_on_offer_and_asked_for_at_the_end() -> None:
    model = ScriptedModel(
        calls("look"), says("In prose."), says('{"a": 1}'), capabilities=Capabilities(schema_with_tools=False)
    )
    response, _ = looped(model, output_format=SCHEMA)
    assert [request.output_format is not None for request in model.requests] == [False, False, True]
    assert [bool(request.functions) for request in model.requests] == [True, True, False]
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output", "message"]
    assert response["output"][-1]["content"][0]["text"] == '{"a": 1}'


def test_an_answer_that_fits_the_schema_by_itself_is_not_asked_for_again() -> None:
    model = ScriptedModel(says('{"a"', ": 1}"), capabilities=Capabilities(schema_with_tools=False))
    response, _ = looped(model, output_format=SCHEMA)
    assert response["output"][0]["content"][0]["text"] == '{"a": 1}'
