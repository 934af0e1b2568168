"""The first things a new user tries."""

from __future__ import annotations

from typing import Any

from tests.behaviour.conftest import MODEL, Driver, sent, text_of
from treadle.testing.upstream import Call, Reply, ScriptedUpstream


def test_a_prompt_is_answered(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello there."))
    response = api.create(input="Say hello.")
    assert text_of(response) == "Hello there."
    assert sent(model) == [{"role": "user", "content": "Say hello."}]


def test_a_stream_is_legal_and_equals_what_is_stored(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="One two three."))
    events = api.stream(input="Count.")
    final = events[-1]["response"]
    assert text_of(final) == "One two three."
    assert api.get(f"/responses/{final['id']}").json() == final


def test_the_official_client_runs_a_tool_loop(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Paris"})]), Reply(text="Sunny."))
    tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]
    first = client.responses.create(model=MODEL, input="Weather?", tools=tools)
    call = first.output[0]
    assert (call.type, call.arguments) == ("function_call", '{"city": "Paris"}')
    answer = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    second = client.responses.create(model=MODEL, input=answer, previous_response_id=first.id, tools=tools)
    assert second.output_text == "Sunny."
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]
