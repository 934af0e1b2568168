"""Background responses and the death of their server: every one comes to an end, and none twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.behaviour.background_kit import RUNNING, checked, frames
from tests.behaviour.conftest import MODEL, text_of
from tests.behaviour.manifest import behaviour
from tests.behaviour.test_crash import PATIENCE, free_port
from treadle.testing.gates import Gate
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.server import settings_for
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

JOBS = int(os.environ.get("TREADLE_TEST_JOBS", "150"))
KILLS = int(os.environ.get("TREADLE_TEST_KILLS", "2"))
"""1000 and 5 are the full measure."""
PER_SECOND = 50


class Process:
    """The server as users start it, on one port, killed and started again."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        config = str(self.folder / "treadle.yaml")
        command = [sys.executable, "-m", "treadle", "serve", "--config", config, "--port", str(self.port)]
        with (self.folder / "serve.log").open("ab") as log:
            self._running = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=dict(os.environ))
        end = time.monotonic() + PATIENCE
        while True:
            try:
                assert httpx2.get(f"{self.url}/health").status_code == 200
                return
            except httpx2.TransportError:
                assert self._running.poll() is None, (self.folder / "serve.log").read_text()
                assert time.monotonic() < end, "the server did not start"
                time.sleep(0.02)

    def end(self, how: int) -> None:
        assert self._running is not None
        self._running.send_signal(how)
        self._running.wait(PATIENCE)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def get(self, path: str) -> Any:
        return httpx2.get(f"{self.url}{path}", timeout=PATIENCE)

    def post(self, **body: Any) -> Any:
        return httpx2.post(f"{self.url}/responses", json={"model": MODEL, "input": "x", **body}, timeout=PATIENCE)

    def outcome(self, response_id: str, seconds: float = PATIENCE) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while (found := self.get(f"/responses/{response_id}").json())["status"] in RUNNING:
            assert time.monotonic() < until, f"still {found['status']}"
            time.sleep(0.02)
        result: dict[str, Any] = found
        return result


@contextmanager
def server(folder: Path, model: ScriptedUpstream, *extra: str) -> Iterator[Process]:
    settings_for(folder, model.url, *extra)
    process = Process(folder)
    process.start()
    try:
        yield process
    finally:
        process.kill()


@behaviour("bug-69")
def test_all_come_to_one_end_however_often_the_server_is_killed(tmp_path: Path, model: ScriptedUpstream) -> None:
    chance = random.Random(5)
    model.default = lambda request: Reply(f"Answer to {request.body['messages'][-1]['content']}.", chunks=3)
    moments = sorted(chance.uniform(0.2, JOBS / PER_SECOND) for _ in range(KILLS))
    with server(tmp_path, model, "background: {queued: 100000}") as process:
        known: dict[str, str] = {}
        done = threading.Event()

        def submit() -> None:
            begun = time.monotonic()
            for number in range(JOBS):
                time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
                while True:
                    try:
                        reply = process.post(input=f"{number}", background=True)
                        assert reply.status_code == 200, reply.text
                        known[reply.json()["id"]] = f"Answer to {number}."
                        break
                    except httpx2.TransportError:
                        time.sleep(0.05)
            done.set()

        submitting = threading.Thread(target=submit)
        begun = time.monotonic()
        submitting.start()
        for moment in moments:
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            process.kill()
            process.start()
        submitting.join(PATIENCE + 3 * JOBS / PER_SECOND)
        assert done.is_set()
        assert len(known) == JOBS
        for response_id, answer in known.items():
            found = process.outcome(response_id, 60)
            assert found["status"] == "completed", found["error"]
            assert text_of(found) == answer
            assert len(found["output"]) == 1
        listed: list[dict[str, Any]] = []
        while True:
            after = f"&after={listed[-1]['id']}" if listed else ""
            page = process.get(f"/responses?limit=100{after}").json()
            listed += page["data"]
            if not page["has_more"]:
                break
        # Some may have been accepted just before a kill, without their client being told.
        assert {one["id"] for one in listed} >= set(known)
        assert len(listed) == len({one["id"] for one in listed})
        assert all(process.outcome(one["id"])["status"] == "completed" for one in listed)


@behaviour("bug-69")
def test_what_waits_or_has_done_nothing_yet_is_made_after_a_crash(tmp_path: Path, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("Never.", before=never))
    with server(tmp_path, model, "background: {workers: 1}") as process:
        running = process.post(background=True, stream=None).json()["id"]
        model.received_blocking(1)
        waiting = process.post(background=True, input="y").json()["id"]
        process.kill()
        model.script(Reply("Again."), Reply("Yes."))
        process.start()
        assert text_of(process.outcome(running)) == "Again."
        assert text_of(process.outcome(waiting)) == "Yes."
    never.set()


@behaviour("bug-69")
def test_a_tool_that_has_run_is_not_run_again(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    never = Gate()
    tool = {"type": "mcp", "server_label": "s", "server_url": mcp.url, "allowed_tools": ["echo"]}
    model.script(Reply(calls=[Call("echo", {"text": "once"})]), Reply("Never.", before=never))
    with server(tmp_path, model, "outgoing: {allow: [127.0.0.1]}") as process:
        response_id = process.post(background=True, tools=[tool]).json()["id"]
        model.received_blocking(2)
        process.kill()
        process.start()
        failed = process.outcome(response_id)
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"
        assert "a tool had been called" in failed["error"]["message"]
    assert mcp.count("tools/call") == 1
    never.set()


@behaviour("bug-69", "bug-71")
def test_a_stream_that_was_broken_off_is_closed_and_has_no_gap(tmp_path: Path, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("one two three", reasoning="Let me think.", held={5: never}))
    with server(tmp_path, model) as process:
        seen = b""
        body = {"model": MODEL, "input": "x", "background": True, "stream": True}
        with httpx2.stream("POST", f"{process.url}/responses", json=body, timeout=PATIENCE) as live:
            for data in live.iter_bytes():
                seen += data
                if b"output_text.delta" in seen:
                    break
        seen = seen[: seen.rindex(b"\n\n") + 2]
        listed = process.get("/responses").json()["data"]
        process.kill()
        process.start()
        failed = process.outcome(listed[0]["id"])
        assert failed["status"] == "failed"
        assert "streamed" in failed["error"]["message"]
        whole = process.get(f"/responses/{failed['id']}?stream=true").content
        assert whole.startswith(seen)
        events = checked(whole)
        assert events[-1]["response"] == failed
        assert [item["type"] for item in failed["output"]] == ["reasoning", "message"]
        assert text_of(failed).startswith("one")
        after = len(frames(seen + b"data: [DONE]\n\n"))
        assert seen + process.get(f"/responses/{failed['id']}?stream=true&starting_after={after - 1}").content == whole
    never.set()


@behaviour("bug-69")
def test_a_response_that_kills_its_server_is_given_up(tmp_path: Path, model: ScriptedUpstream) -> None:
    never = Gate()
    model.default = Reply("Never.", before=never)
    with server(tmp_path, model) as process:
        response_id = process.post(background=True).json()["id"]
        for number in range(1, 5):
            model.received_blocking(number)
            process.kill()
            process.start()
        failed = process.outcome(response_id)
        assert failed["status"] == "failed"
        assert "4 times" in failed["error"]["message"]
    never.set()


@behaviour("background-stop")
def test_a_server_that_stops_gives_back_what_can_be_made_again(tmp_path: Path, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("Never.", before=never))
    with server(tmp_path, model) as process:
        response_id = process.post(background=True).json()["id"]
        model.received_blocking(1)
        process.end(signal.SIGTERM)
        model.received_blocking(1).disconnected.wait_blocking()
        model.script(Reply("Again."))
        process.start()
        assert text_of(process.outcome(response_id)) == "Again."
    never.set()


@behaviour("background-stop")
def test_a_server_that_stops_ends_what_cannot_with_a_reason(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    never = Gate()
    tool = {"type": "mcp", "server_label": "s", "server_url": mcp.url, "allowed_tools": ["echo"]}
    model.script(Reply(calls=[Call("echo", {"text": "once"})]), Reply("Never.", before=never))
    with server(tmp_path, model, "outgoing: {allow: [127.0.0.1]}") as process:
        response_id = process.post(background=True, tools=[tool]).json()["id"]
        model.received_blocking(2)
        process.end(signal.SIGTERM)
        process.start()
        failed = process.get(f"/responses/{response_id}").json()
        assert failed["status"] == "failed"
        assert "stopping" in failed["error"]["message"]
        assert [item["type"] for item in failed["output"]] == ["mcp_list_tools", "mcp_call"]
    never.set()
