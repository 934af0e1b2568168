"""Sessions of Codex CLI against `TREADLE_URL`, over HTTP and over WebSocket: a plain answer, a command that Codex runs
on this machine, and a tool of an MCP server that Codex is configured with."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripted_backend import PROOF

from treadle.testing.mcp import FakeMcpServer

SECONDS = 90


class Transport:
    """How Codex is told to talk. `used` are the ways in which it then asked for responses."""

    def __init__(self, name: str, option: str, way: str) -> None:
        self.name = name
        self.option = option
        self.way = way
        self.used: set[str] = set()

    @contextmanager
    def relay(self) -> Iterator[str]:
        """An address that leads to the server and sees how each connection begins."""
        server = urlsplit(os.environ["TREADLE_URL"])
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                while True:
                    try:
                        client, _ = listener.accept()
                        upstream = socket.create_connection((server.hostname or "", server.port or 80))
                    except OSError:
                        return
                    threading.Thread(target=self._pass_on, args=(client, upstream, True), daemon=True).start()
                    threading.Thread(target=self._pass_on, args=(upstream, client, False), daemon=True).start()

            threading.Thread(target=serve, daemon=True).start()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            listener.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        try:
            while data := source.recv(65_536):
                line, _, head = data.partition(b"\r\n")
                if asks and line in (b"GET /v1/responses HTTP/1.1", b"POST /v1/responses HTTP/1.1"):
                    self.used.add("websocket" if b"upgrade: websocket" in head.lower() else "http")
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


TRANSPORTS = (Transport("HTTP", "", "http"), Transport("WebSocket", ",supports_websockets=true", "websocket"))


def session(transport: Transport, prompt: str, *options: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON lines that `codex exec` prints for `prompt`, and what it wrote to stderr."""
    model = os.environ["TREADLE_MODEL"]
    with transport.relay() as url, tempfile.TemporaryDirectory(prefix="treadle-codex-") as home:
        provider = f'name="treadle",base_url="{url}/v1",wire_api="responses",env_key="TREADLE_KEY"{transport.option}'
        provider = f"{{{provider}}}"
        work = Path(home) / "work"
        work.mkdir()
        command = [os.environ["CODEX"], "exec", "--skip-git-repo-check", "--json"]
        command += ["-c", "model_provider=treadle", "-c", f"model_providers.treadle={provider}", "-m", model]
        command += [*options, prompt]
        env = {**os.environ, "HOME": home, "CODEX_HOME": home, "TREADLE_KEY": "none"}
        done = subprocess.run(
            command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    return lines, done.stderr.decode(errors="replace")


def items(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The finished items of one kind."""
    found = [line["item"] for line in lines if line["type"] == "item.completed"]
    return [item for item in found if item["type"] == kind]


def plain_answer(transport: Transport) -> str | None:
    """None, or what went wrong."""
    lines, errors = session(transport, "Reply with exactly: AHOY")
    if not any(line["type"] == "turn.completed" for line in lines):
        return f"the turn did not complete: {lines[-1:]} {errors[-300:]}"
    said = [item["text"] for item in items(lines, "agent_message")]
    return None if said == ["AHOY"] else f"expected AHOY, found {said}"


def tool_loop(transport: Transport) -> str | None:
    """None, or what went wrong. The proof is in the answer only if the command ran and its output came back."""
    lines, errors = session(transport, "Please run the command.")
    if not any(line["type"] == "turn.completed" for line in lines):
        return f"the turn did not complete: {lines[-1:]} {errors[-300:]}"
    commands = items(lines, "command_execution")
    if len(commands) != 1 or commands[0].get("exit_code") != 0:
        return f"expected one command that succeeds, found {commands}"
    said = [item["text"] for item in items(lines, "agent_message")]
    return None if said and PROOF in said[-1] else f"expected {PROOF} in the answer, found {said}"


def mcp_tool(transport: Transport) -> str | None:
    """None, or what went wrong. Codex lists the tools of its server, the model calls one through us, Codex runs it."""
    with FakeMcpServer("handshake") as mcp:
        lines, errors = session(transport, "Please echo something.", "-c", f'mcp_servers.judge={{url="{mcp.url}"}}')
        calls = list(mcp.calls)
    if not any(line["type"] == "turn.completed" for line in lines):
        return f"the turn did not complete: {lines[-1:]} {errors[-300:]}"
    if calls != [("echo", {"text": PROOF})]:
        return f"expected one call of the tool, found {calls}: {items(lines, 'mcp_tool_call')}"
    said = [item["text"] for item in items(lines, "agent_message")]
    return None if said and PROOF in said[-1] else f"expected {PROOF} in the answer, found {said}"


def judge(check: Callable[[Transport], str | None], transport: Transport) -> str | None:
    """None, or what went wrong."""
    transport.used.clear()
    problem = check(transport)
    if problem is None and transport.used != {transport.way}:
        return f"asked over {transport.used or 'nothing'}"
    return problem


def main() -> int:
    failed = total = 0
    checks = {"plain answer": plain_answer, "tool loop": tool_loop, "MCP tool": mcp_tool}
    for transport in TRANSPORTS:
        for name, check in checks.items():
            problem = judge(check, transport)
            total += 1
            failed += problem is not None
            name = f"codex {name} over {transport.name}"
            print(f"FAIL {name}: {problem}" if problem else f"PASS {name}", flush=True)
    print(f"Codex CLI: {total - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
