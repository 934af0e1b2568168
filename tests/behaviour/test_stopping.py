"""Ctrl-C while requests run: they get five seconds, then an end that their clients can read, and no traceback."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, httpx2, text_of
from tests.behaviour.kit import error
from tests.behaviour.test_crash import PATIENCE, process
from treadle.testing.frames import parse_sse
from treadle.testing.gates import Gate
from treadle.testing.sequence import check_sequence
from treadle.testing.server import settings_for
from treadle.testing.upstream import Received, Reply, ScriptedUpstream

ASKED = {"model": MODEL, "input": "Go on."}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "stream": True}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def streamed(url: str, body: dict[str, Any], path: str = "responses", until: bytes = b"delta") -> Any:
    """A function that reads a stream to its end, and an event that says that `until` has arrived."""
    arrived = threading.Event()

    def read() -> bytes:
        got = b""
        with (
            httpx2.Client(timeout=PATIENCE) as http,
            http.stream("POST", f"{url}/{path}", json={**body, "stream": True}) as live,
        ):
            for part in live.iter_raw():
                got += part
                if until in got:
                    arrived.set()
        return got

    return read, arrived


def told(log: Path) -> str:
    return log.read_text(encoding="utf-8")


def test_a_second_ctrl_c_ends_what_runs_with_an_error_that_each_client_can_read(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    never = Gate()

    def reply(request: Received) -> Reply:
        held = Reply(text="This never ends.", chunks=4, held={2: never})
        return held if request.body.get("stream") else Reply(before=never)

    with ScriptedUpstream(default=reply) as upstream:
        settings_for(tmp_path, upstream.url, "responses: {visible_after_seconds: 0}")
        with process(tmp_path) as (url, running):
            read, seen = streamed(url, ASKED)
            stream: Future[bytes] = pool.submit(read)
            chat_read, chat_seen = streamed(url, CHAT, "chat/completions", b"content")
            chat: Future[bytes] = pool.submit(chat_read)
            post: Callable[..., Any] = httpx2.post
            whole = pool.submit(post, f"{url}/responses", json=ASKED, timeout=PATIENCE)
            plain = pool.submit(post, f"{url}/chat/completions", json={**CHAT, "stream": False}, timeout=PATIENCE)
            assert seen.wait(PATIENCE)
            assert chat_seen.wait(PATIENCE)
            upstream.received_blocking(4)
            running.send_signal(signal.SIGINT)
            wait_for(tmp_path / "serve.log", "stopping, waiting up to 5 s for 4 requests (Ctrl-C again stops at once)")
            running.send_signal(signal.SIGINT)
            events = parse_sse(stream.result(PATIENCE))
            check_sequence(events)
            assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
            assert events[-2]["code"] == "server_stopping"
            failed = events[-1]["response"]
            assert failed["error"]["code"] == "server_error"
            assert "is stopping" in failed["error"]["message"]
            assert text_of(failed)
            assert b'data: {"error":{"message":"The server is stopping' in chat.result(PATIENCE)
            for waiting in (whole, plain):
                assert error(waiting.result(PATIENCE), 503)["code"] == "server_stopping"
            assert running.wait(PATIENCE) == 130
        assert "Traceback" not in told(tmp_path / "serve.log")
        never.set()
        with process(tmp_path) as (url, _):
            assert httpx2.get(f"{url}/responses/{failed['id']}").json() == failed
            statuses = [kept["status"] for kept in httpx2.get(f"{url}/responses").json()["data"]]
            assert statuses == ["failed", "failed"]


def test_requests_that_end_in_time_end_as_ever(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    soon = Gate()
    with ScriptedUpstream(Reply(text="It ends.", chunks=4, held={2: soon})) as upstream:
        settings_for(tmp_path, upstream.url)
        with process(tmp_path) as (url, running):
            read, seen = streamed(url, ASKED)
            stream: Future[bytes] = pool.submit(read)
            assert seen.wait(PATIENCE)
            running.send_signal(signal.SIGINT)
            wait_for(tmp_path / "serve.log", "stopping, waiting up to 5 s for 1 request ")
            soon.set()
            events = parse_sse(stream.result(PATIENCE))
            assert events[-1]["type"] == "response.completed"
            assert running.wait(PATIENCE) == 130
        assert "Traceback" not in told(tmp_path / "serve.log")


@pytest.mark.slow
def test_after_five_seconds_what_still_runs_is_ended(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    never = Gate()
    with ScriptedUpstream(default=Reply(text="This never ends.", chunks=4, held={2: never})) as upstream:
        settings_for(tmp_path, upstream.url)
        with process(tmp_path) as (url, running):
            read, seen = streamed(url, ASKED)
            stream: Future[bytes] = pool.submit(read)
            assert seen.wait(PATIENCE)
            running.send_signal(signal.SIGTERM)
            events = parse_sse(stream.result(PATIENCE))
            assert events[-1]["type"] == "response.failed"
            assert running.wait(PATIENCE) == -signal.SIGTERM
        assert "Traceback" not in told(tmp_path / "serve.log")
        never.set()


def wait_for(log: Path, line: str) -> None:
    """Until the server has printed it."""
    end = time.monotonic() + PATIENCE
    while line not in told(log):
        assert time.monotonic() < end, told(log)
        time.sleep(0.02)
