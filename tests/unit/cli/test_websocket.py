"""The WebSocket protocol that uvicorn runs, with small apps: pings, what may not pile up, faults, what ASGI demands."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from treadle.app import create_app
from treadle.cli.protocol import Protocol
from treadle.cli.websocket import WebSocketProtocol
from treadle.testing.gates import PATIENCE, Gate
from treadle.testing.server import settings_for
from treadle.testing.serving import QuickServer
from treadle.testing.upstream import Reply, ScriptedUpstream

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING, PONG, CLOSE = 0x89, 0x8A, 0x88


@contextmanager
def running(app: ASGIApp, *, lifespan: Any = "off", ws: Any = WebSocketProtocol, **options: Any) -> Iterator[Any]:
    """A server, and its port as `server.port`."""
    ready = Gate()
    config = uvicorn.Config(
        app,
        port=0,
        log_level="critical",
        http=Protocol,
        ws=ws,
        lifespan=lifespan,
        timeout_graceful_shutdown=1,
        **options,
    )
    server: Any = QuickServer(config, ready)
    thread = threading.Thread(target=server.run)
    thread.start()
    ready.wait_blocking()
    server.port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Says whatever it is told, until nobody is there."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "fail":
            raise RuntimeError("as it was told")
        if message.get("text") == "end":
            await send({"type": "websocket.close", "code": 4000, "reason": "as it was told"})
        else:
            await send({"type": "websocket.send", "text": message.get("text") or "binary"})


@contextmanager
def bare(port: int, *, small: bool = False) -> Iterator[socket.socket]:
    """An open connection that answers nothing by itself. `small`: it takes in next to nothing unread."""
    with socket.socket() as line:
        if small:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(PATIENCE)
        line.connect(("127.0.0.1", port))
        line.sendall(HANDSHAKE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += line.recv(1)
        assert b" 101 " in head
        yield line


def frame(line: socket.socket) -> tuple[int, bytes]:
    """First byte and data of the next frame, a short one."""
    first, size = line.recv(2, socket.MSG_WAITALL)
    assert size < 126
    return first, line.recv(size, socket.MSG_WAITALL) if size else b""


def masked(first: int, data: bytes) -> bytes:
    return bytes([first, 0x80 | len(data)]) + b"\0\0\0\0" + data


def test_a_client_that_answers_no_ping_is_given_up() -> None:
    with running(echo, ws_ping_interval=0.05, ws_ping_timeout=0.1) as server, bare(server.port) as line:
        assert frame(line)[0] == PING
        first, data = frame(line)
        assert (first, struct.unpack("!H", data[:2])[0]) == (CLOSE, 1011)
        assert line.recv(1) == b""
        until = monotonic() + PATIENCE
        while server.server_state.connections or server.server_state.tasks:
            assert monotonic() < until


def test_a_client_that_answers_pings_stays() -> None:
    with running(echo, ws_ping_interval=0.05, ws_ping_timeout=0.2) as server, bare(server.port) as line:
        seen = set()
        for _ in range(5):
            first, data = frame(line)
            assert first == PING
            seen.add(data)
            line.sendall(masked(PONG, b"another"))
            line.sendall(masked(PONG, data))
        assert len(seen) == 5
        line.sendall(masked(0x81, b"hello"))
        while (found := frame(line))[0] == PING:
            line.sendall(masked(PONG, found[1]))
        assert found == (0x81, b"hello")


def test_answers_to_pings_of_a_client_that_does_not_read_do_not_pile_up() -> None:
    with running(echo) as server, bare(server.port, small=True) as line:
        pings = masked(PING, b"x" * 125) * 500
        (protocol,) = server.server_state.connections
        kept = 0
        for _ in range(120):
            line.sendall(pings)
            kept = max(kept, protocol._transport.get_write_buffer_size())
        line.sendall(masked(0x81, b"hello"))
        got, answers = b"", 0
        while not got.endswith(b"\x81\x05hello"):
            got = got[-7:] + line.recv(1_000_000)
            answers += got.count(b"\x8a")
        assert kept < 1_000_000
        # The rest fits into no buffer of the system: 60,000 answers are 7.6 MB.
        assert answers < 60_000


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_messages_of_every_length_arrive(size: int) -> None:
    with running(echo) as server, connect(f"ws://127.0.0.1:{server.port}/") as client:
        client.send("x" * size or "-")
        assert client.recv(PATIENCE) == ("x" * size or "-")


def test_messages_that_are_sent_before_any_is_answered_arrive_in_order() -> None:
    with running(echo) as server, connect(f"ws://127.0.0.1:{server.port}/") as client:
        for number in range(500):
            client.send(str(number))
        assert [client.recv(PATIENCE) for _ in range(500)] == [str(number) for number in range(500)]
        client.send(b"bytes")
        assert client.recv(PATIENCE) == "binary"


def test_an_app_that_fails_closes_the_connection_as_failed() -> None:
    with running(echo) as server, connect(f"ws://127.0.0.1:{server.port}/") as client:
        client.send("fail")
        with pytest.raises(ConnectionClosed) as end:
            client.recv(PATIENCE)
        assert end.value.rcvd is not None
        assert end.value.rcvd.code == 1011


def test_an_app_may_close_with_a_code_of_its_own() -> None:
    with running(echo) as server, connect(f"ws://127.0.0.1:{server.port}/") as client:
        client.send("end")
        with pytest.raises(ConnectionClosed) as end:
            client.recv(PATIENCE)
        assert end.value.rcvd is not None
        assert (end.value.rcvd.code, end.value.rcvd.reason) == (4000, "as it was told")


def test_an_app_that_closes_before_it_accepts_refuses() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.close", "code": 1000})

    with running(refuse) as server, pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{server.port}/")
    assert refused.value.response.status_code == 403
    assert refused.value.response.body is not None
    assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_handshake"


def test_what_is_sent_after_the_end_is_an_error_of_its_own() -> None:
    told: list[BaseException] = []
    gone = Gate()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        try:
            await send({"type": "websocket.send", "text": "Hello?"})
        except OSError as error:
            told.append(error)
        gone.set()

    with running(late) as server:
        connect(f"ws://127.0.0.1:{server.port}/").close()
        gone.wait_blocking()
    assert len(told) == 1


def test_the_app_runs_on_the_protocol_that_uvicorn_has_of_its_own(tmp_path: Path) -> None:
    with ScriptedUpstream(Reply(text="One two."), Reply(text="Three.")) as upstream:
        app = create_app(settings_for(tmp_path, upstream.url))
        with running(app, lifespan="on", ws="auto") as server:
            url = f"ws://127.0.0.1:{server.port}/v1/responses"
            with pytest.raises(InvalidStatus) as refused:
                connect(url, origin="https://evil.example")  # type: ignore[arg-type]  # a plain text will do
            assert refused.value.response.status_code == 403
            with connect(url) as client:
                previous = None
                for _ in range(2):
                    ask = {"type": "response.create", "model": "scripted/scripted", "input": "Hi", "store": False}
                    client.send(json.dumps({**ask, "previous_response_id": previous}))
                    event: dict[str, Any] = {}
                    while event.get("type") != "response.completed":
                        event = json.loads(client.recv(PATIENCE))
                        assert event["type"] != "error", event
                    previous = event["response"]["id"]
        upstream.assert_consumed()
