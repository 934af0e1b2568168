"""Input items in all the shapes that clients send, and what of them reaches the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.behaviour import shared as one_server
from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.manifest import behaviour
from treadle.testing.upstream import Call, Reply, ScriptedUpstream

shared, model, server = one_server.shared, one_server.model, one_server.server

PIXEL = "data:image/png;base64,iVBORw0KGgo="
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


def call(number: int = 1, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "look", "arguments": "{}"} | more


def output(number: int = 1, value: Any = "seen", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": value} | more


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text} | more


NEW_PARAMETERS: list[dict[str, Any]] = [
    {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "user": "u"},
    {"client_metadata": {"a": "b"}, "something_from_the_future": [1, {"x": None}]},
    {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
    {"include": []},
    {"text": {}},
    {"text": {"format": None, "verbosity": None}},
    {"text": {"format": {"type": "text"}}},
    {"reasoning": {}},
    {"reasoning": {"summary": "auto", "generate_summary": "auto", "context": "auto"}},
    {"metadata": {}},
    {"tools": []},
    {"tools": [], "tool_choice": "auto"},
    {"stream_options": {"include_obfuscation": False, "include_usage": True}},
    {"background_options": {"completion_window": "soonest"}, "background": False},
    {"context_management": [{"type": "compaction", "compact_threshold": None}]},
    {"truncation": "auto", "service_tier": "auto", "max_tool_calls": None},
    dict.fromkeys(
        "instructions previous_response_id conversation store stream include tools tool_choice parallel_tool_calls text"
        " reasoning metadata temperature top_p top_logprobs max_output_tokens truncation user prompt background"
        " service_tier prompt_cache_key safety_identifier stream_options context_management".split()
    ),
]


@behaviour("bug-25")
@pytest.mark.parametrize("parameters", NEW_PARAMETERS, ids=[json.dumps(given)[:50] for given in NEW_PARAMETERS])
def test_new_and_empty_optional_parameters_are_accepted(
    api: Driver, model: ScriptedUpstream, parameters: dict[str, Any]
) -> None:
    model.script(Reply(text="Hi."))
    response = api.create(input="x", **parameters)
    assert text_of(response) == "Hi."
    query = "&".join(f"include[]={name}" for name in parameters.get("include") or ())
    assert api.get(f"/responses/{response['id']}?{query}").json() == response
    allowed = {"model", "messages", "stream", "stream_options", "logprobs", "top_logprobs", "user"}
    assert set(model.requests[0].body) <= allowed | {"prompt_cache_key", "safety_identifier", "service_tier"}


@behaviour("bug-22")
@pytest.mark.parametrize("stream", [False, True])
def test_the_model_server_is_not_sent_what_nobody_set(api: Driver, model: ScriptedUpstream, stream: bool) -> None:
    model.script(Reply(text="Hi."))
    api.post(input="x", tools=TOOLS, reasoning={"summary": "auto"}, metadata={"a": "b"}, store=True, stream=stream)
    body = model.requests[0].body
    assert set(body) - {"stream", "stream_options"} == {"model", "messages", "tools"}
    assert set(body["tools"][0]["function"]) == {"name", "parameters"}


@behaviour("bug-26")
def test_the_model_gets_the_instructions_of_this_turn_only(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Woof."), Reply(text="Arr."), Reply(text="Hello."))
    first = api.create(input="a", instructions="You are a dog.")
    second = api.create(input="b", instructions="You are a pirate.", previous_response_id=first["id"])
    third = api.create(input="c", previous_response_id=second["id"])
    systems = [[m["content"] for m in sent(model, n) if m["role"] == "system"] for n in (1, 2, 3)]
    assert systems == [["You are a dog."], ["You are a pirate."], []]
    assert sent(model, 2)[0]["role"] == "system"
    assert [r["instructions"] for r in (first, second, third)] == ["You are a dog.", "You are a pirate.", None]


@behaviour("bug-26")
def test_instructions_do_not_stick_to_a_conversation(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Woof."), Reply(text="Hello."))
    conversation = api.post("/conversations").json()["id"]
    api.create(input="a", instructions="You are a dog.", conversation=conversation)
    api.create(input="b", conversation=conversation)
    assert [m["role"] for m in sent(model, 2)] == ["user", "assistant", "user"]


FOREIGN: list[dict[str, Any]] = [
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "reasoning", "summary": [], "content": None, "status": None, "encrypted_content": None},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Thought."}]},
    {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAAABforeign=="},
    {"type": "reasoning", "summary": None},
    {"type": "compaction", "encrypted_content": "foreign"},
    {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "status": "completed", "results": None},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {"type": "mcp_call", "id": "mcp_1", "of": "another shape"},
    {"type": "local_shell_call_output", "id": "lso_1", "output": "x"},
    {"type": "tool_search_call", "call_id": "c", "arguments": {}},
    {"type": "a_kind_from_the_future", "payload": {"deep": [1, 2, None]}},
    {"type": "function_call", "call_id": "c9", "name": "look", "arguments": "{", "status": "incomplete"},
]


@behaviour("bug-28")
@pytest.mark.parametrize("item", FOREIGN, ids=[f"{n} {item['type']}" for n, item in enumerate(FOREIGN)])
def test_a_replayed_item_that_means_nothing_here_is_kept_and_skipped(
    api: Driver, model: ScriptedUpstream, item: dict[str, Any]
) -> None:
    model.script(Reply(text="Fine."), Reply(text="Still fine."))
    response = api.create(input=[user("a"), item, user("b")])
    assert [m["content"] for m in sent(model)] == ["a", "b"]
    listed = api.get(f"/responses/{response['id']}/input_items?order=asc").json()["data"]
    between = [item["type"]] if item["type"] != "compaction" else []  # not listed: see test_compact_endpoint.py
    assert [entry["type"] for entry in listed] == ["message", *between, "message"]
    assert all(entry["id"] for entry in listed)
    if "id" in item:
        assert listed[1]["id"] == item["id"]
    api.create(input="c", previous_response_id=response["id"])
    assert [m["content"] for m in sent(model, 2)] == ["a", "b", "Fine.", "c"]


@behaviour("bug-28")
def test_reasoning_without_a_following_item_is_no_message(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine."))
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    api.create(input=[user("a"), thought])
    assert [(m["role"], m["content"]) for m in sent(model)] == [("user", "a")]


OUTPUTS: list[tuple[Any, str]] = [
    ("text", "text"),
    ("", ""),
    ([], ""),
    ([{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}], "one\ntwo"),
    ([{"type": "text", "text": "plain"}], "plain"),
    ([{"type": "output_text", "text": "out"}], "out"),
    ('{"json": [1]}', '{"json": [1]}'),
]


@behaviour("bug-29")
@pytest.mark.parametrize(("value", "expected"), OUTPUTS)
def test_every_shape_of_a_tool_output_reaches_the_model(
    api: Driver, model: ScriptedUpstream, value: Any, expected: str
) -> None:
    model.script(Reply(text="Fine."))
    response = api.create(input=[user("a"), call(), output(value=value)], tools=TOOLS)
    assert sent(model)[-1] == {"role": "tool", "tool_call_id": "call_1", "content": expected}
    (stored,) = api.get(f"/responses/{response['id']}/input_items?limit=1").json()["data"]
    assert isinstance(stored["output"], type(value))


@behaviour("bug-29")
def test_a_picture_in_a_tool_output_reaches_the_model(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine."))
    value = [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": PIXEL}]
    api.create(input=[user("a"), call(1), call(2), output(1, value), output(2)], tools=TOOLS)
    roles = [m["role"] for m in sent(model)]
    assert roles == ["user", "assistant", "tool", "tool", "user"]
    assert sent(model)[2]["content"].startswith("Look:")
    assert sent(model)[4]["content"][0]["image_url"]["url"] == PIXEL


LOOSE: list[tuple[Any, list[tuple[str, Any]]]] = [
    ([user("a")], [("user", "a")]),
    ([user("a", type=None)], [("user", "a")]),
    ([user("a", id=None, status=None)], [("user", "a")]),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], [("user", "a")]),
    ([{"role": "user", "content": None}], [("user", "")]),
    ([{"role": "user", "content": []}], [("user", "")]),
    ([user("a"), {"role": "assistant", "content": "b"}, user("c")], [("user", "a"), ("assistant", "b"), ("user", "c")]),
    (
        [user("a"), {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}],
        [("user", "a"), ("assistant", "b")],
    ),
    (
        [user("a"), {"role": "assistant", "content": [{"type": "output_text", "text": "b", "logprobs": None}]}],
        [("user", "a"), ("assistant", "b")],
    ),
    ([{"type": "message", "role": "developer", "content": "s"}, user("a")], [("system", "s"), ("user", "a")]),
    ("", [("user", "")]),
]


@behaviour("bug-30")
@pytest.mark.parametrize(("given", "expected"), LOOSE, ids=[json.dumps(given)[:60] for given, _ in LOOSE])
def test_loose_messages_are_understood_and_kept_in_full_shape(
    api: Driver, model: ScriptedUpstream, given: Any, expected: list[tuple[str, Any]]
) -> None:
    model.script(Reply(text="Fine."))
    response = api.create(input=given)
    assert [(m["role"], m.get("content")) for m in sent(model)] == expected
    for item in api.get(f"/responses/{response['id']}/input_items").json()["data"]:
        assert item["type"] == "message"
        assert item["status"] == "completed"
        assert isinstance(item["content"], list)
        for part in item["content"]:
            assert part["type"] in ("input_text", "output_text")
            assert part["type"] != "output_text" or part["annotations"] == []


@behaviour("bug-30")
def test_a_call_inside_a_message_becomes_a_call(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine."))
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Looking."}, call()]}
    response = api.create(input=[user("a"), said, output()], tools=TOOLS)
    assistant = sent(model)[1]
    assert assistant["content"] == "Looking."
    assert [made["id"] for made in assistant["tool_calls"]] == ["call_1"]
    listed = api.get(f"/responses/{response['id']}/input_items?order=asc").json()["data"]
    assert [item["type"] for item in listed] == ["message", "message", "function_call", "function_call_output"]


@behaviour("bug-31")
def test_required_keys_are_always_there(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine.", reasoning="Hm."), Reply(calls=[Call("look")]))
    response = api.create(input="x")
    reasoning, message = response["output"]
    assert reasoning["summary"] == []
    assert message["content"][0] == {"type": "output_text", "text": "Fine.", "annotations": [], "logprobs": []}
    assert (message["status"], message["role"]) == ("completed", "assistant")
    assert "phase" not in message
    (made,) = api.create(input="x", tools=TOOLS)["output"]
    assert set(made) == {"id", "type", "status", "call_id", "name", "arguments"}
    nullable = (
        "error incomplete_details instructions max_output_tokens max_tool_calls previous_response_id conversation"
        " prompt_cache_key safety_identifier user"
    ).split()
    assert {name: response[name] for name in nullable} == dict.fromkeys(nullable)
    numbers = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_logprobs": 0}
    assert {name: response[name] for name in numbers} == numbers
    assert (response["service_tier"], response["metadata"], response["tools"]) == ("default", {}, [])
    assert response["text"] == {"format": {"type": "text"}}
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


@behaviour("bug-32")
@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_output_without_its_call_is_refused_by_name(api: Driver, kind: str, stream: bool) -> None:
    lost = {"type": kind, "call_id": "call_lost", "output": "x"}
    reply = api.post(input=[user("a"), lost], tools=TOOLS, stream=stream)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "call_lost" in error["message"]
    assert error["param"] == "input[1].call_id"


@behaviour("bug-32")
def test_the_call_may_stand_in_the_history_but_not_in_another_one(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look", id="call_1")]), Reply(text="Other."), Reply(text="Seen."))
    first = api.create(input="a", tools=TOOLS)
    other = api.create(input="b")
    assert api.post(input=[output()], previous_response_id=other["id"]).status_code == 400
    assert text_of(api.create(input=[output()], previous_response_id=first["id"])) == "Seen."
    conversation = api.post("/conversations", items=[user("a")]).json()["id"]
    assert api.post(input=[output()], conversation=conversation).status_code == 400


def test_ids_of_the_client_are_kept_and_odd_ones_made_usable(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine."))
    odd = ["a/b", "x" * 300, "with space", "nul\x00", "☃"]
    items = [user("plain", id="msg_1-a.b:c"), *(user(name, id=name) for name in odd)]
    response = api.create(input=items)
    url = f"/responses/{response['id']}/input_items?order=asc"
    listed = api.get(url).json()["data"]
    assert listed[0]["id"] == "msg_1-a.b:c"
    assert len({item["id"] for item in listed}) == len(items)
    for item in listed[:-1]:
        assert api.get(f"{url}&limit=1&after={item['id']}").json()["data"] != []


def test_call_ids_that_a_model_uses_again_stay_with_their_calls(api: Driver, model: ScriptedUpstream) -> None:
    """Some servers number the calls of each answer from 0."""
    model.script(Reply(text="Fine."))
    api.create(
        input=[user("a"), call(), output(value="first"), user("b"), call(), user("c"), call(), output(value="third")],
        tools=TOOLS,
    )
    assert [m["content"] for m in sent(model) if m["role"] == "tool"] == [
        "first",
        "(This call was not answered.)",
        "third",
    ]


@pytest.mark.parametrize("part", ["input_image", "input_file"])
def test_a_file_at_a_host_that_does_not_exist_is_the_callers_mistake(api: Driver, part: str) -> None:
    field = "image_url" if part == "input_image" else "file_url"
    content = [{"type": "input_text", "text": "What is it?"}, {"type": part, field: "https://nowhere.invalid/a.png"}]
    refused = api.post(input=[{"role": "user", "content": content}])
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == f"input[0].content[1].{field}"
    assert "nowhere.invalid" in refused.json()["error"]["message"]
