"""The official Python client, in strict mode, on chat, completions, embeddings, models, and on what goes wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL
from treadle.testing.server import PROVIDER, RunningServer, settings_for
from treadle.testing.turns import Call, Raw, Refuse, Reply
from treadle.testing.upstream import ScriptedUpstream

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def test_a_chat_completion_passes_the_types(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."))
    found = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("Hello.", "stop")
    assert (found.model, found.usage.total_tokens) == (MODEL, 15)


def test_a_chat_completion_streams_with_usage(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="One two."), Reply(text="One two."))
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "One two."
    assert {chunk.model for chunk in chunks} == {MODEL}
    assert chunks[-1].usage.total_tokens == 15
    without = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    assert all(chunk.usage is None for chunk in without)


def test_a_chat_tool_loop_runs(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Sunny."))
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[WEATHER])
    message = first.choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}
    history = [*MESSAGES, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    second = client.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER])
    assert second.choices[0].message.content == "Sunny."


def test_the_chat_stream_helper_collects_calls(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"}), Call("get_weather", {"city": "Oslo"})]))
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=[WEATHER]) as stream:
        final = stream.get_final_completion()
    calls = [call.function.arguments for call in final.choices[0].message.tool_calls]
    assert calls == ['{"city": "Rome"}', '{"city": "Oslo"}']


def test_several_choices_pass_through(client: Any, model: ScriptedUpstream) -> None:
    choices = [
        {"index": number, "message": {"role": "assistant", "content": str(number)}, "finish_reason": "stop"}
        for number in range(2)
    ]
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": choices}
    model.script(Raw([json.dumps(body).encode()], headers={"content-type": "application/json"}))
    found = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert [choice.message.content for choice in found.choices] == ["0", "1"]
    assert model.requests[0].body["n"] == 2


def test_text_completions_pass_the_types(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="a time."), Reply(text="a time.", chunks=1))
    found = client.completions.create(model=MODEL, prompt="Once upon")
    assert (found.choices[0].text, found.model) == ("a time.", MODEL)
    chunks = list(client.completions.create(model=MODEL, prompt="Once upon", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a time."


def test_embeddings_are_the_same_in_base64_and_as_floats(client: Any, server: RunningServer) -> None:
    """The client asks for base64 unless told otherwise; in strict mode it checks before it decodes, and so cannot."""
    from openai import OpenAI

    texts = ["one word", "two words"]
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as relaxed:
        packed = relaxed.embeddings.create(model=MODEL, input=texts)
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [len(entry.embedding) for entry in packed.data] == [16, 16]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    assert [entry.index for entry in packed.data] == [0, 1]
    assert packed.usage.prompt_tokens > 0


def test_embeddings_take_a_single_text_and_a_number_of_dimensions(client: Any) -> None:
    (entry,) = client.embeddings.create(model=MODEL, input="one word", dimensions=8, encoding_format="float").data
    assert len(entry.embedding) == 8


def test_models_are_listed_and_read_by_ids_with_slashes(tmp_path: Any) -> None:
    from openai import OpenAI

    name = f"{PROVIDER}/org/family/large"
    with (
        ScriptedUpstream(models=["org/family/large"]) as upstream,
        RunningServer(settings_for(tmp_path, upstream.url)) as server,
        OpenAI(base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True) as client,
    ):
        assert name in [entry.id for entry in client.models.list()]
        assert client.models.retrieve(name).id == name


def test_an_unknown_model_is_not_found(client: Any, model: ScriptedUpstream) -> None:
    """A name that no list holds is for the only model server to judge; its refusal keeps its meaning."""
    from openai import NotFoundError

    refusal = Refuse(404, {"error": {"message": "No model nowhere/nothing.", "code": "model_not_found"}})
    model.script(refusal, refusal)
    name = "nowhere/nothing"
    calls: list[tuple[Any, dict[str, Any]]] = [
        (client.models.retrieve, {}),
        (client.responses.create, {"input": "Hi"}),
        (client.chat.completions.create, {"messages": MESSAGES}),
    ]
    for call, options in calls:
        with pytest.raises(NotFoundError) as caught:
            call(model=name, **options)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert name in caught.value.message


@pytest.mark.parametrize("call", ["retrieve", "delete", "input_items"])
def test_an_unknown_response_is_not_found(client: Any, call: str) -> None:
    from openai import NotFoundError

    target = client.responses.input_items.list if call == "input_items" else getattr(client.responses, call)
    with pytest.raises(NotFoundError) as caught:
        target("resp_0123456789abcdef0123456789abcdef")
    assert caught.value.code == "not_found"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"max_output_tokens": 1}, "max_output_tokens", "integer_below_min_value"),
        ({"top_logprobs": "many"}, "top_logprobs", "invalid_type"),
        ({"tools": [{"type": "teleport"}]}, "tools[0].type", "invalid_value"),
        ({"include": ["everything"]}, "include[0]", "invalid_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
        ({"input": [{"type": "function_call_output", "call_id": "call_x", "output": "?"}]}, "input", None),
    ],
)
def test_bad_input_names_the_parameter(client: Any, body: dict[str, Any], param: str, code: str | None) -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError) as caught:
        client.responses.create(**{"model": MODEL, "input": "Hi", **body})
    assert caught.value.type == "invalid_request_error"
    assert str(caught.value.param).startswith(param)
    assert code is None or caught.value.code == code


def test_a_missing_model_names_the_parameter(client: Any) -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError) as caught:
        client.responses.create(input="Hi")
    assert (caught.value.param, caught.value.code) == ("model", "missing_required_parameter")


@pytest.mark.parametrize("kind", ["responses", "stream", "chat"])
def test_a_limit_of_the_model_server_keeps_its_retry_after(client: Any, model: ScriptedUpstream, kind: str) -> None:
    from openai import RateLimitError

    error = {"error": {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    model.script(Refuse(429, error, headers={"retry-after": "30"}))
    with pytest.raises(RateLimitError, match=r"Slow down\.") as caught:
        if kind == "chat":
            client.chat.completions.create(model=MODEL, messages=MESSAGES)
        else:
            client.responses.create(model=MODEL, input="Hi", stream=kind == "stream")
    assert caught.value.response.headers["retry-after"] == "30"
    assert caught.value.code == "rate_limit_exceeded"


def test_a_failing_model_server_is_an_internal_server_error(client: Any, model: ScriptedUpstream) -> None:
    from openai import InternalServerError

    model.script(*[Refuse(500, headers={"retry-after-ms": "1"})] * 3)
    with pytest.raises(InternalServerError) as caught:
        client.responses.create(model=MODEL, input="Hi")
    assert caught.value.type == "server_error"
    assert caught.value.response.headers["x-request-id"]


def test_an_unknown_path_is_an_error_that_the_client_can_show(client: Any) -> None:
    from openai import NotFoundError

    with pytest.raises(NotFoundError, match="There is nothing at"):
        client.get("/nowhere", cast_to=object)
