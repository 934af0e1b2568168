"""What a server was given in confidence stands in no message and no log line, whatever happens."""

from __future__ import annotations

import logging
import traceback
from typing import get_args

import pytest

from tests.unit.tools.conftest import closed_port, fault, pool_of
from treadle.errors import RemoteFault
from treadle.ports import RemoteServer, TextPart
from treadle.testing.mcp import FakeMcpServer, Speech, Trouble
from treadle.testing.mcp_tools import FakeTool, Use, result
from treadle.tools.mcp.pool import McpPool

TOKEN = "tok-3f9a61"
KEY = "key-77c2e5"
PASSWORD = "pw-9b1d40"
SECRETS = (TOKEN, KEY, PASSWORD)


def keeping(fake: FakeMcpServer) -> RemoteServer:
    headers = (("Authorization", f"Bearer {TOKEN}"), ("X-Password", PASSWORD))
    return RemoteServer("docs", f"{fake.url}?api_key={KEY}&v=1", headers)


def shown(told: RemoteFault) -> str:
    """All that could get out: the message, the representation, and the traceback a log would print."""
    return told.message + repr(told) + "".join(traceback.format_exception(told))


@pytest.mark.parametrize("speech", get_args(Speech))
async def test_nothing_confidential_is_logged_on_the_way(
    pool: McpPool, speech: Speech, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeMcpServer(speech) as fake:
        server = keeping(fake)
        assert await pool.list_tools(server)
        assert (await pool.call(server, "echo", '{"text": "hi"}')).parts == [TextPart("hi")]
        first = fake.requests[0]
        assert first.headers["authorization"] == f"Bearer {TOKEN}"
        assert first.query == f"api_key={KEY}&v=1"
        for trouble in (
            Trouble(401),
            Trouble(500),
            Trouble(404),
            Trouble(302, headers={"location": "http://x.invalid"}),
        ):
            fake.troubles = [trouble]
            told = await fault(pool.call(server, "echo", "{}"))
            assert not [secret for secret in SECRETS if secret in shown(told)]
        fake.troubles = []
        fake.restart()
        await pool.call(server, "echo", "{}")
        await pool.close()
    ours = [record for record in caplog.records if not record.name.startswith(("mcp.server", "uvicorn"))]
    assert ours, "there is a log to look at"
    text = "\n".join(f"{record.getMessage()} {record.exc_info}" for record in ours)
    assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("speech", get_args(Speech))
async def test_a_server_that_repeats_its_credentials_does_not_put_them_into_the_message(
    pool: McpPool, speech: Speech
) -> None:
    async with FakeMcpServer(speech) as fake:
        server = keeping(fake)
        body = f'{{"jsonrpc":"2.0","id":null,"error":{{"code":-32001,"message":"bad {TOKEN} {KEY} {PASSWORD}"}}}}'
        fake.troubles = [Trouble(422, body, "application/json", rpc="tools/call")]
        told = await fault(pool.call(server, "echo", "{}"))
        assert not [secret for secret in SECRETS if secret in shown(told)]
        if speech != "sse":
            assert told.message.endswith("bad [hidden] [hidden] [hidden].")


@pytest.mark.parametrize("place", ["http://user:{password}@127.0.0.1:{port}/mcp?api_key={key}"])
async def test_an_unreachable_address_is_not_repeated(pool: McpPool, place: str) -> None:
    url = place.format(password=PASSWORD, key=KEY, port=closed_port())
    told = await fault(pool.list_tools(RemoteServer("docs", url, (("X-Token", TOKEN + "\n"),))))
    assert not [secret for secret in SECRETS if secret in shown(told)]
    told = await fault(pool.list_tools(RemoteServer("docs", url)))
    assert not [secret for secret in SECRETS if secret in shown(told)]


async def test_a_user_and_password_in_the_url_become_a_header(pool: McpPool) -> None:
    async with FakeMcpServer() as fake:
        url = fake.url.replace("127.0.0.1", f"me:{PASSWORD}@127.0.0.1")
        await pool.list_tools(RemoteServer("docs", url))
        assert fake.requests[0].headers["authorization"].startswith("Basic ")


async def test_a_long_message_of_a_server_is_cut(pool: McpPool) -> None:
    async with FakeMcpServer("handshake") as fake:
        body = '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"' + "x" * 20_000 + '"}}'
        fake.troubles = [Trouble(422, body, "application/json", rpc="tools/call")]
        told = await fault(pool.call(RemoteServer("docs", fake.url), "echo", "{}"))
        assert len(told.message) < 1000
        assert told.message.endswith(" ….")


async def test_sessions_cannot_be_told_apart_by_looking_at_their_keys() -> None:
    async with pool_of() as pool, FakeMcpServer() as fake:
        await pool.list_tools(keeping(fake))
        assert not [secret for secret in SECRETS if secret in repr(vars(pool))]


async def test_result_parts_are_what_the_server_sent_even_if_it_repeats_a_credential(pool: McpPool) -> None:
    async def run(use: Use):  # type: ignore[no-untyped-def]
        del use
        import mcp_types

        return result(mcp_types.TextContent(text=f"you sent {KEY}"))

    async with FakeMcpServer(tools=[FakeTool("leak", run)]) as fake:
        # Results are the caller's own; only what we say ourselves is kept clean.
        assert (await pool.call(keeping(fake), "leak", "{}")).parts == [TextPart(f"you sent {KEY}")]
