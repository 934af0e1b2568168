"""Servers behind pipes: started from the configuration, replaced when they die, gone when the pool closes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.unit.tools.conftest import eventually, fault, pool_of
from treadle.ports import RemoteServer, TextPart
from treadle.tools.mcp.pool import StdioCommand

SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("pipes")

@server.tool()
def echo(text: str) -> str:
    return f"{text} {os.environ.get('WORD', '')} {os.environ.get('OPENAI_API_KEY', 'none')}".strip()

@server.tool()
def pid() -> str:
    return str(os.getpid())

@server.tool()
def die() -> str:
    os._exit(3)

server.run(transport="stdio")
"""

PIPES = RemoteServer("pipes", "stdio:pipes", by_operator=True)


@pytest.fixture
def command(tmp_path: Path) -> StdioCommand:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return StdioCommand(sys.executable, (str(script),), (("WORD", "there"),))


def text_of(parts: object) -> str:
    assert isinstance(parts, list)
    assert isinstance(parts[0], TextPart)
    return parts[0].text


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_command_is_started_with_its_own_environment_and_ends_with_the_pool(
    command: StdioCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-them")
    async with pool_of(stdio={"pipes": command}) as pool:
        assert [tool.name for tool in await pool.list_tools(PIPES)] == ["echo", "pid", "die"]
        assert text_of((await pool.call(PIPES, "echo", '{"text": "hi"}')).parts) == "hi there none"
        pid = int(text_of((await pool.call(PIPES, "pid", "{}")).parts))
        assert alive(pid)
    assert not alive(pid)


async def test_a_server_that_was_killed_is_started_again(command: StdioCommand) -> None:
    async with pool_of(stdio={"pipes": command}) as pool:
        pid = int(text_of((await pool.call(PIPES, "pid", "{}")).parts))
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: pool.open_sessions == 0, "its end is noticed")
        assert int(text_of((await pool.call(PIPES, "pid", "{}")).parts)) != pid


async def test_a_server_that_dies_in_a_call_fails_that_call_once(command: StdioCommand) -> None:
    async with pool_of(stdio={"pipes": command}) as pool:
        pid = int(text_of((await pool.call(PIPES, "pid", "{}")).parts))
        told = await fault(pool.call(PIPES, "die", "{}"))
        assert told.message == "MCP server 'pipes' closed the connection before it answered."
        assert int(text_of((await pool.call(PIPES, "pid", "{}")).parts)) != pid


async def test_a_command_that_does_not_exist_says_so() -> None:
    async with pool_of(stdio={"pipes": StdioCommand("/no/such/command")}) as pool:
        told = await fault(pool.list_tools(PIPES))
        assert told.message == "MCP server 'pipes' cannot be started: No such file or directory."
        told = await fault(pool.list_tools(RemoteServer("files", "stdio:files", by_operator=True)))
        assert told.message == "MCP server 'files' is not among the commands of the configuration."


async def test_a_command_that_ends_at_once_is_a_fault(command: StdioCommand) -> None:
    async with pool_of(stdio={"pipes": StdioCommand(sys.executable, ("-c", "raise SystemExit(2)"))}) as pool:
        told = await fault(pool.list_tools(PIPES))
        assert told.message == "MCP server 'pipes' closed the connection before it answered."
