"""The official Python client, in strict mode, on every endpoint under `/v1/responses`; streams are tested next door."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, sent
from tests.unit.retrieval.documents_kit import pdf
from treadle.testing.turns import Call, Reply, Tokens
from treadle.testing.upstream import ScriptedUpstream

pydantic = pytest.importorskip("pydantic", reason="pydantic comes with the openai client of the dev extra")

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
SHELL: dict[str, Any] = {"type": "custom", "name": "shell", "description": "Runs a command line."}
CRM: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{**WEATHER, "name": "find_customer"}],
}
PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = f"data:application/pdf;base64,{b64encode(pdf(['A dot.'])).decode()}"


class Answer(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
    """What `parse` is asked for."""

    number: int
    reason: str


def test_create_returns_every_field_the_types_demand(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello.", usage=Tokens(input=7, output=3, cached=2)))
    response = client.responses.create(
        model=MODEL,
        input="Say hello.",
        instructions="Be short.",
        metadata={"case": "create"},
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=64,
        truncation="auto",
        text={"verbosity": "low"},
        prompt_cache_key="key",
        safety_identifier="someone",
        user="someone",
    )
    assert (response.status, response.output_text, response.model) == ("completed", "Hello.", MODEL)
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 3, 10)
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 0.9, 64)
    assert (response.instructions, response.metadata, response.truncation) == ("Be short.", {"case": "create"}, "auto")
    assert (response.text.verbosity, response.prompt_cache_key) == ("low", "key")
    assert (response.safety_identifier, response.user) == ("someone", "someone")


def test_retrieve_returns_what_create_returned(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."))
    made = client.responses.create(model=MODEL, input="Say hello.")
    assert client.responses.retrieve(made.id) == made


def test_delete_removes_the_response(client: Any, model: ScriptedUpstream) -> None:
    from openai import NotFoundError

    model.script(Reply(text="Hello."))
    made = client.responses.create(model=MODEL, input="Say hello.")
    assert client.responses.delete(made.id) is None
    with pytest.raises(NotFoundError):
        client.responses.retrieve(made.id)


def test_the_list_of_responses_holds_each_with_its_input(client: Any, api: Driver, model: ScriptedUpstream) -> None:
    """The SDK has no method for this list, so its page is read raw and each entry through the SDK's type."""
    from openai.types.responses import Response

    model.script(Reply(text="One."), Reply(text="Two."))
    made = [client.responses.create(model=MODEL, input=prompt) for prompt in ("First", "Second")]
    page = api.get("/responses").json()
    assert (page["object"], page["has_more"]) == ("list", False)
    assert [entry["id"] for entry in page["data"]] == [made[1].id, made[0].id]
    assert (page["first_id"], page["last_id"]) == (made[1].id, made[0].id)
    adapter = pydantic.TypeAdapter(Response)
    assert [adapter.validate_python(entry).output_text for entry in page["data"]] == ["Two.", "One."]
    assert page["data"][0]["input"][0]["content"][0]["text"] == "Second"


def test_input_items_are_paged_through_to_the_end(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."))
    messages = [{"role": "user", "content": f"Message {number}"} for number in range(5)]
    made = client.responses.create(model=MODEL, input=messages)
    pages = list(client.responses.input_items.list(made.id, limit=2, order="asc").iter_pages())
    assert [len(page.data) for page in pages] == [2, 2, 1]
    texts = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2, order="asc")]
    assert texts == [f"Message {number}" for number in range(5)]
    newest_first = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2)]
    assert newest_first == texts[::-1]


def test_input_items_of_every_kind_pass_the_types(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine."))
    given: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_image", "image_url": PNG}]},
        {"role": "user", "content": [{"type": "input_file", "file_data": PDF, "filename": "a.pdf"}]},
        {"role": "assistant", "content": "Seen."},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "call_a", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_a", "output": [{"type": "input_text", "text": "sunny"}]},
        {"type": "custom_tool_call", "call_id": "call_b", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "call_b", "output": "README"},
    ]
    made = client.responses.create(model=MODEL, input=given, tools=[WEATHER, SHELL])
    found = list(client.responses.input_items.list(made.id, order="asc"))
    assert [item.type for item in found] == [item.get("type", "message") for item in given]
    assert all(item.id for item in found)


def test_input_tokens_are_counted(client: Any) -> None:
    short = client.responses.input_tokens.count(model=MODEL, input="One two three.")
    long = client.responses.input_tokens.count(
        model=MODEL, input="One two three.", instructions="Answer in verse.", tools=[WEATHER]
    )
    assert short.object == "response.input_tokens"
    assert 0 < short.input_tokens < long.input_tokens


def test_a_function_call_is_answered_by_previous_response_id(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Paris"})]), Reply(text="Sunny."))
    first = client.responses.create(model=MODEL, input="Weather?", tools=[WEATHER], tool_choice="required")
    (call,) = first.output
    assert (call.type, call.status, json.loads(call.arguments)) == ("function_call", "completed", {"city": "Paris"})
    second = client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        tools=[WEATHER],
    )
    assert (second.output_text, second.previous_response_id) == ("Sunny.", first.id)
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]


def test_output_items_can_be_sent_back_as_they_came(client: Any, model: ScriptedUpstream) -> None:
    """Clients that keep no state on the server return `response.output` itself."""
    model.script(Reply(reasoning="Look it up.", calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Rain."))
    question: list[Any] = [{"role": "user", "content": "Weather?"}]
    first = client.responses.create(model=MODEL, input=question, tools=[WEATHER], store=False)
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = client.responses.create(
        model=MODEL, input=[*question, *first.output, output], tools=[WEATHER], store=False
    )
    assert second.output_text == "Rain."
    assert sent(model, 2)[1]["tool_calls"][0]["id"] == call.call_id


def test_custom_and_namespace_tools_come_back_under_their_own_names(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Ready."))
    declared = client.responses.create(model=MODEL, input="Hi", tools=[SHELL, CRM, WEATHER])
    assert [tool.type for tool in declared.tools] == ["custom", "namespace", "function"]
    seen = [tool["function"]["name"] for tool in model.requests[0].body["tools"]]
    model.script(Reply(calls=[Call(seen[0], {"input": "ls -l"}), Call(seen[1], {"city": "Bonn"})]))
    response = client.responses.create(model=MODEL, input="Go", tools=[SHELL, CRM, WEATHER])
    custom, namespaced = response.output
    assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "shell", "ls -l")
    assert (namespaced.type, namespaced.namespace, namespaced.name) == ("function_call", "crm", "find_customer")


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "none",
        "required",
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]},
    ],
)
def test_every_form_of_tool_choice_is_echoed(client: Any, model: ScriptedUpstream, choice: Any) -> None:
    model.script(Reply(text="Fine."))
    response = client.responses.create(model=MODEL, input="Hi", tools=[WEATHER], tool_choice=choice)
    echoed = response.tool_choice
    assert (echoed if isinstance(echoed, str) else echoed.to_dict()) == choice


def test_reasoning_is_shown_and_its_sealed_form_carries_it_on(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(reasoning="Two and two.", text="Four.", usage=Tokens(reasoning=4)), Reply(text="Eight."))
    include = ["reasoning.encrypted_content"]
    first = client.responses.create(
        model=MODEL, input="2+2?", reasoning={"effort": "low", "summary": "auto"}, include=include, store=False
    )
    thought, answer = first.output
    assert (thought.type, thought.content[0].text, answer.type) == ("reasoning", "Two and two.", "message")
    assert thought.encrypted_content
    assert "Two and two." not in thought.encrypted_content
    assert first.usage.output_tokens_details.reasoning_tokens == 4
    sealed = {"type": "reasoning", "id": thought.id, "summary": [], "encrypted_content": thought.encrypted_content}
    second = client.responses.create(
        model=MODEL,
        input=[sealed, {"role": "assistant", "content": "Four."}, {"role": "user", "content": "Twice?"}],
        include=include,
        store=False,
    )
    assert second.output_text == "Eight."


def test_a_refusal_is_a_refusal_part(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(refusal="I will not."))
    (message,) = client.responses.create(model=MODEL, input="Do it.").output
    assert [(part.type, part.refusal) for part in message.content] == [("refusal", "I will not.")]


def test_logprobs_are_shown_when_included_and_again_on_retrieve(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello there."))
    include = ["message.output_text.logprobs"]
    made = client.responses.create(model=MODEL, input="Hi", include=include, top_logprobs=2)
    part = made.output[0].content[0]
    assert "".join(entry.token for entry in part.logprobs) == "Hello there."
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert client.responses.retrieve(made.id, include=include).output == made.output


@pytest.mark.parametrize("watched", [False, True])
def test_logprobs_of_the_answer_leave_out_the_thinking_before_it(
    client: Any, model: ScriptedUpstream, watched: bool
) -> None:
    model.script(Reply(text="<think> Hm. </think> Hello there."))
    wanted: dict[str, Any] = {"model": MODEL, "input": "Hi", "include": ["message.output_text.logprobs"]}
    if watched:
        made = list(client.responses.create(**wanted, stream=True))[-1].response
    else:
        made = client.responses.create(**wanted)
    assert made.output_text == "Hello there."
    part = made.output[1].content[0]
    assert "".join(entry.token for entry in part.logprobs) == "Hello there."


def test_images_and_files_reach_the_model(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="A dot."))
    content = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "input_file", "file_data": PDF, "filename": "a.pdf"},
    ]
    response = client.responses.create(model=MODEL, input=[{"role": "user", "content": content}])
    assert response.output_text == "A dot."
    # Of this model server nothing is known, so the file is read for it.
    assert [part["type"] for part in sent(model)[0]["content"]] == ["text", "image_url", "text"]
    assert "A dot." in sent(model)[0]["content"][2]["text"]
    assert sent(model)[0]["content"][1]["image_url"] == {"url": PNG, "detail": "low"}


def test_parse_returns_the_model_that_was_asked_for(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text='{"number": 4, "reason": "sum"}'))
    response = client.responses.parse(model=MODEL, input="2+2?", text_format=Answer)
    assert response.output_parsed == Answer(number=4, reason="sum")
    wanted = model.requests[0].body["response_format"]
    assert (wanted["type"], wanted["json_schema"]["name"]) == ("json_schema", "Answer")
    stored = client.responses.retrieve(response.id)
    assert stored.text.format.type == "json_schema"


def test_parse_reads_the_arguments_of_a_typed_tool(client: Any, model: ScriptedUpstream) -> None:
    from openai import pydantic_function_tool

    chat_form = pydantic_function_tool(Answer, name="answer")
    tool = {"type": "function", **chat_form["function"]}
    model.script(Reply(calls=[Call("answer", {"number": 7, "reason": "luck"})]))
    response = client.responses.parse(model=MODEL, input="Pick one.", tools=[tool])
    assert response.output[0].arguments == '{"number": 7, "reason": "luck"}'


def test_a_chain_may_branch_from_any_response(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="A."), Reply(text="B."), Reply(text="C."))
    first = client.responses.create(model=MODEL, input="one")
    client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    client.responses.create(model=MODEL, input="three", previous_response_id=first.id)
    assert [message["content"] for message in sent(model, 3)] == ["one", "A.", "three"]


def test_an_unstored_response_cannot_be_read_or_continued(client: Any, model: ScriptedUpstream) -> None:
    from openai import BadRequestError, NotFoundError

    model.script(Reply(text="Hello."))
    made = client.responses.create(model=MODEL, input="Hi", store=False)
    assert made.store is False
    with pytest.raises(NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=MODEL, input="More", previous_response_id=made.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_response_cut_off_is_incomplete_for_a_reason_the_types_know(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Once upon", finish="length"), Reply(text="No", finish="content_filter"))
    cut = client.responses.create(model=MODEL, input="Tell.", max_output_tokens=16)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[0].status == "incomplete"
    filtered = client.responses.create(model=MODEL, input="Tell.")
    assert (filtered.status, filtered.incomplete_details.reason) == ("incomplete", "content_filter")
