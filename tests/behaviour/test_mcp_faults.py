"""MCP servers that are down, slow, closed or restarted: named with the cause, and the response goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import LOOPBACK, Driver, sent, text_of
from tests.behaviour.kit import error, final, serving, types
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import calls, declared, items, listed, outputs, well_formed
from treadle.testing.frames import parse_sse
from treadle.testing.gates import Gate
from treadle.testing.mcp import UNAUTHORIZED, WEB_PAGE, FakeMcpServer, Speech, Trouble
from treadle.testing.mcp_tools import FakeTool, Given, Use, text
from treadle.testing.sequence import check_sequence
from treadle.testing.upstream import Call, Refuse, Reply, ScriptedUpstream

QUICK = "responses: {tool_timeout_seconds: 0.5}"


def nowhere() -> str:
    """An address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/mcp"


@pytest.fixture
def quick(tmp_path: Path, model: ScriptedUpstream) -> Iterator[Driver]:
    """A driver for a server that waits half a second for tools."""
    with serving(tmp_path, model, LOOPBACK, QUICK) as api:
        yield api


def fault_of(response: dict[str, Any], label: str) -> str:
    (item,) = [one for one in items(response, "mcp_list_tools") if one["server_label"] == label]
    assert item["tools"] == []
    found: str = item["error"]
    for inner in ("TaskGroup", "ExceptionGroup", "Traceback", "CancelledError"):
        assert inner not in found
    return found


@behaviour("bug-45", "bug-01")
@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (UNAUTHORIZED, "authentication"),
        (Trouble(status=403), "authentication"),
        (Trouble(status=404), "404"),
        (Trouble(status=500), "500"),
        (WEB_PAGE, "web page"),
        (Trouble(status=200, body="{]", content_type="application/json"), "JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_server_that_cannot_be_listed_is_named_with_its_cause(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, trouble: Trouble, cause: str
) -> None:
    with FakeMcpServer() as broken:
        broken.troubles.append(trouble)
        model.script(Reply(calls=[Call("echo", {"text": "up"})]), Reply(text="One works."))
        events = remote.stream(input="Try.", tools=[declared(broken, "broken"), declared(mcp)])
        response = final(events)
        assert "'broken'" in fault_of(response, "broken")
        assert cause in fault_of(response, "broken")
        assert types(events)[:2] == ["created", "in_progress"]
        assert types(events).count("mcp_list_tools.failed") == 1
        assert calls(response)[0]["output"] == "up"
        assert text_of(response) == "One works."


@behaviour("bug-45")
def test_five_servers_that_are_down_cost_one_waiting_and_not_the_response(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    down = [declared(nowhere(), f"down{number}") for number in range(5)]
    model.script(Reply(calls=[Call("echo", {"text": "up"})]), Reply(text="Works."))
    response = final(remote.stream(input="Try.", tools=[*down, declared(mcp)]))
    for number in range(5):
        assert "refused the connection" in fault_of(response, f"down{number}")
    assert text_of(response) == "Works."
    # Without any server left the model is still asked.
    model.script(Reply(text="Alone."))
    assert text_of(remote.create(input="Try.", tools=down)) == "Alone."


@behaviour("bug-45")
def test_a_server_that_is_down_is_asked_again_in_the_next_turn(remote: Driver, model: ScriptedUpstream) -> None:
    with FakeMcpServer() as fake:
        fake.troubles.append(Trouble(status=503))
        model.script(Reply(text="Down."), Reply(text="Up."))
        first = remote.create(input="Try.", tools=[declared(fake)])
        assert "503" in fault_of(first, "fake")
        fake.troubles.clear()
        second = remote.create(input="Again.", previous_response_id=first["id"], tools=[declared(fake)])
        assert "echo" in listed(second)["fake"]


@behaviour("bug-45")
def test_a_fatal_server_fails_the_response(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    with serving(tmp_path, model, LOOPBACK, "mcp: {fatal: true}") as api:
        tools = [declared(nowhere(), "down"), declared(mcp)]
        response = final(api.stream(input="Try.", tools=tools))
        assert response["status"] == "failed"
        assert "'down'" in response["error"]["message"]
        assert model.requests == []
        assert api.get(f"/responses/{response['id']}").json() == response
        reply = api.post(input="Try.", tools=tools)
        assert reply.status_code == 424, reply.text
        assert "'down'" in reply.json()["error"]["message"]


@behaviour("bug-02")
def test_a_model_that_refuses_after_the_listing_fails_the_response(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Refuse(400, {"error": {"message": "too many tools", "type": "invalid_request_error", "code": "x"}}))
    reply = remote.post(stream=True, input="Try.", tools=[declared(mcp)])
    events = parse_sse(reply.content)
    check_sequence(events)
    assert types(events)[-2:] == ["error", "failed"]
    assert "too many tools" in events[-1]["response"]["error"]["message"]


@behaviour("bug-45")
def test_a_server_that_is_down_leaves_a_forced_choice_unmet(remote: Driver) -> None:
    choice = {"type": "mcp", "server_label": "down"}
    fault = error(remote.post(input="Try.", tools=[declared(nowhere(), "down")], tool_choice=choice), 400)
    assert fault["param"] == "tool_choice"


@behaviour("bug-46")
@pytest.mark.parametrize("rpc", ["server/discover", "initialize", "tools/list"])
def test_a_server_that_never_gets_ready_is_left_in_time(tmp_path: Path, model: ScriptedUpstream, rpc: str) -> None:
    speech: Speech = "handshake" if rpc == "initialize" else "modern"
    with (
        FakeMcpServer(speech) as silent,
        serving(tmp_path, model, LOOPBACK, "mcp: {connect_timeout_seconds: 0.5}") as api,
    ):
        silent.troubles.append(Trouble(rpc=rpc, before=Gate()))
        model.script(Reply(text="Without."))
        response = final(api.stream(input="Try.", tools=[declared(silent, "silent")]))
        assert "within 0.5 s" in fault_of(response, "silent")
        assert text_of(response) == "Without."


@behaviour("bug-46", "bug-57")
@pytest.mark.parametrize("parallel", [True, False])
def test_three_calls_end_each_for_itself_and_in_order(
    quick: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, parallel: bool
) -> None:
    model.script(
        Reply(calls=[Call("slow"), Call("crash"), Call("echo", {"text": "fine"})]), Reply(text="One of three.")
    )
    events = quick.stream(input="Try.", tools=[declared(mcp)], parallel_tool_calls=parallel)
    hung, crashed, fine = calls(final(events))
    assert [hung["status"], crashed["status"], fine["status"]] == ["failed", "failed", "completed"]
    assert "within 0.5 s" in str(hung["error"])
    assert "the tool fell over" in str(crashed["error"])
    assert fine["output"] == "fine"
    told = outputs(sent(model, 2))
    assert "within 0.5 s" in told[0]
    assert "the tool fell over" in told[1]
    assert "fine" in told[2]
    well_formed(sent(model, 2))


@behaviour("bug-57")
def test_a_call_that_is_cancelled_on_its_server_is_that_calls_fault(quick: Driver, model: ScriptedUpstream) -> None:
    async def cancelled(_: Use) -> Given:
        raise asyncio.CancelledError

    with FakeMcpServer("handshake", tools=[FakeTool("cancelled", cancelled)]) as fake:
        model.script(Reply(calls=[Call("cancelled"), Call("echo", {"text": "fine"})]), Reply(text="Fine."))
        # One after the other: the fake server's session goes down with the call, and others in it with it.
        response = final(quick.stream(input="Try.", tools=[declared(fake)], parallel_tool_calls=False))
        assert [call["status"] for call in calls(response)] == ["failed", "completed"]
        assert calls(response)[1]["output"] == "fine"


@behaviour("bug-57")
def test_calls_run_one_after_the_other_where_the_request_says_so(remote: Driver, model: ScriptedUpstream) -> None:
    running: list[str] = []
    most: list[int] = []

    async def run(use: Use) -> Given:
        running.append("x")
        most.append(len(running))
        await asyncio.sleep(0)
        running.pop()
        return text(str(use.arguments["n"]))

    with FakeMcpServer(tools=[FakeTool("count", run)]) as fake:
        model.script(Reply(calls=[Call("count", {"n": n}) for n in range(4)]), Reply(text="Counted."))
        response = final(remote.stream(input="Count.", tools=[declared(fake)], parallel_tool_calls=False))
        assert [call["output"] for call in calls(response)] == ["0", "1", "2", "3"]
        assert [arguments["n"] for _, arguments in fake.calls] == [0, 1, 2, 3]
        assert max(most) == 1


@behaviour("bug-48")
@pytest.mark.parametrize("speech", ["modern", "handshake", "sse"])
def test_a_server_that_restarts_between_two_calls_is_used_again(
    remote: Driver, model: ScriptedUpstream, speech: Speech
) -> None:
    with FakeMcpServer(speech) as fake:
        gate = Gate()
        model.script(
            Reply(calls=[Call("echo", {"text": "before"})]),
            Reply(calls=[Call("echo", {"text": "after"})], before=gate),
            Reply(text="Both."),
        )
        with ThreadPoolExecutor(1) as pool:
            streaming = pool.submit(remote.stream, input="Twice.", tools=[declared(fake)])
            try:
                model.received_blocking(2)
                fake.restart()
            finally:
                gate.set()
            response = final(streaming.result(20))
        assert [call["output"] for call in calls(response)] == ["before", "after"]
        assert [arguments["text"] for _, arguments in fake.calls] == ["before", "after"]


@behaviour("bug-46", "bug-48")
def test_a_server_that_dies_in_a_call_fails_the_call_and_runs_it_once(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("slow")]), Reply(text="It died."))
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(remote.stream, input="Try.", tools=[declared(mcp)])
        mcp.received_blocking("tools/call")
        mcp.drop_connections()
        response = final(streaming.result(20))
    (call,) = calls(response)
    assert call["status"] == "failed"
    assert "'fake'" in str(call["error"])
    assert len(mcp.calls) == 1
    assert text_of(response) == "It died."


@behaviour("also-expired-token")
@pytest.mark.parametrize("speech", ["modern", "handshake"])
def test_a_token_that_expires_between_calls_is_named_as_authentication(
    remote: Driver, model: ScriptedUpstream, speech: Speech
) -> None:
    with FakeMcpServer(speech, token="s3cret-token") as fake:
        model.script(Reply(calls=[Call("echo", {"text": "a"})]), Reply(text="Ok."))
        tools = [declared(fake, authorization="s3cret-token")]
        first = remote.create(input="Try.", tools=tools)
        fake.token = "another"
        model.script(Reply(calls=[Call("echo", {"text": "b"})]), Reply(text="Expired."))
        second = final(remote.stream(input="Again.", previous_response_id=first["id"], tools=tools))
        (call,) = calls(second)
        assert call["status"] == "failed"
        assert call["error"]["type"] == "http_error"
        assert "authentication" in call["error"]["message"]
        assert call["output"] is None
        assert "authentication" in outputs(sent(model, 4))[1]
        assert "s3cret" not in str(second) + str(sent(model, 4))


@behaviour("bug-49")
@pytest.mark.parametrize("speech", ["modern", "handshake", "sse"])
def test_each_transport_gets_headers_lists_all_pages_and_lists_once(
    remote: Driver, model: ScriptedUpstream, speech: Speech
) -> None:
    with FakeMcpServer(speech, page=3) as fake:
        model.script(*[Reply(calls=[Call("echo", {"text": str(n)})]) for n in range(5)], Reply(text="Five."))
        tools = [declared(fake, headers={"x-tenant": "blue"}, authorization="t0ken")]
        response = final(remote.stream(input="Five.", tools=tools))
        assert listed(response)["fake"] == list(fake.tools)
        assert [call["output"] for call in calls(response)] == ["0", "1", "2", "3", "4"]
        assert fake.count("tools/list") == -(-len(fake.tools) // 3)
        assert {request.headers.get("x-tenant") for request in fake.requests} == {"blue"}
        assert {request.headers.get("authorization") for request in fake.requests} == {"Bearer t0ken"}


@behaviour("bug-10")
def test_a_stream_is_kept_alive_while_a_tool_hangs(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    with serving(
        tmp_path, model, LOOPBACK, "server: {keep_alive_seconds: 0.2}", "responses: {tool_timeout_seconds: 1}"
    ) as api:
        model.script(Reply(calls=[Call("slow")]), Reply(text="Late."))
        reply = api.post(stream=True, input="Wait.", tools=[declared(mcp)])
        assert reply.content.count(b"\n:") + reply.content.startswith(b":") >= 2
        check_sequence(parse_sse(reply.content))
