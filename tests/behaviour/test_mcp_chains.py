"""MCP over several turns: what is listed again and what is not, in chains, in conversations and without storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import LOOPBACK, Driver, sent, text_of
from tests.behaviour.kit import error, final, kinds, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import declared, listed, offered, outputs, roles, well_formed
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.upstream import Call, Reply, ScriptedUpstream

A = Call("echo", {"text": "a"})


@behaviour("bug-49", "bug-33")
def test_a_chain_lists_once_however_long_it_is(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    previous: str | None = None
    for turn in range(4):
        model.script(Reply(calls=[A]), Reply(text=f"Turn {turn}."))
        response = final(remote.stream(input="Go.", previous_response_id=previous, tools=[declared(mcp)]))
        assert kinds(response) == (["mcp_list_tools"] if turn == 0 else []) + ["mcp_call", "message"]
        previous = response["id"]
    assert mcp.count("tools/list") == 1
    well_formed(sent(model, 8))
    assert roles(sent(model, 8)) == ["user", "assistant", "tool", "assistant"] * 3 + ["user", "assistant", "tool"]


@behaviour("bug-12")
def test_call_ids_that_a_model_uses_again_in_a_chain_stay_with_their_calls(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    look = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    tools = [declared(mcp), look]
    previous: str | None = None
    ids: list[str] = []
    for turn in range(3):
        model.script(Reply(calls=[A, Call("look", id="call_0")]), Reply(text="Fine."))
        asked = remote.create(input="Go.", previous_response_id=previous, tools=tools)
        ids.append(asked["output"][-1]["call_id"])
        given = {"type": "function_call_output", "call_id": ids[-1], "output": f"seen {turn}"}
        previous = remote.create(input=[given], previous_response_id=asked["id"], tools=tools)["id"]
    assert len(set(ids)) == 3
    well_formed(sent(model, 6))
    assert [said for said in outputs(sent(model, 6)) if said.startswith("seen")] == ["seen 0", "seen 1", "seen 2"]


@behaviour("bug-49")
def test_a_warm_pool_lists_nothing_for_new_chains(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    for _ in range(3):
        model.script(Reply(text="Hi."))
        assert "echo" in listed(remote.create(input="Hi.", tools=[declared(mcp)]))["fake"]
    assert mcp.count("tools/list") == 1


@behaviour("bug-49")
@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"allowed_tools": ["echo"]}, True),
        ({"server_label": "other"}, True),
        ({"require_approval": "always"}, False),
        ({"authorization": "t0ken"}, False),
        ({"server_description": "Echoes."}, False),
    ],
    ids=str,
)
def test_another_label_or_filter_lists_anew(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, change: dict[str, Any], anew: bool
) -> None:
    model.script(Reply(text="One."), Reply(text="Two."), Reply(text="Three."))
    tools = [declared(mcp, allowed_tools=["echo", "fail"])]
    first = remote.create(input="Hi.", tools=tools)
    second = final(remote.stream(input="Hi.", previous_response_id=first["id"], tools=[tools[0] | change]))
    assert ("mcp_list_tools" in kinds(second)) is anew
    expected = change.get("allowed_tools", ["echo", "fail"])
    assert offered(model.requests[1].body) == expected
    # And the new list is the one that is carried on.
    third = remote.create(input="Hi.", previous_response_id=second["id"], tools=[tools[0] | change])
    assert kinds(third) == ["message"]
    assert offered(model.requests[2].body) == expected


@behaviour("bug-49")
def test_another_server_under_the_old_label_is_listed(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(text="One."), Reply(calls=[A]), Reply(text="Two."))
    first = remote.create(input="Hi.", tools=[declared(mcp)])
    with FakeMcpServer() as other:
        second = remote.create(input="Hi.", previous_response_id=first["id"], tools=[declared(other)])
        assert kinds(second) == ["mcp_list_tools", "mcp_call", "message"]
        assert other.calls == [("echo", {"text": "a"})]
    assert mcp.calls == []


@behaviour("bug-33")
def test_a_turn_without_the_tools_still_knows_what_they_gave(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[A]), Reply(text="Done."), Reply(text="It said a."))
    first = remote.create(input="Go.", tools=[declared(mcp)])
    second = remote.create(input="What did it say?", previous_response_id=first["id"])
    assert text_of(second) == "It said a."
    well_formed(sent(model, 3))
    assert "a" in outputs(sent(model, 3))[0]


@behaviour("bug-79")
def test_a_result_stays_marked_as_data_when_its_server_is_not_declared_any_more(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[A]), Reply(text="Done."), Reply(text="Yes."))
    first = remote.create(input="Go.", tools=[declared(mcp)])
    remote.create(input="Sure?", previous_response_id=first["id"])
    assert outputs(sent(model, 3)) == outputs(sent(model, 2))


@behaviour("bug-37", "bug-33")
def test_without_storage_the_client_carries_the_turn_on(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    with serving(tmp_path, model, LOOPBACK) as api:
        model.script(Reply(calls=[Call("echo", {"text": "zebra"})]), Reply(text="Done."), Reply(text="Yes."))
        question = {"role": "user", "content": "Go."}
        first = final(api.stream(input=[question], store=False, tools=[declared(mcp)]))
        assert kinds(first) == ["mcp_list_tools", "mcp_call", "message"]
        error(api.get(f"/responses/{first['id']}"), 404)
        more = [question, *first["output"], {"role": "user", "content": "Sure?"}]
        api.create(input=more, store=False, tools=[declared(mcp)])
        well_formed(sent(model, 3))
        assert roles(sent(model, 3)) == ["user", "assistant", "tool", "assistant", "user"]
        assert "zebra" in outputs(sent(model, 3))[0]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"zebra" not in file.read_bytes(), file.name


@behaviour("bug-35", "bug-33")
def test_a_conversation_holds_the_items_of_tools_and_lists_once(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    conversation = remote.post("/conversations", model=None).json()["id"]
    for _ in range(2):
        model.script(Reply(calls=[A]), Reply(text="Done."))
        remote.create(input="Go.", conversation=conversation, tools=[declared(mcp)])
    held = remote.get(f"/conversations/{conversation}/items?order=asc").json()["data"]
    assert [item["type"] for item in held] == [
        "message",
        "mcp_list_tools",
        "mcp_call",
        "message",
        "message",
        "mcp_call",
        "message",
    ]
    assert mcp.count("tools/list") == 1
    well_formed(sent(model, 4))


@behaviour("bug-33")
def test_calls_of_the_client_and_of_the_server_share_a_round(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
    tools = [mine, declared(mcp)]
    model.script(Reply(calls=[A, Call("mine")]), Reply(text="Both."))
    first = final(remote.stream(input="Go.", tools=tools))
    assert kinds(first) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert len(mcp.calls) == 1
    output = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "mine too"}
    remote.create(input=[output], previous_response_id=first["id"], tools=tools)
    messages = sent(model, 2)
    well_formed(messages)
    assert roles(messages) == ["user", "assistant", "tool", "tool"]
    assert "mine too" in outputs(messages)[1]


@behaviour("bug-23")
def test_tools_run_before_the_answer_takes_its_shape(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    schema = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
    text = {"format": {"type": "json_schema", "name": "said", "schema": schema}}
    model.script(Reply(calls=[A]), Reply(text='{"said": "a"}'))
    response = final(remote.stream(input="Go.", tools=[declared(mcp)], text=text))
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert text_of(response) == '{"said": "a"}'
