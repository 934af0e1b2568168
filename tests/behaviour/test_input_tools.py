"""Tools as clients declare them: what the model is shown, and what comes back to the client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour import shared as one_server
from tests.behaviour.conftest import MODEL, Driver, httpx2, sent, text_of
from tests.behaviour.manifest import behaviour
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Call, Reply, ScriptedUpstream

shared, model, server = one_server.shared, one_server.model, one_server.server

SHELL = {
    "type": "function",
    "name": "run_shell",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
CREW = {
    "type": "namespace",
    "name": "crew",
    "description": "Helpers that work beside you.",
    "tools": [
        {
            "type": "function",
            "name": "hire",
            "description": "Starts a helper.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"task": {"type": "string"}}},
        },
        {"type": "custom", "name": "shout", "description": "Says something to all helpers."},
    ],
}
PATCH = {
    "type": "custom",
    "name": "edit_file",
    "description": "Changes a file.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin" /.+/'},
}
SEARCH = {"type": "web_search", "external_web_access": False}
CODING = [SHELL, CREW, PATCH, SEARCH, {"type": "tool_search"}, {"type": "local_shell"}]


def coding_request(**more: Any) -> dict[str, Any]:
    """A request as coding agents send it: the whole history each time, nothing stored."""
    return {
        "input": [
            {
                "type": "message",
                "id": "msg_aaa",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Code."}],
            },
            {"type": "message", "id": "msg_bbb", "role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
        ],
        "tools": CODING,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-cache-key",
        "client_metadata": {"session": "1", "turn": '{"n": 1}'},
    } | more


def offered(model: ScriptedUpstream, number: int = 1) -> dict[str, dict[str, Any]]:
    """The functions of the `number`-th model request, by name."""
    return {tool["function"]["name"]: tool["function"] for tool in model.requests[number - 1].body.get("tools", [])}


@behaviour("bug-27", "bug-25")
def test_a_coding_agents_request_is_accepted_as_it_is(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Done."))
    final = api.stream(**coding_request())[-1]["response"]
    assert (final["status"], text_of(final)) == ("completed", "Done.")
    functions = offered(model)
    assert set(functions) == {"run_shell", "crew__hire", "crew__shout", "edit_file"}
    assert functions["run_shell"]["parameters"] == SHELL["parameters"]
    assert "*** Begin" in functions["edit_file"]["description"]
    for name in ("client_metadata", "include", "store", "metadata", "web_search"):
        assert name not in model.requests[0].body


@behaviour("bug-27")
def test_tools_are_echoed_as_they_were_declared(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Done."))
    response = api.create(**coding_request())
    assert response["tools"][0] == SHELL
    assert response["tools"][3:] == CODING[3:]
    assert response["tools"][1]["name"] == "crew"
    assert [child["name"] for child in response["tools"][1]["tools"]] == ["hire", "shout"]
    assert response["tools"][2]["format"] == PATCH["format"]


@behaviour("bug-27")
@pytest.mark.parametrize("spelling", ["crew__hire", "hire", "crew.hire", "functions.crew__hire"])
def test_a_namespaced_call_comes_back_split_and_is_replayed_flat(
    api: Driver, model: ScriptedUpstream, spelling: str
) -> None:
    """Weak models leave the namespace out or separate it by a dot; there is only one tool they can mean."""
    model.script(Reply(calls=[Call(spelling, {"task": "test"})]), Reply(text="Hired."))
    request = coding_request()
    final = api.stream(**request)[-1]["response"]
    (call,) = final["output"]
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "hire", "crew")
    assert json.loads(call["arguments"]) == {"task": "test"}
    answer = {"type": "function_call_output", "id": "fco_ccc", "call_id": call["call_id"], "output": "Helper 7"}
    again = api.create(**coding_request(input=[*request["input"], call, answer]))
    assert text_of(again) == "Hired."
    system, user, assistant, tool = sent(model, 2)
    assert (system["role"], user["role"]) == ("system", "user")
    assert assistant["tool_calls"][0]["function"]["name"] == "crew__hire"
    assert (tool["role"], tool["content"]) == ("tool", "Helper 7")
    assert tool["tool_call_id"] == assistant["tool_calls"][0]["id"] == call["call_id"]


@behaviour("bug-27")
@pytest.mark.parametrize(("name", "namespace"), [("edit_file", None), ("crew__shout", "crew")])
def test_a_custom_tool_makes_the_round_trip(
    api: Driver, model: ScriptedUpstream, name: str, namespace: str | None
) -> None:
    text = '*** Begin\n"quoted" \\ é\n'
    model.script(Reply(calls=[Call(name, {"input": text})]), Reply(text="Good."))
    request = coding_request()
    events = api.stream(**request)
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", name.rpartition("__")[2], text)
    assert call.get("namespace") == namespace
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == text
    answer = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "applied"}
    api.create(**coding_request(input=[*request["input"], call, answer]))
    assistant, tool = sent(model, 2)[-2:]
    assert assistant["tool_calls"][0]["function"]["name"] == name
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"input": text}
    assert tool["content"] == "applied"


@behaviour("bug-27")
def test_a_hosted_tool_that_is_not_here_fails_only_when_it_is_forced(api: Driver, model: ScriptedUpstream) -> None:
    reply = api.post(**coding_request(tool_choice={"type": "web_search"}))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tool_choice"
    assert "web_search" in reply.json()["error"]["message"]
    assert model.requests == []


@behaviour("bug-27")
def test_only_hosted_tools_leave_the_model_without_tools(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="I know that."))
    response = api.create(input="x", tools=[SEARCH, {"type": "image_generation"}], parallel_tool_calls=False)
    assert response["tools"] == [SEARCH, {"type": "image_generation"}]
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        assert name not in model.requests[0].body


def test_secrets_of_a_tool_are_neither_shown_nor_stored(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hi."))
    tool = {"type": "mcp", "server_label": "s", "server_url": "https://example.test/mcp"}
    secret = {"authorization": "TOKEN-1", "headers": {"X-Key": "TOKEN-2"}}
    response = api.create(input="x", tools=[tool | secret])
    assert response["tools"] == [tool]
    assert "TOKEN" not in api.get(f"/responses/{response['id']}").text


@behaviour("also-no-parameters")
@pytest.mark.parametrize("declared", [{}, {"parameters": None}, {"parameters": {}}])
def test_a_function_without_parameters_is_offered_with_empty_ones(
    api: Driver, model: ScriptedUpstream, declared: dict[str, Any]
) -> None:
    model.script(Reply(calls=[Call("ping", "")]), Reply(text="Pong."))
    tools = [{"type": "function", "name": "ping", **declared}]
    response = api.create(input="x", tools=tools)
    function = offered(model)["ping"]
    assert function["parameters"] == {"type": "object", "properties": {}}
    assert "strict" not in function
    assert set(response["tools"][0]) == {"type", "name", "description", "parameters", "strict"}
    (call,) = response["output"]
    assert call["arguments"] == "{}"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": ""}
    api.create(input=[output], previous_response_id=response["id"], tools=tools)
    assert sent(model, 2)[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_name_nested_as_in_chat_completions_is_understood(api: Driver, model: ScriptedUpstream, kind: str) -> None:
    model.script(Reply(text="Hi."))
    response = api.create(
        input="x",
        tools=[{"type": kind, kind: {"name": "look", "description": "Looks."}}],
        tool_choice={"type": "function", "function": {"name": "look"}},
    )
    assert response["tools"][0]["name"] == "look"
    assert offered(model)["look"]["description"] == "Looks."
    assert model.requests[0].body["tool_choice"] == {"type": "function", "function": {"name": "look"}}


def test_a_function_declared_twice_is_offered_once(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hi."))
    api.create(input="x", tools=[SHELL, dict(SHELL)])
    assert [tool["function"]["name"] for tool in model.requests[0].body["tools"]] == ["run_shell"]


def test_two_functions_of_one_name_are_refused(api: Driver) -> None:
    reply = api.post(input="x", tools=[SHELL, SHELL | {"description": "Another."}])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[1].name")
    flat = {**SHELL, "name": "crew__hire"}
    reply = api.post(input="x", tools=[flat, CREW])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[1].tools[0].name")


CHOICES: list[tuple[Any, Any]] = [
    ("auto", None),
    ("none", "none"),
    ("required", "required"),
    ({"type": "function", "name": "run_shell"}, {"type": "function", "function": {"name": "run_shell"}}),
    ({"type": "custom", "name": "edit_file"}, {"type": "function", "function": {"name": "edit_file"}}),
    ({"type": "function", "name": "hire"}, {"type": "function", "function": {"name": "crew__hire"}}),
    ({"type": "namespace", "name": "crew"}, "required"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "run_shell"}]}, None),
    (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "run_shell"}]},
        {"type": "function", "function": {"name": "run_shell"}},
    ),
]


@pytest.mark.parametrize(("choice", "upstream"), CHOICES, ids=[json.dumps(choice)[:60] for choice, _ in CHOICES])
def test_every_form_of_tool_choice_reaches_the_model_and_is_echoed(
    api: Driver, model: ScriptedUpstream, choice: Any, upstream: Any
) -> None:
    model.script(Reply(text="Hi."))
    response = api.create(input="x", tools=CODING, tool_choice=choice)
    assert response["tool_choice"] == choice
    assert model.requests[0].body.get("tool_choice") == upstream


def test_allowed_tools_bind_the_model(api: Driver, model: ScriptedUpstream) -> None:
    """A call outside of them never reaches the client; the model is told and asked again."""
    model.script(Reply(calls=[Call("edit_file", {"input": "x"})]), Reply(text="Then not."))
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "run_shell"}]}
    response = api.create(input="x", tools=CODING, tool_choice=choice)
    assert text_of(response) == "Then not."
    assert "edit_file" in sent(model, 2)[-1]["content"]


@behaviour("also-alias")
@pytest.mark.parametrize("name", ["fast", MODEL, "scripted"])
def test_the_requested_name_of_a_model_is_the_answered_one(tmp_path: Path, model: ScriptedUpstream, name: str) -> None:
    model.script(Reply(text="a"), Reply(text="b"), Reply(text="c"))
    settings = settings_for(tmp_path, model.url, f"aliases: {{fast: {MODEL}}}")
    with RunningServer(settings) as running, httpx2.Client(timeout=20) as http:
        api = Driver(running, http)
        events = api.stream(input="x", model=name)
        assert {e["response"]["model"] for e in events if "response" in e} == {name}
        final = events[-1]["response"]
        assert api.get(f"/responses/{final['id']}").json()["model"] == name
        assert api.get(f"/responses?model={name}").json()["data"][0]["id"] == final["id"]
        assert api.create(input="x", model=name, previous_response_id=final["id"])["model"] == name
        chat = api.post("/chat/completions", model=name, messages=[{"role": "user", "content": "x"}])
        assert chat.json()["model"] == name
    assert {request.body["model"] for request in model.requests} == {"scripted"}
