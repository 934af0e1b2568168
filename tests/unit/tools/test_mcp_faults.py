"""Servers of tools that cannot be used: every error names the server and the cause, and nothing hangs."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.unit.tools.conftest import closed_port, eventually, fault, named, pool_of
from treadle.errors import RemoteFault
from treadle.ports import RemoteServer, TextPart
from treadle.testing.gates import Gate
from treadle.testing.mcp import UNAUTHORIZED, WEB_PAGE, FakeMcpServer, Speech, Trouble
from treadle.tools.mcp.pool import McpPool


async def test_a_refused_port_says_so(pool: McpPool) -> None:
    told = await fault(pool.list_tools(RemoteServer("docs", f"http://127.0.0.1:{closed_port()}/mcp")))
    assert told.message == "MCP server 'docs' refused the connection: nothing listens at its address."
    assert (told.kind, told.number, told.authentication) == ("http", 0, False)


async def test_a_host_name_that_does_not_resolve_says_so(pool: McpPool) -> None:
    server = RemoteServer("docs", "http://no-such-host.invalid/mcp", by_operator=True)
    told = await fault(pool.list_tools(server))
    assert told.message == "MCP server 'docs' cannot be reached: its host name does not resolve."


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/mcp", "127.0.0.1", "http://127.0.0.1:notaport/", "http://", "http://[::1/?key=abcdef"]
)
async def test_an_address_that_is_none_says_so(pool: McpPool, url: str) -> None:
    told = await fault(pool.list_tools(RemoteServer("docs", url, by_operator=True)))
    assert told.message.startswith("MCP server 'docs' has an address that is no ")
    assert "abcdef" not in told.message


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_credentials_says_authentication_is_needed(
    fake: FakeMcpServer, pool: McpPool, status: int
) -> None:
    fake.troubles = [Trouble(status=status)]
    told = await fault(pool.list_tools(named(fake)))
    assert told.authentication
    assert told.number == status
    assert told.message.startswith("MCP server 'docs' needs authentication: it answered ")
    told = await fault(pool.list_tools(named(fake, token="wrong-one")))
    assert told.message.startswith("MCP server 'docs' needs authentication and rejected the credentials it was given")


async def test_the_right_token_is_let_in_on_every_way_to_speak(pool: McpPool) -> None:
    for speech in ("modern", "handshake", "sse"):
        async with FakeMcpServer(speech, token="s3cret-token") as fake:  # type: ignore[arg-type]
            assert (await fault(pool.list_tools(named(fake)))).authentication
            fake.requests.clear()
            server = RemoteServer(
                "docs", fake.url, (("Authorization", "Bearer s3cret-token"), ("X-Tenant", "blue"), ("Host", "evil"))
            )
            assert await pool.list_tools(server)
            for request in fake.requests:
                assert request.headers["authorization"] == "Bearer s3cret-token"
                assert request.headers["x-tenant"] == "blue"
                assert request.headers["host"] == f"127.0.0.1:{fake.port}"


async def test_a_token_that_expires_during_the_session_is_an_authentication_fault(
    fake: FakeMcpServer, pool: McpPool
) -> None:
    server = named(fake, token="short-lived")
    assert (await pool.call(server, "echo", '{"text": "1"}')).parts == [TextPart("1")]
    fake.troubles = [UNAUTHORIZED]
    told = await fault(pool.call(server, "echo", '{"text": "2"}'))
    assert told.authentication
    assert told.number == 401
    assert fake.calls == [("echo", {"text": "1"})]
    fake.troubles = []
    assert (await pool.call(server, "echo", '{"text": "3"}')).parts == [TextPart("3")]


async def test_nothing_at_the_path_is_a_404_that_says_so(pool: McpPool) -> None:
    async with FakeMcpServer() as fake:
        told = await fault(pool.list_tools(RemoteServer("docs", f"{fake.root}/elsewhere")))
        assert told.number == 404
        assert told.message == "MCP server 'docs' was not found at its address: 404 Not Found."


async def test_a_web_page_is_not_mistaken_for_a_server_of_tools(fake: FakeMcpServer, pool: McpPool) -> None:
    fake.troubles = [WEB_PAGE]
    told = await fault(pool.list_tools(named(fake)))
    assert "a web page (text/html)" in told.message
    assert "<html>" not in told.message


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (Trouble(status=500), "answered 500 Internal Server Error"),
        (Trouble(status=503, body="<html>busy</html>", content_type="text/html"), "answered 503 Service Unavailable"),
        (Trouble(status=429), "answered 429 Too Many Requests"),
        (Trouble(status=200, body="hello"), "answered with content of type text/plain"),
        (
            Trouble(status=200, body="{]", content_type="application/json"),
            "answered with JSON that is no JSON-RPC answer",
        ),
        (
            Trouble(200, '{"jsonrpc":"2.0","id":77,"result":{"tools":[]}}', "application/json"),
            "answered another request than the one it was sent",
        ),
        (
            Trouble(200, '{"jsonrpc":"2.0","id":3,"result":{"odd":1}}', "application/json", rpc="tools/list"),
            "answered with something that the protocol does not allow",
        ),
        (Trouble(status=302, headers={"location": "http://elsewhere.invalid/x?token=abc"}), "redirects to http://else"),
        (Trouble(status=307, headers={"location": "http://[::1/"}), "redirects to something that is no URL"),
        (Trouble(status=308, headers={"location": "/mcp"}), "redirects without end"),
    ],
)
async def test_answers_outside_the_protocol_are_faults_of_the_request(
    pool: McpPool, trouble: Trouble, said: str
) -> None:
    async with FakeMcpServer("handshake") as fake:
        fake.troubles = [trouble]
        told = await fault(pool.list_tools(named(fake)))
        assert said in told.message
        assert "token" not in told.message


@pytest.mark.parametrize("trouble", [Trouble(status=500), WEB_PAGE, Trouble(status=429)])
async def test_one_bad_answer_in_a_session_is_that_calls_fault_only(
    fake: FakeMcpServer, pool: McpPool, trouble: Trouble
) -> None:
    server = named(fake)
    await pool.list_tools(server)
    slow = asyncio.create_task(pool.call(server, "slow", "{}"))
    await fake.received("tools/call")
    fake.troubles = [Trouble(trouble.status, trouble.body, trouble.content_type, rpc="tools/call", times=1)]
    if fake.speech == "sse" and trouble is WEB_PAGE:
        # With SSE the answer's content does not matter, but then no answer comes: see the timeouts below.
        fake.troubles = [Trouble(400, rpc="tools/call", times=1)]
    await fault(pool.call(server, "echo", '{"text": "no"}'))
    assert (await pool.call(server, "echo", '{"text": "yes"}')).parts == [TextPart("yes")]
    fake.gate.set()
    assert (await slow).parts == [TextPart("done")]


async def test_a_server_that_never_answers_the_handshake_is_left_in_time(fake: FakeMcpServer) -> None:
    fake.troubles = [Trouble(before=Gate())]
    async with pool_of(connect_seconds=0.3) as pool:
        started = time.monotonic()
        told = await fault(pool.list_tools(named(fake)))
        assert time.monotonic() - started < 3
        assert told.message == "MCP server 'docs' did not answer within 0.3 s."
    await eventually(lambda: fake.open_connections == 0, "no connection is left")


async def test_a_call_that_is_never_answered_is_left_in_time_and_the_next_one_works(fake: FakeMcpServer) -> None:
    async with pool_of(call_seconds=0.3) as pool:
        server = named(fake)
        await pool.list_tools(server)
        started = time.monotonic()
        told = await fault(pool.call(server, "slow", "{}"))
        assert time.monotonic() - started < 3
        assert told.message == "MCP server 'docs' did not answer within 0.3 s."
        await fake.was_cancelled()
        assert (await pool.call(server, "echo", '{"text": "on"}')).parts == [TextPart("on")]


async def test_a_list_that_is_never_answered_is_left_in_time_by_all_who_wait(fake: FakeMcpServer) -> None:
    fake.troubles = [Trouble(before=Gate(), rpc="tools/list")]
    async with pool_of(list_seconds=0.3) as pool:
        started = time.monotonic()
        told = await asyncio.gather(*(fault(pool.list_tools(named(fake))) for _ in range(20)))
        assert time.monotonic() - started < 5
        assert {
            "MCP server 'docs' did not answer within 0.3 s.",
            "MCP server 'docs' did not list its tools within 0.3 s.",
        } >= {one.message for one in told}


async def test_a_server_that_dies_in_the_middle_of_a_call_fails_that_call_once(
    fake: FakeMcpServer, pool: McpPool
) -> None:
    server = named(fake)
    running = asyncio.create_task(pool.call(server, "slow", "{}"))
    await fake.received("tools/call")
    fake.drop_connections()
    told = await fault(running)
    assert "the connection" in told.message
    # It may have run: it is not sent again.
    assert [name for name, _ in fake.calls] == ["slow"]
    assert (await pool.call(server, "echo", '{"text": "back"}')).parts == [TextPart("back")]


async def test_five_dead_servers_do_not_hold_up_a_healthy_one() -> None:
    async with pool_of(connect_seconds=1) as pool, _tarpit() as stuck, FakeMcpServer() as fake:
        dead = [RemoteServer(f"dead{number}", stuck, (("X-Number", str(number)),)) for number in range(5)]
        started = time.monotonic()
        told = [asyncio.create_task(fault(pool.list_tools(one))) for one in dead]
        assert (await pool.call(named(fake), "echo", '{"text": "fine"}')).parts == [TextPart("fine")]
        messages = [(await one).message for one in told]
        assert time.monotonic() - started < 4
        assert messages == [f"MCP server 'dead{number}' did not answer within 1 s." for number in range(5)]


async def test_parallel_calls_succeed_and_fail_each_for_itself(fake: FakeMcpServer, pool: McpPool) -> None:
    server = named(fake)
    await pool.list_tools(server)
    calls = [
        pool.call(server, "echo", '{"text": "a"}'),
        pool.call(server, "crash", "{}"),
        pool.call(server, "fail", "{}"),
        pool.call(server, "echo", '{"text": "b"}'),
    ]
    first, crashed, failed, last = await asyncio.gather(*calls, return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert first.parts == [TextPart("a")]
    assert isinstance(crashed, RemoteFault)
    assert not isinstance(failed, BaseException)
    assert failed.failed
    assert not isinstance(last, BaseException)
    assert last.parts == [TextPart("b")]


async def test_sse_without_an_endpoint_is_a_fault_that_says_so(pool: McpPool) -> None:
    async with FakeMcpServer("sse") as fake:
        fake.troubles = [
            Trouble(405, rpc="initialize"),
            Trouble(405, rpc="server/discover"),
            Trouble(200, ": nothing\n\n", "text/event-stream"),
        ]
        told = await fault(pool.list_tools(named(fake)))
        assert told.number == 405


@pytest.mark.parametrize("speech", ["modern", "handshake", "sse"])
async def test_a_redirect_within_the_origin_is_followed_with_the_credentials(pool: McpPool, speech: Speech) -> None:
    async with FakeMcpServer(speech, token="s3cret-token") as fake:
        path = "sse" if speech == "sse" else "mcp"
        moved = Trouble(307, headers={"location": f"/{path}"})
        fake.moved["/old"] = moved
        server = RemoteServer("docs", f"{fake.root}/old", (("Authorization", "Bearer s3cret-token"),))
        assert (await pool.call(server, "echo", '{"text": "found"}')).parts == [TextPart("found")]


async def test_credentials_never_follow_a_redirect_to_another_origin(fake: FakeMcpServer, pool: McpPool) -> None:
    async with FakeMcpServer() as thief:
        fake.troubles = [Trouble(307, headers={"location": thief.url})]
        told = await fault(pool.list_tools(named(fake, token="s3cret-token")))
        assert f"redirects to {thief.root}, which is not followed" in told.message
        assert thief.requests == []


@asynccontextmanager
async def _tarpit() -> AsyncIterator[str]:
    """A port that accepts connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(32)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
