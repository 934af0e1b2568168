"""What the MCP tests share: a pool over a guard that permits what the test says, and a look at what is left open."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from treadle.errors import AddressRefused, InvalidRequest, RemoteFault
from treadle.ports import RemoteServer, RemoteTools
from treadle.testing.gates import PATIENCE
from treadle.testing.mcp import FakeMcpServer
from treadle.tools.mcp.pool import McpPool


class Guard:
    """An address guard that knows the hosts it is told, and writes down what it was asked."""

    def __init__(self, hosts: dict[str, str] | None = None, *, on_sight: Sequence[str] = ()) -> None:
        self.hosts = {"127.0.0.1": "127.0.0.1"} if hosts is None else hosts
        self.on_sight = on_sight
        self.seen: list[str] = []
        self.resolved: list[tuple[str, int]] = []

    def check_url(self, url: str, param: str) -> None:
        self.seen.append(url)
        if any(part in url for part in self.on_sight):
            raise InvalidRequest(f"{param} is refused; outgoing.allow permits it", param=param)

    async def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append((host, port))
        if host not in self.hosts:
            raise AddressRefused(f"{host} is a private address; outgoing.allow permits it")
        return [self.hosts[host]]


@asynccontextmanager
async def pool_of(guard: Guard | None = None, **more: Any) -> AsyncIterator[McpPool]:
    """A pool that must leave nothing behind: no task, no thread of its own."""
    before = asyncio.all_tasks()
    pool = McpPool(guard or Guard(), **more)
    try:
        yield pool
    finally:
        await pool.close()

    def left() -> set[asyncio.Task[Any] | None]:
        return asyncio.all_tasks() - before - {asyncio.current_task()}

    # Generators that were left in the middle are finished by the loop, a moment later.
    await eventually(lambda: not left(), "no task is left")


@pytest.fixture
async def pool() -> AsyncIterator[McpPool]:
    async with pool_of() as one:
        yield one


@pytest.fixture(params=["modern", "handshake", "sse"])
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[FakeMcpServer]:
    """A server of tools, once for each way to speak."""
    async with FakeMcpServer(request.param) as server:
        yield server


def named(server: FakeMcpServer, *, token: str | None = None, label: str = "docs", **more: Any) -> RemoteServer:
    headers = () if token is None else (("Authorization", f"Bearer {token}"),)
    return RemoteServer(label, server.url, headers, **more)


async def fault(work: Awaitable[Any]) -> RemoteFault:
    with pytest.raises(RemoteFault) as caught:
        await work
    told = caught.value
    for word in ("TaskGroup", "unhandled", "sub-exception", "Traceback", "mcp."):
        assert word not in told.message
    return told


async def eventually(true: Callable[[], bool], what: str) -> None:
    """Lets the loop turn until `true`, for what other threads do and nobody can be told about."""
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.to_thread(threading.Event().wait, 0.01)
    assert true(), what


async def elapse(seconds: float) -> None:
    """Lets real time go by, where time itself is what is tested."""
    until = time.monotonic() + seconds
    await eventually(lambda: time.monotonic() >= until, "the time is over")


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def is_remote_tools(pool: RemoteTools) -> RemoteTools:
    """For the type checker: the adapter keeps the promise of the port."""
    return pool
