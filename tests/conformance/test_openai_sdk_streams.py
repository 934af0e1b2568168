"""The official Python client in strict mode on streamed responses: the plain iterator and the stateful helper."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.conftest import MODEL
from tests.conformance.test_openai_sdk import CRM, SHELL, WEATHER, Answer
from treadle.testing.turns import Call, Drop, Refuse, Reply
from treadle.testing.upstream import ScriptedUpstream


def test_a_text_stream_passes_the_types_and_ends_as_it_is_stored(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="One two three."))
    events = list(client.responses.create(model=MODEL, input="Count.", stream=True))
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "One two three."
    assert events[-1].type == "response.completed"
    assert client.responses.retrieve(events[-1].response.id) == events[-1].response


def test_every_kind_of_output_passes_the_types(client: Any, model: ScriptedUpstream) -> None:
    tools = [SHELL, CRM, WEATHER]
    model.script(
        Reply(
            reasoning="Let me see.",
            text="Looking.",
            calls=[
                Call("shell", {"input": "ls"}),
                Call("crm__find_customer", {"city": "Bonn"}),
                Call("get_weather", {"city": "Rome"}),
            ],
        ),
        Reply(refusal="I will not."),
    )
    include = ["reasoning.encrypted_content"]
    first = list(client.responses.create(model=MODEL, input="Go", tools=tools, include=include, stream=True))
    kinds = {event.type for event in first}
    assert kinds >= {
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.output_text.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    }
    output = first[-1].response.output
    assert [item.type for item in output] == [
        "reasoning",
        "message",
        "custom_tool_call",
        "function_call",
        "function_call",
    ]
    second = [event.type for event in client.responses.create(model=MODEL, input="Do it.", stream=True)]
    assert {"response.refusal.delta", "response.refusal.done"} <= set(second)


def test_the_stream_helper_accumulates_the_final_response(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(reasoning="Hm.", text="Hello there."))
    with client.responses.stream(model=MODEL, input="Hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == "Hello there."
    assert (final.status, final.output_text) == ("completed", "Hello there.")


def test_the_stream_helper_parses_structured_output(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text='{"number": 4, "reason": "sum"}'))
    with client.responses.stream(model=MODEL, input="2+2?", text_format=Answer) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == Answer(number=4, reason="sum")


def test_the_stream_helper_runs_a_tool_loop(client: Any, model: ScriptedUpstream) -> None:
    model.script(
        Reply(text="I look.", calls=[Call("get_weather", {"city": "Rome"}), Call("get_weather", {"city": "Oslo"})]),
        Reply(text="Sun and snow."),
    )
    with client.responses.stream(model=MODEL, input="Weather?", tools=[WEATHER]) as stream:
        first = stream.get_final_response()
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == ['{"city": "Rome"}', '{"city": "Oslo"}']
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "?"} for call in calls]
    with client.responses.stream(model=MODEL, input=outputs, previous_response_id=first.id, tools=[WEATHER]) as stream:
        final = stream.get_final_response()
    assert final.output_text == "Sun and snow."


def test_logprobs_are_streamed(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello there."))
    events = list(
        client.responses.create(
            model=MODEL, input="Hi", stream=True, top_logprobs=1, include=["message.output_text.logprobs"]
        )
    )
    tokens = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert "".join(tokens) == "Hello there."


def test_an_incomplete_stream_ends_with_its_own_event(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Once upon", finish="length"))
    events = list(client.responses.create(model=MODEL, input="Tell.", stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"


def test_a_model_that_breaks_off_mid_stream_raises_in_the_client(client: Any, model: ScriptedUpstream) -> None:
    from openai import APIError

    model.script(Drop(after=4))
    seen: list[Any] = []
    with pytest.raises(APIError) as caught:
        seen.extend(client.responses.create(model=MODEL, input="Tell.", stream=True))
    assert caught.value.code == "upstream_bad_stream"
    assert seen == [] or seen[0].type == "response.created"


def test_a_refusal_before_the_first_token_is_an_http_error_even_for_a_stream(
    client: Any, model: ScriptedUpstream
) -> None:
    from openai import BadRequestError

    model.script(Refuse(400, {"error": {"message": "No such parameter.", "code": "unknown_parameter"}}))
    with pytest.raises(BadRequestError, match=r"No such parameter\."):
        client.responses.create(model=MODEL, input="Hi", stream=True)


def test_leaving_a_stream_early_leaves_the_client_usable(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="One two three four five six."), Reply(text="Still here."))
    with client.responses.create(model=MODEL, input="Count.", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    assert client.responses.create(model=MODEL, input="Hi").output_text == "Still here."
