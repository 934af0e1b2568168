"""The assembler: total on anything a model may send, and every stream it makes is legal."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.support import FUNCTIONS, Look, events_of, plan_of
from treadle.models.chat_wire import ChunkReader
from treadle.models.sse import EventSplitter
from treadle.ports import CallFragment, ModelCall, ModelChunk, ModelMessage, ModelUsage, TokenLogprob
from treadle.testing.scripted import ScriptedModel
from treadle.testing.turns import chunk, sse

LOOKUP = {"type": "lookup"}


def fragment(slot: int = 0, **fields: Any) -> ModelChunk:
    return ModelChunk(call=CallFragment(slot, **fields))


STOP = ModelChunk(finish="stop")
TEXTS = st.sampled_from(["", " ", "\n", "a", "be", "\u2028", "\x00", "\U0001f600"])
FRAGMENTS = st.builds(
    CallFragment,
    slot=st.integers(0, 3),
    id=st.sampled_from([None, "call_a", "call_b", "x" * 70]),
    name=st.sampled_from([None, "act", "patch", "look", "invented"]),
    arguments=st.sampled_from(["", "{", "}", "{}", '{"input": "x"}', "nonsense"]),
)
CHUNKS = st.builds(
    ModelChunk,
    text=TEXTS,
    reasoning=TEXTS,
    refusal=TEXTS,
    call=st.none() | FRAGMENTS,
    logprobs=st.none() | st.just([TokenLogprob("a", -1.0)]),
    finish=st.sampled_from([None, None, None, "stop", "length", "tool_calls", "content_filter"]),
    usage=st.none() | st.builds(ModelUsage, input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9)),
)
READS = st.lists(st.lists(CHUNKS, max_size=4), max_size=8)


@settings(deadline=None, max_examples=300)
@given(st.lists(READS, min_size=1, max_size=4), st.sampled_from([None, 12]), st.sampled_from([None, 1]))
def test_any_chunks_make_a_legal_stream(rounds: list[Any], most_tokens: int | None, most_calls: int | None) -> None:
    model = ScriptedModel(*rounds, *[[STOP]] * 4)
    plan = plan_of(
        model,
        tools=[*FUNCTIONS, LOOKUP],
        server_tools={"lookup": Look()},
        max_output_tokens=most_tokens,
        max_tool_calls=most_calls,
    )
    events, turn = events_of(plan)
    response = events[-1]["response"]
    assert response["status"] in ("completed", "incomplete", "failed")
    ids = [item["call_id"] for item in response["output"] if item["type"] in ("function_call", "custom_tool_call")]
    assert len(set(ids)) == len(ids)
    assert all(len(one) <= 64 for one in ids)
    answered = {item["call_id"] for item in response["output"] if item["type"].endswith("_output")}
    assert answered <= set(ids)
    assert len(turn.items) == len(response["output"])


@settings(deadline=None, max_examples=100)
@given(st.lists(READS, min_size=1, max_size=1), st.integers(0, 8))
def test_any_chunks_and_then_a_fault_make_a_legal_failed_stream(rounds: list[Any], at: int) -> None:
    script = [*rounds[0][:at], RuntimeError("scripted")]
    events, _ = events_of(plan_of(ScriptedModel(script)))
    assert events[-1]["type"] == "response.failed"
    assert "scripted" not in events[-1]["response"]["error"]["message"]


DELTAS: list[dict[str, Any]] = [
    {"content": "Hello "},
    {"content": "<think>"},
    {"content": "</think>"},
    {"content": "w\u00f6rld \u2028\U0001f600"},
    {"reasoning_content": "Hm. "},
    {"refusal": "No."},
    {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "act", "arguments": '{"a":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "patch", "arguments": '{"input":"x"}'}}]},
    {},
]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(DELTAS), max_size=10),
    st.lists(st.integers(0, 3000), max_size=12),
    st.sampled_from(["stop", "length", "tool_calls", None]),
    st.booleans(),
)
def test_any_cut_of_the_upstream_bytes_gives_the_same_items(
    deltas: list[dict[str, Any]], cuts: list[int], finish: str | None, hold: bool
) -> None:
    stream = sse(chunk({"role": "assistant"}), *map(chunk, deltas), chunk({}, finish=finish))
    points = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    cut = [stream[start:end] for start, end in pairwise(points)]
    assert _outcome(cut, hold) == _outcome([stream], hold)


def _outcome(reads: list[bytes], hold: bool) -> list[Any]:
    splitter, reader = EventSplitter(), ChunkReader(hold_thinking=hold)
    script: list[list[ModelChunk]] = []
    for read in reads:
        out: list[ModelChunk] = []
        for data in splitter.feed(read):
            reader.read(data, out)
        script.append(out)
    reader.finish(script[-1])
    events, _ = events_of(plan_of(ScriptedModel(script)))
    response = events[-1]["response"]
    return [response["status"], *({k: v for k, v in item.items() if k != "id"} for item in response["output"])]


def test_white_space_alone_opens_no_message_but_leads_the_text_that_follows() -> None:
    spaced = [ModelChunk(text="\n"), ModelChunk(reasoning="Hm."), ModelChunk(text=" "), ModelChunk(text="a"), STOP]
    events, _ = events_of(plan_of(ScriptedModel(spaced)))
    _, message = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == "\n a"
    padded = [ModelChunk(text="\n\n"), fragment(name="act", arguments="{}"), ModelChunk(text="\n"), STOP]
    events, _ = events_of(plan_of(ScriptedModel(padded)))
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["function_call"]


def test_an_answer_of_white_space_is_an_answer() -> None:
    logprobs = [TokenLogprob("\n", -0.5)]
    events, _ = events_of(plan_of(ScriptedModel([ModelChunk(text="\n", logprobs=logprobs), STOP])))
    (message,) = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == "\n"
    assert [entry["token"] for entry in message["content"][0]["logprobs"]] == ["\n"]


def test_text_and_refusal_are_two_parts_of_one_message() -> None:
    events, _ = events_of(plan_of(ScriptedModel([ModelChunk(text="a"), ModelChunk(refusal="b"), STOP])))
    (message,) = events[-1]["response"]["output"]
    assert [part["type"] for part in message["content"]] == ["output_text", "refusal"]


def test_arguments_that_come_before_the_name_follow_it_at_once() -> None:
    script = [fragment(arguments='{"a":'), fragment(arguments="1"), fragment(name="act"), fragment(arguments="}"), STOP]
    events, _ = events_of(plan_of(ScriptedModel(script)))
    assert events[-1]["response"]["output"][0]["arguments"] == '{"a":1}'


def test_a_call_that_is_nothing_is_no_call() -> None:
    events, _ = events_of(plan_of(ScriptedModel([ModelChunk(text="a"), fragment(), STOP])))
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]
    assert events[-1]["type"] == "response.completed"


def test_an_id_that_comes_after_the_name_changes_nothing() -> None:
    events, _ = events_of(plan_of(ScriptedModel([fragment(name="act"), fragment(id="late", arguments="{}"), STOP])))
    announced = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    assert events[-1]["response"]["output"][0]["call_id"] == announced["call_id"] != "late"


@pytest.mark.parametrize("taken", ["call_1", "y" * 70])
def test_a_call_id_that_the_history_uses_is_replaced(taken: str) -> None:
    history = [ModelMessage("assistant", calls=[ModelCall(taken[:64], "act", "{}")])]
    script = [fragment(id=taken, name="act", arguments="{}"), STOP]
    events, _ = events_of(plan_of(ScriptedModel(script), messages=history))
    assert events[-1]["response"]["output"][0]["call_id"] != taken[:64]


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"input": "*** Patch"}', "*** Patch"), ("bare text", "bare text"), ("", "")]
)
def test_a_custom_tools_text_is_what_the_model_meant(arguments: str, expected: str) -> None:
    events, _ = events_of(plan_of(ScriptedModel([fragment(name="patch", arguments=arguments), STOP])))
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", expected)
