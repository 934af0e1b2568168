"""MCP servers from npm behind a running Treadle, end to end; `scripts/npm_servers.sh DIR` installs them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.behaviour.conftest import LOOPBACK, Driver, sent, text_of
from tests.behaviour.kit import final, kinds, serving
from tests.behaviour.mcp_kit import answer, asked, calls, declared, listed, outputs, well_formed
from treadle.testing.gates import Gate
from treadle.testing.upstream import Call, Reply, ScriptedUpstream

FOLDER = os.environ.get("TREADLE_NPM_SERVERS", "")
NODE = shutil.which("node") or ""
STARTING = 30.0
EVERYTHING = "@modelcontextprotocol/server-everything"
FILES = "@modelcontextprotocol/server-filesystem"

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="TREADLE_NPM_SERVERS names no folder: see scripts/npm_servers.sh"),
    pytest.mark.skipif(not NODE, reason="there is no node"),
]


def script(package: str) -> str:
    return str(Path(FOLDER) / "node_modules" / package / "dist" / "index.js")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def node(*command: str, port: int) -> Iterator[None]:
    """The program, from the moment it listens; it is killed in the end."""
    env = {"PATH": os.environ["PATH"], "PORT": str(port), "HOME": FOLDER}
    process = subprocess.Popen([NODE, *command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + STARTING
        while True:
            with socket.socket() as probe:
                probe.settimeout(0.1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < until, f"nothing listens on {port}"
            _pause(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _pause(seconds: float) -> None:
    try:
        Gate().wait_blocking(seconds)
    except TimeoutError:
        return


@pytest.fixture
def api(tmp_path: Path, model: ScriptedUpstream) -> Iterator[Driver]:
    data = tmp_path / "data"
    data.mkdir()
    with serving(data, model, LOOPBACK) as driver:
        yield driver


@pytest.mark.parametrize(("speech", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
def test_server_everything_lists_runs_asks_and_survives_a_restart(
    api: Driver, model: ScriptedUpstream, speech: str, path: str
) -> None:
    port = free_port()
    tools = [declared(f"http://127.0.0.1:{port}{path}", "everything")]
    with node(script(EVERYTHING), speech, port=port):
        model.script(
            Reply(
                calls=[
                    Call("echo", {"message": "hello"}),
                    Call("get-sum", {"a": 2, "b": 3}),
                    Call("get-sum", {"a": "x"}),
                ]
            ),
            Reply(calls=[Call("get-tiny-image"), Call("get-structured-content", {"location": "Chicago"})]),
            Reply(text="All done."),
        )
        first = final(api.stream(input="Use them all.", tools=tools))
        assert {"echo", "get-sum", "get-tiny-image"} <= set(listed(first)["everything"])
        echo, total, wrong, image, weather = calls(first)
        assert echo["output"] == "Echo: hello"
        assert "5" in total["output"]
        assert wrong["status"] == "failed"
        assert "[image]" in image["output"]
        assert "temperature" in weather["output"]
        assert text_of(first) == "All done."
        well_formed(sent(model, 3))
    with node(script(EVERYTHING), speech, port=port):
        # A restart forgets all sessions; the chain lists nothing anew.
        careful = [tools[0] | {"require_approval": "always"}]
        model.script(Reply(calls=[Call("echo", {"message": "again"})]), Reply(text="Done."))
        second = final(api.stream(input="Again.", previous_response_id=first["id"], tools=careful))
        assert kinds(second) == ["mcp_approval_request"]
        third = final(api.stream(input=[answer(asked(second))], previous_response_id=second["id"], tools=careful))
        assert [call["output"] for call in calls(third)] == ["Echo: again"]
        well_formed(sent(model, 5))


def test_server_filesystem_behind_supergateway_reads_what_it_may(
    api: Driver, model: ScriptedUpstream, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "note.txt").write_text("Buy milk.", encoding="utf-8")
    port = free_port()
    behind = f"{NODE} {script(FILES)} {notes}"
    with node(script("supergateway"), "--stdio", behind, "--port", str(port), port=port):
        tools = [declared(f"http://127.0.0.1:{port}/sse", "files", allowed_tools={"read_only": True})]
        read = [Call("read_text_file", {"path": path}) for path in (str(notes / "note.txt"), "/etc/passwd")]
        model.script(
            Reply(calls=[*read, Call("write_file", {"path": str(notes / "evil.txt"), "content": "x"})]),
            Reply(text="Milk."),
        )
        response = final(api.stream(input="What do I need?", tools=tools))
        assert "read_text_file" in listed(response)["files"]
        assert "write_file" not in listed(response)["files"]
        allowed, outside = calls(response)
        assert "Buy milk." in allowed["output"]
        assert outside["status"] == "failed"
        assert "no tool named 'write_file'" in " ".join(outputs(sent(model, 2)))
        assert not (notes / "evil.txt").exists()
