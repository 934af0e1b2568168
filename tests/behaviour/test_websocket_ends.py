"""How WebSocket connections end: who leaves stops what runs for them, and who is left is told why."""

from __future__ import annotations

import json
import signal
import socket as sockets
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.behaviour.conftest import MODEL, Driver, httpx2, text_of
from tests.behaviour.kit import LOOKUP, Lookup, eventually, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.socket_kit import opened
from tests.behaviour.test_crash import PATIENCE, process
from treadle.testing.gates import Gate
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.turns import chunk, sse
from treadle.testing.upstream import Call, Raw, Reply, ScriptedUpstream

# ------------------------------------------------------------------------------------------ departures


@behaviour("bug-72", "also-connections")
@pytest.mark.parametrize("rudely", [False, True], ids=["with a close", "without a word"])
def test_leaving_in_the_middle_stops_the_model_and_stores_what_there_was(
    api: Driver, server: RunningServer, model: ScriptedUpstream, rudely: bool
) -> None:
    never = Gate()
    model.script(Reply(text="One two three.", held={3: never}))
    with opened(server) as socket:
        socket.ask(input="Count.")
        socket.ask(input="Never asked.")
        response_id = socket.until("response.output_text.delta")[0]["response"]["id"]
        if rudely:
            socket.raw.socket.shutdown(sockets.SHUT_RDWR)
    model.requests[0].disconnected.wait_blocking()
    stored = eventually(api, response_id, "cancelled")
    assert "One " in text_of(stored)
    assert [item["status"] for item in stored["output"]] == ["incomplete"]
    assert len(model.requests) == 1
    assert [kept["id"] for kept in api.get("/responses").json()["data"]] == [response_id]
    never.set()


@behaviour("bug-72")
def test_leaving_stops_the_tools_of_every_stream(tmp_path: Path, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply(calls=[Call("look")]))
    tool = Lookup(gate=never)
    with serving(tmp_path, model, tool=tool) as api:
        with opened(api.server) as socket:
            socket.ask(input="Look.", tools=[LOOKUP], stream_id="a")
            tool.running.wait_blocking()
            model.script(Reply(text="One two.", held={2: never}))
            socket.ask(input="Count.", stream_id="b")
            socket.until("response.output_text.delta")
        tool.stopped.wait_blocking()
        model.requests[1].disconnected.wait_blocking()
        until = monotonic() + 10
        while [kept["status"] for kept in api.get("/responses").json()["data"]] != ["cancelled"] * 2:
            assert monotonic() < until
    never.set()


@behaviour("also-connections")
def test_fifty_sockets_dropped_in_the_middle_leave_nothing(
    api: Driver, server: RunningServer, model: ScriptedUpstream
) -> None:
    never = Gate()
    model.default = Reply(text="One two three.", held={3: never})
    state = server._server.server_state
    open_sockets: list[Any] = []
    for number in range(50):
        manager = opened(server)
        socket = manager.__enter__()
        open_sockets.append((manager, socket))
        socket.ask(input="Count.", store=number % 2 == 0)
    for _, socket in open_sockets:
        socket.until("response.output_text.delta")
    assert len(state.tasks) == 50
    for _, socket in open_sockets:
        socket.raw.socket.shutdown(sockets.SHUT_RDWR)
    for request in model.requests:
        request.disconnected.wait_blocking()
    until = monotonic() + 10
    while state.tasks or model.open_connections or len(api.get("/responses?limit=50").json()["data"]) < 25:
        assert monotonic() < until, (state.tasks, model.open_connections)
    assert {kept["status"] for kept in api.get("/responses?limit=50").json()["data"]} == {"cancelled"}
    for manager, _ in open_sockets:
        manager.__exit__(None, None, None)
    never.set()
    model.default = Reply(text="Well.")
    with opened(server) as socket:
        assert text_of(socket.turn(input="Still there?")) == "Well."


def test_a_client_that_does_not_read_stops_the_model_server(server: RunningServer, model: ScriptedUpstream) -> None:
    many = 3000
    text = "word " * 1000
    writes: list[Any] = [sse(chunk({"content": text}), done=False) for _ in range(many)]
    model.script(Raw([*writes, sse(chunk({}, finish="stop"))]))
    address = urlsplit(server.root)
    with sockets.socket() as line:
        # Some machines let a buffer grow until all of it fits.
        line.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 65_536)
        line.connect((address.hostname, address.port))
        line.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        reader = line.makefile("rb")
        while reader.readline() != b"\r\n":
            pass
        body = json.dumps({"type": "response.create", "model": MODEL, "input": "Go.", "store": False}).encode()
        line.sendall(b"\x81" + bytes([0x80 | 126]) + len(body).to_bytes(2, "big") + b"\0\0\0\0" + body)
        model.received_blocking(1)
        with pytest.raises(TimeoutError):
            model.requests[0].answered.wait_blocking(1.5)
        got, seen = b"", 0
        while b'"response.completed"' not in got:
            got = got[-100:] + reader.read1(2**20)
            seen += 1
        model.requests[0].answered.wait_blocking()


# ----------------------------------------------------------------------------------------- the time limit


@pytest.fixture
def brief(tmp_path: Path, model: ScriptedUpstream) -> Iterator[Driver]:
    """A server whose connections last a moment."""
    with serving(tmp_path, model, "websocket: {max_seconds: 1}") as api:
        yield api


def test_a_connection_that_has_lasted_long_enough_is_closed_with_an_error(brief: Driver) -> None:
    with opened(brief.server) as socket:
        assert socket.error(400)["code"] == "websocket_connection_limit_reached"
        assert socket.closed() == 1001


def test_a_response_that_runs_at_the_time_limit_is_finished(brief: Driver, model: ScriptedUpstream) -> None:
    held = Gate()
    model.script(Reply(text="One two.", held={2: held}), Reply(text="Well."))
    with opened(brief.server) as socket, opened(brief.server) as idle:
        socket.ask(input="Count.", store=False)
        socket.ask(input="Too late.", store=False)
        socket.until("response.output_text.delta")
        assert idle.error(400)["code"] == "websocket_connection_limit_reached"
        socket.ask(input="Later still.")
        assert socket.error(400)["code"] == "websocket_connection_limit_reached"
        held.set()
        assert text_of(socket.until("response.completed")[-1]["response"]) == "One two."
        for _ in ("what waited", "the connection"):
            assert socket.error(400)["code"] == "websocket_connection_limit_reached"
        assert socket.closed() == 1001
    with opened(brief.server) as socket:
        assert text_of(socket.turn(input="Again.")) == "Well."


# ------------------------------------------------------------------------------------------- the server's end


def test_idle_connections_are_closed_when_the_server_stops(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model) as api, opened(api.server) as socket:
        api.server._server.stop()
        assert socket.closed() == 1012


def test_a_response_that_ends_in_time_ends_as_ever_when_the_server_stops(tmp_path: Path) -> None:
    soon = Gate()
    with ScriptedUpstream(Reply(text="It ends.", chunks=4, held={2: soon})) as upstream:
        settings_for(tmp_path, upstream.url)
        with process(tmp_path) as (url, running), _dialled(url) as socket, _dialled(url) as idle:
            socket.ask(input="Go on.")
            socket.ask(input="Not begun.")
            socket.until("response.output_text.delta")
            running.send_signal(signal.SIGTERM)
            assert idle.closed() == 1012
            socket.ask(input="Too late.")
            assert socket.error(503)["code"] == "server_stopping"
            soon.set()
            assert text_of(socket.until("response.completed")[-1]["response"]) == "It ends."
            assert socket.error(503)["code"] == "server_stopping"
            assert socket.closed() == 1012
            assert running.wait(PATIENCE) == -signal.SIGTERM
        assert "Traceback" not in (tmp_path / "serve.log").read_text(encoding="utf-8")


def test_a_response_that_is_broken_off_ends_with_an_error_that_its_client_can_read(tmp_path: Path) -> None:
    never = Gate()
    with ScriptedUpstream(default=Reply(text="This never ends.", chunks=4, held={2: never})) as upstream:
        settings_for(tmp_path, upstream.url)
        with process(tmp_path) as (url, running), _dialled(url) as socket:
            socket.ask(input="Go on.", stream_id="a")
            first = socket.until("response.output_text.delta")
            socket.ask(input="Go on.", stream_id="b", store=False)
            upstream.received_blocking(2)
            running.send_signal(signal.SIGINT)
            _printed(tmp_path / "serve.log", "stopping, waiting up to 5 s")
            running.send_signal(signal.SIGINT)
            ends: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
            while not all(ends[lane] and ends[lane][-1]["type"] == "response.failed" for lane in ends):
                event = socket.next()
                ends[event["stream_id"]].append(event)
            for lane in ends.values():
                assert [event["type"] for event in lane[-2:]] == ["error", "response.failed"]
                assert (lane[-2]["code"], lane[-2]["status"]) == ("server_stopping", 503)
            assert socket.closed() == 1012
            assert running.wait(PATIENCE) == 130
        assert "Traceback" not in (tmp_path / "serve.log").read_text(encoding="utf-8")
        never.set()
        with process(tmp_path) as (url, _):
            kept = httpx2.get(f"{url}/responses/{first[0]['response']['id']}").json()
            assert (kept["status"], text_of(kept)[:4]) == ("failed", "This")


# ----------------------------------------------------------------------------------------- handshakes


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Origin: https://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: http://localhost:3000\r\n", 403),
        ("Origin: http://x\r\n", 101),
        ("", 101),
    ],
)
def test_web_pages_of_others_cannot_open_a_connection(server: RunningServer, head: str, status: int) -> None:
    answer = shake(server, head=head)
    assert answer[0] == status
    if status == 403:
        assert refusal(answer)["code"] == "permission_denied"


def test_a_configured_page_can_open_a_connection(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, "server: {cors_origins: ['https://app.example']}") as api:
        assert shake(api.server, head="Origin: https://app.example\r\n")[0] == 101
        assert shake(api.server, head="Origin: https://app.example.evil\r\n")[0] == 403


def test_a_domain_that_was_made_to_point_here_cannot_open_a_connection(server: RunningServer) -> None:
    assert refusal(shake(server, host="evil.example"))["code"] == "permission_denied"


def test_there_is_no_connection_at_other_paths(server: RunningServer) -> None:
    for path in ("/v1/models", "/", "/v1/responses/resp_1", "/v1/nothing%00", "/v1/\u00e9", "/v1/responsesx"):
        answer = shake(server, path=path)
        assert answer[0] in (404, 400), path
        refusal(answer)


@pytest.mark.parametrize(
    "changed",
    [
        "Sec-WebSocket-Version: 8",
        "Sec-WebSocket-Key: short",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nx: " + "y" * 20_000,
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + "x: y\r\n" * 200 + "z: 1",
        "",
    ],
    ids=["old version", "short key", "two keys", "long header", "many headers", "no key"],
)
def test_a_broken_handshake_is_refused_in_the_usual_form(server: RunningServer, changed: str) -> None:
    answer = shake(server, keys=f"{changed}\r\n" if changed else "")
    assert answer[0] == 400
    refusal(answer)


def test_only_get_opens_a_connection(server: RunningServer) -> None:
    answer = shake(server, method="POST")
    assert answer[0] == 400
    refusal(answer)


def test_a_handshake_is_answered_with_a_request_id_and_without_compression(server: RunningServer) -> None:
    status, headers, _ = shake(server, head="Sec-WebSocket-Extensions: permessage-deflate\r\nx-request-id: mine\r\n")
    assert (status, headers["x-request-id"]) == (101, "mine")
    assert "sec-websocket-extensions" not in headers


Answer = tuple[int, dict[str, str], bytes]


def shake(
    server: RunningServer,
    *,
    method: str = "GET",
    path: str = "/v1/responses",
    host: str = "x",
    head: str = "",
    keys: str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n",
) -> Answer:
    """Status, headers and body of what a handshake is answered with."""
    address = urlsplit(server.root)
    lines = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{head}{keys}\r\n"
    with sockets.create_connection((address.hostname, address.port), timeout=10) as line:
        line.sendall(lines.encode("latin-1"))
        reader = line.makefile("rb")
        status = int(reader.readline().split()[1])
        headers: dict[str, str] = {}
        while found := reader.readline().decode().strip():
            name, _, value = found.partition(": ")
            headers[name.lower()] = value
        return status, headers, b"" if status == 101 else reader.read()


def refusal(answer: Answer) -> dict[str, Any]:
    """The error of a refused handshake; the connection ended with it."""
    status, headers, body = answer
    assert (headers["content-type"], int(headers["content-length"])) == ("application/json", len(body))
    assert headers["x-request-id"]
    found: dict[str, Any] = json.loads(body)["error"]
    assert set(found) == {"message", "type", "param", "code"}, status
    return found


def _dialled(url: str) -> Any:
    """A connection to a server in a process of its own."""

    class Place:
        root = url.removesuffix("/v1")

    return opened(Place())  # type: ignore[arg-type]  # only its address is asked for


def _printed(log: Path, line: str) -> None:
    end = monotonic() + PATIENCE
    waiting = threading.Event()
    while line not in log.read_text(encoding="utf-8"):
        assert monotonic() < end
        waiting.wait(0.02)
