"""MCP servers as a client meets them: discovery, calls, approvals, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, sent, text_of
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Call, Reply, ScriptedUpstream


@pytest.fixture
def server(tmp_path: Path, model: ScriptedUpstream) -> Iterator[RunningServer]:
    with RunningServer(settings_for(tmp_path, model.url, "outgoing: {allow: [127.0.0.1]}")) as running:
        yield running


@pytest.fixture
def mcp() -> Iterator[FakeMcpServer]:
    with FakeMcpServer() as fake:
        yield fake


def _tool(mcp: FakeMcpServer, **extra: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "fake", "server_url": mcp.url, **extra}


def _kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_a_tool_is_listed_called_and_answered_in_one_request(
    api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "hello"})]), Reply(text="It said hello."))
    events = api.stream(input="Say hello to it.", tools=[_tool(mcp)])
    final = events[-1]["response"]
    assert _kinds(final) == ["mcp_list_tools", "mcp_call", "message"]
    listed, called, _ = final["output"]
    assert "echo" in [tool["name"] for tool in listed["tools"]]
    assert called["status"] == "completed"
    assert "hello" in called["output"]
    assert text_of(final) == "It said hello."
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert "response.mcp_list_tools.completed" in types
    assert "response.mcp_call.completed" in types
    told = sent(model, 2)
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    assert "hello" in told[2]["content"]


def test_a_chained_turn_lists_nothing_anew_and_remembers_the_call(
    api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "hello"})]), Reply(text="Done."), Reply(text="As before."))
    first = api.create(input="Say hello.", tools=[_tool(mcp)])
    second = api.create(input="And?", previous_response_id=first["id"], tools=[_tool(mcp)])
    assert _kinds(second) == ["message"]
    assert mcp.count("tools/list") == 1
    roles = [message["role"] for message in sent(model, 3)]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_a_failing_tool_is_a_failed_item_and_the_model_goes_on(
    api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("fail", {})]), Reply(text="It failed."))
    response = api.create(input="Try.", tools=[_tool(mcp)])
    call = response["output"][1]
    assert call["status"] == "failed"
    assert call["error"]["type"] == "mcp_tool_execution_error"
    assert response["status"] == "completed"


def test_a_server_that_is_down_is_named_and_does_not_sink_the_other(
    api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "up"})]), Reply(text="One works."))
    down = {"type": "mcp", "server_label": "down", "server_url": "http://127.0.0.1:9/mcp"}
    events = api.stream(input="Try.", tools=[down, _tool(mcp)])
    lists = [item for item in events[-1]["response"]["output"] if item["type"] == "mcp_list_tools"]
    assert "down" in lists[0]["error"]
    assert lists[1].get("error") is None
    assert text_of(events[-1]["response"]) == "One works."


def test_an_approval_runs_exactly_the_stored_call_once(
    api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    tools = [_tool(mcp, require_approval="always")]
    model.script(Reply(calls=[Call("echo", {"text": "careful"})]), Reply(text="Done."))
    asked = api.create(input="Do it.", tools=tools)
    request = asked["output"][-1]
    assert request["type"] == "mcp_approval_request"
    assert mcp.calls == []
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    done = api.create(input=[answer], previous_response_id=asked["id"], tools=tools)
    call = next(item for item in done["output"] if item["type"] == "mcp_call")
    assert call["approval_request_id"] == request["id"]
    assert mcp.calls == [("echo", {"text": "careful"})]
    told = sent(model, 2)
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    again = api.post(input=[answer], previous_response_id=asked["id"], tools=tools)
    assert again.status_code == 400, again.text
    assert len(mcp.calls) == 1


def test_a_denial_runs_nothing_and_leaves_a_coherent_history(
    api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    tools = [_tool(mcp, require_approval="always")]
    model.script(Reply(calls=[Call("echo", {"text": "no"})]), Reply(text="I will not."))
    asked = api.create(input="Do it.", tools=tools)
    request = asked["output"][-1]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": False,
        "reason": "Too risky.",
    }
    api.create(input=[answer], previous_response_id=asked["id"], tools=tools)
    assert mcp.calls == []
    told = sent(model, 2)
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    assert "Too risky." in told[2]["content"]


def test_an_address_inside_the_network_is_refused_unless_listed(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    import httpx2

    with RunningServer(settings_for(tmp_path, model.url)) as running, httpx2.Client() as http:
        refused = Driver(running, http).post(input="Try.", tools=[_tool(mcp)])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[0].server_url"
    assert "outgoing.allow" in refused.json()["error"]["message"]
    assert mcp.requests == []


@pytest.mark.parametrize("approval", [{"never": {"tool_names": ["echo"]}}, {"never": ["echo"], "always": ["fail"]}])
def test_in_a_filter_only_the_tools_that_are_named_run_without_asking(
    api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, approval: dict[str, Any]
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "a"}), Call("structured", {})]))
    response = api.create(input="Both.", tools=[_tool(mcp, require_approval=approval)])
    assert _kinds(response) == ["mcp_list_tools", "mcp_call", "mcp_approval_request"]
    assert [name for name, _ in mcp.calls] == ["echo"]


def test_secrets_of_a_declaration_are_not_shown(api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(Reply(text="Hi."))
    tool = _tool(mcp, authorization="s3cret-token", headers={"x-extra": "s3cret-header"})
    response = api.create(input="Hi.", tools=[tool])
    stored = api.get(f"/responses/{response['id']}").text
    assert "s3cret" not in str(response)
    assert "s3cret" not in stored
    assert any(r.headers.get("authorization") == "Bearer s3cret-token" for r in mcp.requests)
