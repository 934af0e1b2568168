"""Addresses that callers name go through the guard; what the operator wrote does not."""

from __future__ import annotations

import pytest

from tests.unit.tools.conftest import Guard, fault, named, pool_of
from treadle.errors import AddressRefused, InvalidRequest
from treadle.ports import RemoteServer, TextPart
from treadle.testing.mcp import FakeMcpServer, Trouble

ECHO = '{"text": "hi"}'


async def test_a_callers_address_is_looked_at_and_the_permitted_address_is_what_is_connected_to(
    fake: FakeMcpServer,
) -> None:
    guard = Guard({"tools.example": "127.0.0.1"})
    async with pool_of(guard) as pool:
        url = fake.url.replace("127.0.0.1", "tools.example")
        assert (await pool.call(RemoteServer("docs", url), "echo", ECHO)).parts == [TextPart("hi")]
        # No resolver but the guard knows this name.
        assert guard.seen == [url]
        assert set(guard.resolved) == {("tools.example", fake.port)}
        assert fake.requests[0].headers["host"] == f"tools.example:{fake.port}"


async def test_an_address_that_is_not_permitted_is_refused_when_connecting(fake: FakeMcpServer) -> None:
    async with pool_of(Guard({})) as pool:
        with pytest.raises(AddressRefused, match=r"outgoing\.allow"):
            await pool.list_tools(named(fake))
        assert fake.requests == []


async def test_an_address_refused_on_sight_is_the_callers_error(fake: FakeMcpServer) -> None:
    async with pool_of(Guard(on_sight=["127.0.0.1"])) as pool:
        with pytest.raises(InvalidRequest) as caught:
            await pool.list_tools(named(fake))
        assert caught.value.param == "server_url"
        assert fake.requests == []


async def test_each_new_connection_is_looked_at_again(fake: FakeMcpServer) -> None:
    guard = Guard({"tools.example": "127.0.0.1"})
    async with pool_of(guard) as pool:
        server = RemoteServer("docs", fake.url.replace("127.0.0.1", "tools.example"))
        await pool.call(server, "echo", ECHO)
        # The name now leads elsewhere; a restart makes us connect again.
        guard.hosts.clear()
        fake.restart()
        with pytest.raises(AddressRefused):
            await pool.call(server, "echo", ECHO)
        assert len(fake.calls) == 1


async def test_what_the_operator_wrote_needs_no_permission(fake: FakeMcpServer) -> None:
    guard = Guard({}, on_sight=["127.0.0.1"])
    async with pool_of(guard) as pool:
        assert (await pool.call(named(fake, by_operator=True), "echo", ECHO)).parts == [TextPart("hi")]
        assert guard.seen == []
        assert guard.resolved == []


async def test_a_callers_request_does_not_ride_on_the_operators_session(fake: FakeMcpServer) -> None:
    async with pool_of(Guard({})) as pool:
        await pool.call(named(fake, by_operator=True), "echo", ECHO)
        await pool.list_tools(named(fake, by_operator=True))
        with pytest.raises(AddressRefused):
            await pool.call(named(fake), "echo", ECHO)
        with pytest.raises(AddressRefused):
            await pool.list_tools(named(fake))


async def test_a_redirect_to_an_address_that_is_not_permitted_is_not_followed(fake: FakeMcpServer) -> None:
    guard = Guard({"tools.example": "127.0.0.1"})
    async with pool_of(guard) as pool, FakeMcpServer() as inner:
        fake.troubles = [Trouble(307, headers={"location": inner.url})]
        url = fake.url.replace("127.0.0.1", "tools.example")
        assert "which is not followed" in (await fault(pool.list_tools(RemoteServer("docs", url)))).message
        assert inner.requests == []
        assert {host for host, _ in guard.resolved} == {"tools.example"}


async def test_callers_cannot_start_commands() -> None:
    async with pool_of() as pool:
        told = await fault(pool.list_tools(RemoteServer("docs", "stdio:files")))
        assert told.message == "MCP server 'docs' is not among the commands of the configuration."
