"""Real servers from npm, as `scripts/npm_servers.sh DIR` installs them; TREADLE_NPM_SERVERS names the folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.tools.conftest import closed_port, fault, pool_of
from treadle.ports import ImagePart, RemoteResult, RemoteServer, TextPart
from treadle.tools.mcp.pool import McpPool, StdioCommand

FOLDER = os.environ.get("TREADLE_NPM_SERVERS", "")
NODE = shutil.which("node") or ""
STARTING = 30.0

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="TREADLE_NPM_SERVERS names no folder: see scripts/npm_servers.sh"),
    pytest.mark.skipif(not NODE, reason="there is no node"),
]


def script(package: str) -> str:
    return str(Path(FOLDER) / "node_modules" / package / "dist" / "index.js")


EVERYTHING = "@modelcontextprotocol/server-everything"
FILES = "@modelcontextprotocol/server-filesystem"


@asynccontextmanager
async def node(*command: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        NODE,
        *command,
        env={"PATH": os.environ["PATH"], "PORT": str(port), "HOME": FOLDER},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(STARTING):
            await asyncio.to_thread(_listening, port)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _listening(port: int) -> None:
    for _ in range(int(STARTING * 20)):
        with socket.socket() as probe:
            probe.settimeout(0.05)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        threading.Event().wait(0.05)
    raise TimeoutError(f"nothing listens on {port}")


def said(result: RemoteResult) -> str:
    return "\n".join(part.text for part in result.parts if isinstance(part, TextPart))


async def everything(pool: McpPool, server: RemoteServer) -> None:
    names = {tool.name for tool in await pool.list_tools(server)}
    assert {"echo", "get-sum", "get-tiny-image", "get-structured-content"} <= names
    assert said(await pool.call(server, "echo", '{"message": "hello"}')) == "Echo: hello"
    assert "5" in said(await pool.call(server, "get-sum", '{"a": 2, "b": 3}'))
    picture = await pool.call(server, "get-tiny-image", "{}")
    assert any(isinstance(part, ImagePart) and part.url.startswith("data:image/png") for part in picture.parts)
    weather = await pool.call(server, "get-structured-content", '{"location": "Chicago"}')
    assert weather.structured is not None
    assert "temperature" in json.loads(bytes(weather.structured))
    links = await pool.call(server, "get-resource-links", '{"count": 2}')
    assert said(links).count("(link to the resource") == 2
    refused = await pool.call(server, "get-sum", '{"a": "two"}')
    assert refused.failed


@pytest.mark.parametrize(("speech", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
async def test_server_everything_over_http(speech: str, path: str) -> None:
    port = closed_port()
    server = RemoteServer("everything", f"http://127.0.0.1:{port}{path}", by_operator=True)
    async with pool_of() as pool:
        async with node(script(EVERYTHING), speech, port=port):
            await everything(pool, server)
        # A restart forgets all sessions.
        async with node(script(EVERYTHING), speech, port=port):
            assert said(await pool.call(server, "echo", '{"message": "again"}')) == "Echo: again"
        await fault(pool.call(server, "echo", '{"message": "gone"}'))


async def test_server_everything_over_pipes() -> None:
    command = StdioCommand(NODE, (script(EVERYTHING), "stdio"))
    async with pool_of(stdio={"everything": command}) as pool:
        await everything(pool, RemoteServer("everything", "stdio:everything", by_operator=True))


async def test_server_filesystem_behind_supergateway(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("Buy milk.")
    port = closed_port()
    behind = f"{NODE} {script(FILES)} {tmp_path}"
    server = RemoteServer("files", f"http://127.0.0.1:{port}/sse", by_operator=True)
    async with node(script("supergateway"), "--stdio", behind, "--port", str(port), port=port), pool_of() as pool:
        tools = {tool.name: tool for tool in await pool.list_tools(server)}
        assert tools["read_text_file"].read_only
        arguments = json.dumps({"path": str(tmp_path / "note.txt")})
        assert "Buy milk." in said(await pool.call(server, "read_text_file", arguments))
        assert (await pool.call(server, "read_text_file", '{"path": "/etc/passwd"}')).failed
