"""Which MCP tools the model is offered, under which names, and what it is told of the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tests.behaviour.conftest import LOOPBACK, Driver, sent, text_of
from tests.behaviour.kit import error, final, kinds, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import calls, declared, items, listed, offered, outputs, roles, well_formed
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.mcp_tools import ECHO_SCHEMA, PIXEL, FakeTool, Use, always, result, text
from treadle.testing.upstream import Call, Reply, ScriptedUpstream, Tokens

SEARCH = {"type": "function", "name": "search", "parameters": {"type": "object", "properties": {}}}


def search(says: str) -> FakeTool:
    return always("search", text(says))


@behaviour("bug-50")
def test_tools_of_one_name_reach_the_server_that_the_model_was_shown(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    with FakeMcpServer(tools=[search("from one")]) as one, FakeMcpServer(tools=[search("from two")]) as two:
        tools = [SEARCH, declared(one, "one", allowed_tools=["search"]), declared(two, "two", allowed_tools=["search"])]
        model.script(Reply(calls=[Call("two__search"), Call("one__search")]), Reply(text="Both."))
        response = final(remote.stream(input="Search.", tools=tools))
        assert offered(model.requests[0].body) == ["search", "one__search", "two__search"]
        assert listed(response) == {"one": ["search"], "two": ["search"]}
        assert [(item["server_label"], item["name"], item["output"]) for item in calls(response)] == [
            ("two", "search", "from two"),
            ("one", "search", "from one"),
        ]
        assert [len(one.calls), len(two.calls)] == [1, 1]
        # The client's function keeps its name and stays the client's.
        model.script(Reply(calls=[Call("search", {"q": 1})]))
        mine = remote.create(input="Mine.", tools=tools)
        assert kinds(mine)[-1] == "function_call"
        assert [len(one.calls), len(two.calls)] == [1, 1]


@behaviour("bug-50")
def test_a_later_turn_knows_the_calls_under_the_names_they_were_shown_with(
    remote: Driver, model: ScriptedUpstream
) -> None:
    with FakeMcpServer(tools=[search("one")]) as one, FakeMcpServer(tools=[search("two")]) as two:
        tools = [declared(one, "one", allowed_tools=["search"]), declared(two, "two", allowed_tools=["search"])]
        model.script(Reply(calls=[Call("two__search")]), Reply(text="Two."), Reply(text="Yes."))
        first = remote.create(input="Search.", tools=tools)
        remote.create(input="Sure?", previous_response_id=first["id"], tools=tools)
        assert sent(model, 3)[1]["tool_calls"][0]["function"]["name"] == "two__search"
        assert offered(model.requests[2].body) == ["search", "two__search"]


@behaviour("bug-50")
def test_two_servers_of_one_label_are_refused(remote: Driver, mcp: FakeMcpServer) -> None:
    fault = error(remote.post(input="Hi.", tools=[declared(mcp), declared(mcp)]), 400)
    assert fault["param"] == "tools[1].server_label"
    assert mcp.requests == []


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (["echo", "nothing"], ["echo", "nothing"]),
        ({"tool_names": ["echo", "fail"]}, ["echo", "fail"]),
        ({"read_only": True}, ["echo"]),
        ({"tool_names": ["echo", "fail"], "read_only": True}, ["echo"]),
        ({"tool_names": ["echo", "fail"], "read_only": False}, ["fail"]),
        ([], []),
    ],
    ids=str,
)
@behaviour("bug-56")
def test_allowed_tools_hold_for_the_list_and_for_the_model(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, allowed: Any, expected: list[str]
) -> None:
    model.script(Reply(calls=[Call("structured")]), Reply(text="I cannot."))
    response = final(remote.stream(input="Try.", tools=[declared(mcp, allowed_tools=allowed)]))
    assert listed(response) == {"fake": expected}
    assert offered(model.requests[0].body) == expected
    assert mcp.calls == []
    assert "no tool named 'structured'" in outputs(sent(model, 2))[0]
    assert response["status"] == "completed"


@behaviour("bug-56")
def test_an_invented_name_goes_to_a_client_that_has_functions(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("invented", {"a": 1})]))
    response = remote.create(input="Try.", tools=[SEARCH, declared(mcp)])
    (call,) = items(response, "function_call")
    assert (call["name"], json.loads(call["arguments"])) == ("invented", {"a": 1})
    assert mcp.calls == []


@behaviour("bug-56", "bug-13")
def test_a_model_that_keeps_inventing_names_is_stopped(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(*[Reply(calls=[Call("invented")]) for _ in range(3)])
    response = remote.create(input="Try.", tools=[declared(mcp)], max_infer_iters=3)
    assert response["status"] == "incomplete"
    assert mcp.calls == []


@behaviour("bug-56")
def test_a_choice_of_allowed_tools_is_a_hard_limit(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "mcp", "server_label": "fake", "name": "echo"}],
    }
    model.script(Reply(calls=[Call("structured"), Call("echo", {"text": "a"})]), Reply(text="One of them."))
    remote.create(input="Try.", tools=[declared(mcp)], tool_choice=choice)
    assert [name for name, _ in mcp.calls] == ["echo"]


@behaviour("bug-13")
@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "mcp", "server_label": "fake", "name": "echo"}, {"type": "mcp", "server_label": "fake"}],
)
def test_a_forced_tool_is_forced_for_the_first_call_only(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, choice: Any
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "a"})]), Reply(text="Done."))
    response = remote.create(input="Try.", tools=[declared(mcp)], tool_choice=choice)
    forced = model.requests[0].body["tool_choice"]
    assert forced == "required" or forced["function"]["name"] == "echo"
    assert model.requests[1].body.get("tool_choice", "auto") == "auto"
    assert text_of(response) == "Done."


@behaviour("bug-13")
def test_no_more_tools_run_than_the_request_permits(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    three = [Call("echo", {"text": str(n)}) for n in range(3)]
    model.script(Reply(calls=three), Reply(text="Enough."))
    response = final(remote.stream(input="Try.", tools=[declared(mcp)], max_tool_calls=2))
    assert [arguments["text"] for _, arguments in mcp.calls] == ["0", "1"]
    assert [item["status"] for item in calls(response)] == ["completed", "completed", "failed"]
    assert "limit of tool calls" in outputs(sent(model, 2))[2]
    assert model.requests[1].body["tool_choice"] == "none"


@behaviour("bug-13")
def test_a_model_that_never_stops_calling_is_stopped(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(*[Reply(calls=[Call("echo", {"text": "again"})]) for _ in range(4)])
    response = final(remote.stream(input="Try.", tools=[declared(mcp)], max_infer_iters=4))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"]["reason"] == "max_iterations_exceeded"
    assert len(mcp.calls) == 3


@behaviour("bug-14")
@pytest.mark.parametrize("broken", ['{"text": "a', '"foo"', "[1]", "text=a", "null"])
def test_a_tool_does_not_run_on_broken_arguments_and_the_thread_goes_on(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, broken: str
) -> None:
    model.script(Reply(calls=[Call("echo", broken)]), Reply(calls=[Call("echo", {"text": "b"})]), Reply(text="Now."))
    response = final(remote.stream(input="Try.", tools=[declared(mcp)]))
    assert mcp.calls == [("echo", {"text": "b"})]
    assert [item["status"] for item in calls(response)] == ["failed", "completed"]
    assert calls(response)[0]["arguments"] == broken
    assert "not a JSON object" in outputs(sent(model, 2))[0]
    model.script(Reply(text="Yes."))
    remote.create(input="Go on.", previous_response_id=response["id"], tools=[declared(mcp)])
    replayed = sent(model, 4)
    well_formed(replayed)
    for message in replayed:
        for call in message.get("tool_calls") or ():
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


@behaviour("bug-19")
def test_text_before_calls_stays_in_their_message(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    two = [Call("echo", {"text": "a"}), Call("echo", {"text": "b"})]
    model.script(Reply(text="Let me look.", calls=two), Reply(text="Found."), Reply(text="Yes."))
    response = final(remote.stream(input="Look.", tools=[declared(mcp)]))
    assert kinds(response) == ["mcp_list_tools", "message", "mcp_call", "mcp_call", "message"]
    remote.create(input="Sure?", previous_response_id=response["id"], tools=[declared(mcp)])
    for number in (2, 3):
        messages = sent(model, number)
        assert roles(messages)[:4] == ["user", "assistant", "tool", "tool"]
        assert messages[1]["content"] == "Let me look."
        assert len(messages[1]["tool_calls"]) == 2


@behaviour("bug-33")
def test_a_later_turn_repeats_what_the_model_saw_word_for_word(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(
        Reply(text="First.", calls=[Call("echo", {"text": "a"}), Call("fail")]),
        Reply(calls=[Call("echo", {"text": "b"})]),
        Reply(calls=[Call("structured")]),
        Reply(text="Done."),
        Reply(text="Yes."),
    )
    first = remote.create(input="Work.", tools=[declared(mcp)])
    remote.create(input="Sure?", previous_response_id=first["id"], tools=[declared(mcp)])
    before, after = sent(model, 4), sent(model, 5)
    assert roles(before) == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "tool"]
    # Ids of calls may differ: within the turn they are the model's.
    assert [_plain(message) for message in after[: len(before)]] == [_plain(message) for message in before]
    well_formed(after)


def _plain(message: dict[str, Any]) -> Any:
    made = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return message["role"], message["content"], made


@behaviour("bug-15")
def test_usage_is_the_sum_of_all_rounds(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(
        Reply(calls=[Call("echo", {"text": "a"})], usage=Tokens(10, 5)), Reply(text="Done.", usage=Tokens(20, 7))
    )
    usage = remote.create(input="Try.", tools=[declared(mcp)])["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (30, 12, 42)


@behaviour("bug-51")
def test_schemas_reach_the_model_as_they_are(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(Reply(text="Hi."))
    response = remote.create(input="Hi.", tools=[declared(mcp, allowed_tools=["echo"])])
    (function,) = model.requests[0].body["tools"]
    assert function["function"]["parameters"] == ECHO_SCHEMA
    assert items(response, "mcp_list_tools")[0]["tools"][0]["input_schema"] == ECHO_SCHEMA


@behaviour("bug-51")
@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("structured", '{"celsius":21,"wind":["w",3]}'),
        ("nothing", "(no content)"),
        ("resource", "Buy milk."),
        ("blob", "application/zip"),
        ("link", "file:///notes/today.txt"),
        ("audio", "audio/wav"),
        ("fail", "no such city"),
        ("crash", "the tool fell over"),
        ("misfit", "run all the same"),
    ],
)
def test_every_result_says_something_to_the_model_and_in_the_item(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, tool: str, told: str
) -> None:
    model.script(Reply(calls=[Call(tool)]), Reply(text="So."))
    (call,) = calls(final(remote.stream(input="Try.", tools=[declared(mcp)])))
    assert told in outputs(sent(model, 2))[0]
    failed = tool in ("fail", "crash")
    assert call["status"] == ("failed" if failed else "completed")
    assert told in (json.dumps(call["error"]) if failed else call["output"])


@behaviour("bug-51")
def test_pictures_are_shown_to_models_that_see(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    seeing = "  seeing: {kind: openai_chat, url: '%s', capabilities: {images: true}}"
    blind = "  blind: {kind: openai_chat, url: '%s', capabilities: {images: false}}"
    with serving(tmp_path, model, seeing % model.url, blind % model.url, LOOPBACK) as api:
        model.script(Reply(calls=[Call("image")]), Reply(text="A dot."))
        api.create(model="seeing/scripted", input="Look.", tools=[declared(mcp)])
        shown = sent(model, 2)
        assert roles(shown) == ["user", "assistant", "tool", "user"]
        assert shown[3]["content"][0]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
        model.script(Reply(calls=[Call("image")]), Reply(text="I cannot see."))
        api.create(model="blind/scripted", input="Look.", tools=[declared(mcp)])
        told = sent(model, 4)
        assert roles(told) == ["user", "assistant", "tool"]
        assert "does not read images" in told[2]["content"]
        assert PIXEL not in json.dumps(told)


@behaviour("bug-52")
def test_a_result_of_five_megabytes_is_cut_and_the_chain_goes_on(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("big", {"size": 5_000_000})]), Reply(text="Long."), Reply(text="Yes."))
    first = final(remote.stream(input="Get it.", tools=[declared(mcp)]))
    (call,) = calls(first)
    assert len(call["output"]) < 300_000
    assert "more characters were cut off" in call["output"][-200:]
    remote.create(input="Sure?", previous_response_id=first["id"], tools=[declared(mcp)])
    for number in (2, 3):
        told = outputs(sent(model, number))[0]
        assert len(told) < 300_000
        assert "more characters were cut off" in told


@behaviour("bug-09")
def test_odd_characters_in_a_result_break_no_frame(remote: Driver, model: ScriptedUpstream) -> None:
    odd = "a\u2028b\u2029c\u0085d\x0ce\r\nf\x00g\u00e9\U0001f600"

    async def run(_: Use) -> types.CallToolResult:
        return result(types.TextContent(text=odd))

    with FakeMcpServer(tools=[FakeTool("odd", run)]) as fake:
        model.script(Reply(calls=[Call("odd")]), Reply(text="Odd."))
        response = final(remote.stream(input="Try.", tools=[declared(fake)]))
        assert calls(response)[0]["output"] == odd
        stored = remote.get(f"/responses/{response['id']}").json()
        assert calls(stored)[0]["output"] == odd
