"""Kill -9 under load: what a client was told is there afterwards, whole, and nothing is there in half."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.behaviour.conftest import MODEL, httpx2, text_of
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.server import settings_for
from treadle.testing.upstream import Received, Reply, ScriptedUpstream

CLIENTS = 16
PATIENCE = 20


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def process(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The server as users start it, in a process of its own, on the data in `folder`."""
    port = free_port()
    command = [sys.executable, "-m", "treadle", "serve", "--config", str(folder / "treadle.yaml"), "--port", str(port)]
    with (folder / "serve.log").open("ab") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=dict(os.environ))
    url = f"http://127.0.0.1:{port}/v1"
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                assert httpx2.get(f"{url}/health").status_code == 200
                break
            except httpx2.TransportError:
                assert running.poll() is None, (folder / "serve.log").read_text()
                assert time.monotonic() < end, "the server did not start"
                time.sleep(0.02)
        yield url, running
    finally:
        if running.poll() is None:
            running.kill()
        running.wait(PATIENCE)


class Load:
    """Clients that stream stored turns, alone, chained and in conversations, until the server dies under them."""

    def __init__(self, url: str, running: subprocess.Popen[bytes], kill_after: int) -> None:
        self.url = url
        self.finals: list[dict[str, Any]] = []
        self.begun: set[str] = set()
        self._running = running
        self._kill_after = kill_after
        self._lock = threading.Lock()

    def client(self, number: int) -> None:
        """Turns without end; the death of the server is the end."""
        try:
            with httpx2.Client(timeout=PATIENCE) as http:
                past: dict[str, Any] = {}
                if number % 4 == 0:
                    past = {"conversation": http.post(f"{self.url}/conversations").json()["id"]}
                for turn in range(10_000):
                    final = self.turn(http, f"{number}.{turn}", past)
                    if number % 4 == 1:
                        past = {"previous_response_id": final["id"]}
        except (httpx2.TransportError, ConnectionError):
            return

    def turn(self, http: Any, text: str, past: dict[str, Any]) -> dict[str, Any]:
        body = {"model": MODEL, "input": text, "stream": True, **past}
        with http.stream("POST", f"{self.url}/responses", json=body) as live:
            for line in live.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = msgspec.json.decode(line[6:])
                if event["type"] == "response.created":
                    self.begun.add(event["response"]["id"])
                elif event["type"] == "response.completed":
                    self.arrived(event["response"])
                    found: dict[str, Any] = event["response"]
                    return found
        raise httpx2.ReadError("the stream ended early")

    def arrived(self, final: dict[str, Any]) -> None:
        with self._lock:
            self.finals.append(final)
            if len(self.finals) == self._kill_after:
                self._running.send_signal(signal.SIGKILL)


def answer(request: Received) -> Reply:
    text = request.body["messages"][-1]["content"]
    return Reply(text=f"{text} " + "and so on " * 20 + "end.", chunks=8)


def expected(text: str) -> str:
    return f"{text} " + "and so on " * 20 + "end."


def listed(http: Any, url: str) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        page = http.get(f"{url}/responses?limit=100&order=asc&after={after}").json()
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["last_id"]


def check_whole(http: Any, url: str, told: list[dict[str, Any]]) -> None:
    for final in told:
        assert http.get(f"{url}/responses/{final['id']}").json() == final
    for kept in listed(http, url):
        (given,) = kept["input"]
        if kept["status"] == "completed":
            assert text_of(kept) == expected(given["content"][0]["text"])
            assert kept["usage"]["output_tokens"] > 0
        else:
            assert kept["status"] == "failed", "nobody works on it any more"
            assert kept["error"]["code"] == "server_error"
    for conversation in {final["conversation"]["id"] for final in told if final["conversation"]}:
        items = http.get(f"{url}/conversations/{conversation}/items?limit=100&order=asc").json()["data"]
        texts = [item["content"][0]["text"] for item in items]
        assert texts[1::2] == [expected(text) for text in texts[::2]]


@pytest.mark.slow
@pytest.mark.timeout(180)
@behaviour("kill-whole", "kill-half")
def test_after_kill_9_what_was_told_is_there_and_nothing_is_there_in_half(tmp_path: Path) -> None:
    never = Gate()

    def reply(request: Received) -> Reply:
        held = request.body["messages"][-1]["content"] == "held"
        return Reply(text="This never ends.", held={2: never}) if held else answer(request)

    with ScriptedUpstream(default=reply) as upstream:
        settings_for(tmp_path, upstream.url, "responses: {visible_after_seconds: 0.05}")
        told: list[dict[str, Any]] = []
        begun: set[str] = set()
        for round_ in range(3):
            with process(tmp_path) as (url, running), httpx2.Client(timeout=PATIENCE) as http:
                check_whole(http, url, told)
                load = Load(url, running, kill_after=random.Random(round_).randint(40, 90))
                with ThreadPoolExecutor(CLIENTS + 1) as pool:
                    held = pool.submit(load_held, load)
                    clients = [pool.submit(load.client, number) for number in range(CLIENTS)]
                    for client in clients:
                        client.result(60)
                    begun.add(held.result(PATIENCE))
                assert running.wait(PATIENCE) == -signal.SIGKILL
                told += load.finals
        never.set()
        with process(tmp_path) as (url, _), httpx2.Client(timeout=PATIENCE) as http:
            assert len(told) >= 120
            check_whole(http, url, told)
            for response_id in begun:
                lost = http.get(f"{url}/responses/{response_id}").json()
                assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")
            check_usable(http, url, told)


def load_held(load: Load) -> str:
    """A turn that is still running when the server dies; its id."""
    found = ""
    body = {"model": MODEL, "input": "held", "stream": True}
    try:
        with httpx2.Client(timeout=PATIENCE) as http, http.stream("POST", f"{load.url}/responses", json=body) as live:
            for line in live.iter_lines():
                if '"type":"response.created"' in line:
                    found = msgspec.json.decode(line[6:])["response"]["id"]
    except httpx2.TransportError:
        pass
    return found


def check_usable(http: Any, url: str, told: list[dict[str, Any]]) -> None:
    """No lock outlives the crash: conversations and chains go on."""
    conversation = next(final["conversation"]["id"] for final in told if final["conversation"])
    for past in ({"conversation": conversation}, {"previous_response_id": told[-1]["id"]}):
        response = http.post(f"{url}/responses", json={"model": MODEL, "input": "on", **past}).json()
        assert text_of(response) == expected("on")
