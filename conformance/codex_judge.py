"""Sessions of Codex CLI against `TREADLE_URL`: a plain answer, a command that Codex runs on this machine, and a tool
of an MCP server that Codex is configured with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripted_backend import PROOF

from treadle.testing.mcp import FakeMcpServer

SECONDS = 90


def session(prompt: str, *options: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON lines that `codex exec` prints for `prompt`, and what it wrote to stderr."""
    url, model = os.environ["TREADLE_URL"], os.environ["TREADLE_MODEL"]
    provider = f'{{name="treadle",base_url="{url}/v1",wire_api="responses",env_key="TREADLE_KEY"}}'
    with tempfile.TemporaryDirectory(prefix="treadle-codex-") as home:
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


def plain_answer() -> str | None:
    """None, or what went wrong."""
    lines, errors = session("Reply with exactly: AHOY")
    if not any(line["type"] == "turn.completed" for line in lines):
        return f"the turn did not complete: {lines[-1:]} {errors[-300:]}"
    said = [item["text"] for item in items(lines, "agent_message")]
    return None if said == ["AHOY"] else f"expected AHOY, found {said}"


def tool_loop() -> str | None:
    """None, or what went wrong. The proof is in the answer only if the command ran and its output came back."""
    lines, errors = session("Please run the command.")
    if not any(line["type"] == "turn.completed" for line in lines):
        return f"the turn did not complete: {lines[-1:]} {errors[-300:]}"
    commands = items(lines, "command_execution")
    if len(commands) != 1 or commands[0].get("exit_code") != 0:
        return f"expected one command that succeeds, found {commands}"
    said = [item["text"] for item in items(lines, "agent_message")]
    return None if said and PROOF in said[-1] else f"expected {PROOF} in the answer, found {said}"


def mcp_tool() -> str | None:
    """None, or what went wrong. Codex lists the tools of its server, the model calls one through us, Codex runs it."""
    with FakeMcpServer("handshake") as mcp:
        lines, errors = session("Please echo something.", "-c", f'mcp_servers.judge={{url="{mcp.url}"}}')
        calls = list(mcp.calls)
    if not any(line["type"] == "turn.completed" for line in lines):
        return f"the turn did not complete: {lines[-1:]} {errors[-300:]}"
    if calls != [("echo", {"text": PROOF})]:
        return f"expected one call of the tool, found {calls}: {items(lines, 'mcp_tool_call')}"
    said = [item["text"] for item in items(lines, "agent_message")]
    return None if said and PROOF in said[-1] else f"expected {PROOF} in the answer, found {said}"


def main() -> int:
    failed = 0
    checks = {"codex plain answer": plain_answer, "codex tool loop": tool_loop, "codex MCP tool": mcp_tool}
    for name, check in checks.items():
        problem = check()
        failed += problem is not None
        print(f"FAIL {name}: {problem}" if problem else f"PASS {name}", flush=True)
    print(f"Codex CLI: {len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
