"""What a call on a warm session costs beyond the SDK's own call, in CPU time of this thread (issue: 3 ms at most)."""

from __future__ import annotations

import time

import pytest
from mcp import Client

from tests.unit.tools.conftest import named
from treadle.testing.mcp import FakeMcpServer
from treadle.tools.mcp.pool import McpPool

CALLS = 60


@pytest.mark.parametrize("speech", ["modern", "handshake"])
async def test_a_warm_call_costs_at_most_three_milliseconds_beyond_the_sdk(pool: McpPool, speech: str) -> None:
    async with FakeMcpServer(speech) as fake:  # type: ignore[arg-type]
        server = named(fake)
        await pool.list_tools(server)
        await pool.call(server, "echo", '{"text": "warm"}')
        began = time.thread_time()
        for _ in range(CALLS):
            await pool.list_tools(server)
            await pool.call(server, "echo", '{"text": "hi"}')
        ours = time.thread_time() - began
        async with Client(fake.url, mode="auto" if speech == "modern" else "legacy") as client:
            await client.list_tools()
            await client.call_tool("echo", {"text": "warm"})
            began = time.thread_time()
            for _ in range(CALLS):
                await client.call_tool("echo", {"text": "hi"})
            theirs = time.thread_time() - began
        await pool.close()
    more = (ours - theirs) / CALLS * 1000
    assert more < 3, f"SDK {theirs / CALLS * 1000:.2f} ms, pool {ours / CALLS * 1000:.2f} ms per call"
