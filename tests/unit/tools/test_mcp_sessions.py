"""Sessions: shared, bounded, replaced when the server forgot them, and gone without a trace when nobody needs them."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from subprocess import run

import pytest

from tests.unit.tools.conftest import elapse, eventually, fault, named, pool_of
from treadle.ports import RemoteServer, TextPart
from treadle.testing.gates import Gate
from treadle.testing.mcp import FakeMcpServer, Trouble
from treadle.testing.mcp_tools import always, text
from treadle.tools.mcp.pool import McpPool

ECHO = '{"text": "hi"}'


async def test_importing_the_pool_does_not_import_the_sdk() -> None:
    code = "import sys, treadle.tools.mcp.pool; print([n for n in sys.modules if n.split('.')[0] in %r])"
    heavy = ("mcp", "mcp_types", "httpx2", "pydantic", "anyio")
    done = await asyncio.to_thread(
        run, [sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_a_tool_list_is_fetched_once_and_sessions_are_shared_by_all(fake: FakeMcpServer, pool: McpPool) -> None:
    fake.page = 1000
    lists = await asyncio.gather(*(pool.list_tools(named(fake, label=f"l{n}")) for n in range(200)))
    results = await asyncio.gather(*(pool.call(named(fake), "echo", f'{{"text": "{n}"}}') for n in range(200)))
    assert {len(tools) for tools in lists} == {len(fake.tools)}
    assert [result.parts for result in results] == [[TextPart(str(n))] for n in range(200)]
    assert fake.count("tools/list") == 1
    assert fake.count("initialize") <= 1 + (fake.speech == "sse")
    assert pool.open_sessions == 1


async def test_other_credentials_and_other_permissions_get_other_sessions(fake: FakeMcpServer, pool: McpPool) -> None:
    await pool.list_tools(named(fake))
    await pool.list_tools(named(fake, token="one-token"))
    await pool.list_tools(named(fake, token="two-token"))
    # The operator's session may reach places that a caller's may not.
    await pool.list_tools(named(fake, by_operator=True))
    assert pool.open_sessions == 4
    assert fake.count("tools/list") == 4


async def test_the_kind_of_transport_is_remembered(fake: FakeMcpServer, pool: McpPool) -> None:
    await pool.list_tools(named(fake))
    first = len(fake.requests)
    fake.requests.clear()
    await pool.list_tools(named(fake, token="another"))
    again = [request.rpc or request.method for request in fake.requests]
    expected = {
        "modern": ["server/discover", "tools/list"],
        "handshake": ["initialize", "notifications/initialized", "tools/list"],
        "sse": ["GET", "initialize", "notifications/initialized", "tools/list"],
    }[fake.speech]
    assert [
        rpc for rpc in again if rpc != "subscriptions/listen" and (rpc != "GET" or fake.speech == "sse")
    ] == expected
    assert first >= len(expected)


async def test_a_server_that_changed_its_transport_is_found_again(pool: McpPool) -> None:
    async with FakeMcpServer("handshake") as fake:
        assert (await pool.call(named(fake), "echo", ECHO)).parts == [TextPart("hi")]
        fake.speech = "sse"
        fake.restart()
        server = RemoteServer("docs", f"{fake.root}/mcp")
        fake.moved["/mcp"] = Trouble(404)
        assert (await fault(pool.call(server, "echo", ECHO))).number == 404
        assert (await pool.call(RemoteServer("docs", fake.url), "echo", ECHO)).parts == [TextPart("hi")]


async def test_a_restarted_server_is_called_once_on_a_fresh_session(fake: FakeMcpServer, pool: McpPool) -> None:
    server = named(fake)
    for number in range(3):
        result = await pool.call(server, "echo", f'{{"text": "{number}"}}')
        assert result.parts == [TextPart(str(number))]
        fake.restart()
    assert [arguments["text"] for _, arguments in fake.calls] == ["0", "1", "2"]
    assert await pool.list_tools(server)


async def test_a_session_that_is_forgotten_again_and_again_is_tried_twice_only(pool: McpPool) -> None:
    async with FakeMcpServer("handshake") as fake:
        server = named(fake)
        await pool.list_tools(server)
        fake.troubles = [Trouble(404, '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"gone"}}',
                                 "application/json", rpc="tools/call")]  # fmt: skip
        told = await fault(pool.call(server, "echo", ECHO))
        assert told.message == "MCP server 'docs' does not know its session any more."
        assert fake.count("tools/call") == 2
        assert fake.calls == []


async def test_a_400_that_speaks_of_the_session_counts_as_forgotten(pool: McpPool) -> None:
    async with FakeMcpServer("handshake") as fake:
        server = named(fake)
        await pool.list_tools(server)
        body = (
            '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}'
        )
        fake.troubles = [Trouble(400, body, "application/json", rpc="tools/call", times=1)]
        assert (await pool.call(server, "echo", ECHO)).parts == [TextPart("hi")]
        assert fake.count("initialize") == 2


async def test_a_server_that_is_back_on_its_port_is_reconnected(pool: McpPool) -> None:
    async with FakeMcpServer("handshake") as fake:
        server = named(fake)
        await pool.call(server, "echo", ECHO)
        port = fake.port
    assert "refused the connection" in (await fault(pool.call(server, "echo", ECHO))).message
    async with FakeMcpServer("handshake", port=port) as fake:
        assert (await pool.call(server, "echo", ECHO)).parts == [TextPart("hi")]


async def test_an_idle_session_closes_and_the_next_use_opens_another(fake: FakeMcpServer) -> None:
    async with pool_of(idle=0.05) as pool:
        server = named(fake)
        await pool.call(server, "echo", ECHO)
        await eventually(lambda: pool.open_sessions == 0, "the session is closed")
        await eventually(lambda: fake.open_connections == 0, "no connection is left")
        if fake.speech == "handshake":
            assert [request.method for request in fake.requests].count("DELETE") == 1
        assert (await pool.call(server, "echo", ECHO)).parts == [TextPart("hi")]


async def test_a_busy_session_is_not_idle(fake: FakeMcpServer) -> None:
    async with pool_of(idle=0.05) as pool:
        slow = asyncio.create_task(pool.call(named(fake), "slow", "{}"))
        await fake.received("tools/call")
        await elapse(0.2)
        fake.gate.set()
        assert (await slow).parts == [TextPart("done")]


async def test_beyond_the_bound_the_least_recently_used_session_makes_room(fake: FakeMcpServer) -> None:
    async with pool_of(sessions=3, list_ttl=0) as pool:
        servers = [named(fake, token=f"token-{number}") for number in range(4)]
        for server in (*servers[:3], servers[0], servers[3]):
            await pool.list_tools(server)
        assert pool.open_sessions == 3
        fake.requests.clear()
        await pool.list_tools(servers[0])
        assert not [request for request in fake.requests if request.rpc in ("initialize", "server/discover")]
        await pool.list_tools(servers[1])
        assert [request for request in fake.requests if request.rpc in ("initialize", "server/discover")]


async def test_when_all_sessions_are_busy_one_waits_and_then_is_told(fake: FakeMcpServer) -> None:
    async with pool_of(sessions=2, connect_seconds=0.5) as pool:
        slow = [asyncio.create_task(pool.call(named(fake, token=f"token-{n}"), "slow", "{}")) for n in range(2)]
        await fake.received("tools/call", 2)
        told = await fault(pool.call(named(fake), "echo", ECHO))
        assert told.message == "MCP server 'docs' cannot be connected to: all 2 connections are in use."
        waiting = asyncio.create_task(pool.call(named(fake), "echo", ECHO))
        fake.gate.set()
        assert (await waiting).parts == [TextPart("hi")]
        for call in slow:
            assert (await call).parts == [TextPart("done")]


async def test_fifty_dropped_calls_leave_nothing_running(fake: FakeMcpServer, pool: McpPool) -> None:
    server = named(fake)
    await pool.list_tools(server)
    tasks, sockets = len(asyncio.all_tasks()), fake.open_connections
    for number in range(1, 51):
        call = asyncio.create_task(pool.call(server, "slow", "{}"))
        await fake.received("tools/call", number)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await fake.was_cancelled(number)
    assert (await pool.call(server, "echo", ECHO)).parts == [TextPart("hi")]
    assert pool.open_sessions == 1
    assert fake.cancelled == ["slow"] * 50
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")
    await eventually(lambda: fake.open_connections <= sockets + 2, "connections are reused or closed")
    gc.collect()
    used = time.process_time()
    await elapse(0.5)
    assert time.process_time() - used < 0.1


async def test_a_caller_that_leaves_while_connecting_does_not_spoil_it_for_others(
    fake: FakeMcpServer, pool: McpPool
) -> None:
    held = Gate()
    rpc = "server/discover" if fake.speech == "modern" else "initialize"
    fake.troubles = [Trouble(400, before=held, rpc=rpc, times=1)]
    impatient = asyncio.create_task(pool.list_tools(named(fake)))
    patient = asyncio.create_task(pool.list_tools(named(fake)))
    await fake.received(rpc)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    held.set()
    if fake.speech == "handshake":
        assert (await fault(patient)).number == 400
    else:
        assert await patient


async def test_a_changed_list_is_fetched_again_when_the_server_says_so(fake: FakeMcpServer, pool: McpPool) -> None:
    server = named(fake)
    await pool.list_tools(server)
    if fake.speech == "modern":
        await fake.received("subscriptions/listen")
    elif fake.speech == "handshake":
        await eventually(lambda: any(one.method == "GET" for one in fake.requests), "we listen")
    # The stream is open a moment after its request has arrived, which nobody is told.
    fake.change_tools(always("newcomer", text("hello")))

    async def fresh() -> bool:
        if "newcomer" in [tool.name for tool in await pool.list_tools(server)]:
            return True
        fake.change_tools()
        return False

    async with asyncio.timeout(10):
        while not await fresh():
            await elapse(0.02)


async def test_a_list_ages(fake: FakeMcpServer) -> None:
    async with pool_of(list_ttl=0.1) as pool:
        server = named(fake)
        await pool.list_tools(server)
        await pool.list_tools(server)
        assert fake.count("tools/list") == 1
        await elapse(0.12)
        await pool.list_tools(server)
        assert fake.count("tools/list") == 2


async def test_a_closed_pool_refuses_and_its_running_calls_end(fake: FakeMcpServer) -> None:
    async with pool_of() as pool:
        server = named(fake)
        running = asyncio.create_task(pool.call(server, "slow", "{}"))
        await fake.received("tools/call")
        await pool.close()
        await fault(running)
        assert "shutting down" in (await fault(pool.call(server, "echo", ECHO))).message
        await eventually(lambda: fake.open_connections == 0, "no connection is left")


async def test_it_works_on_uvloop_as_well() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> None:
        async with pool_of() as pool, FakeMcpServer("handshake") as fake:
            assert (await pool.call(named(fake), "echo", ECHO)).parts == [TextPart("hi")]

    def whole() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(use())

    await asyncio.to_thread(whole)
