"""Frames that are no requests: each is answered with an error or a close, and nothing is harmed by any."""

from __future__ import annotations

import json
import random
import socket as sockets
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from tests.behaviour import shared as one_server
from tests.behaviour.conftest import MODEL, text_of
from tests.behaviour.kit import serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.socket_kit import Socket, opened
from treadle.testing.server import RunningServer
from treadle.testing.upstream import Reply, ScriptedUpstream

shared, model, server = one_server.shared, one_server.model, one_server.server


@pytest.fixture
def socket(server: RunningServer) -> Iterator[Socket]:
    with opened(server) as found:
        yield found


def usable(socket: Socket, model: ScriptedUpstream) -> None:
    """The connection still answers."""
    model.script(Reply(text="Well."))
    assert text_of(socket.turn(input="Still there?", store=False)) == "Well."


@behaviour("bug-73")
@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("", "invalid_json", None),
        ("nonsense", "invalid_json", None),
        ('{"type":', "invalid_json", None),
        ('{"type":"response.create","input":"\\ud800"}', "invalid_json", "input"),
        ("[" * 100_000, "invalid_json", None),
        ('{"type":"response.create","metadata":' + '{"a":' * 300 + "1" + "}" * 301, "invalid_json", None),
        ("[]", "invalid_type", None),
        ('"response.create"', "invalid_type", None),
        ("null", "invalid_type", None),
        ("{}", "unknown_event_type", "type"),
        ('{"type":null}', "unknown_event_type", "type"),
        ('{"type":7}', "unknown_event_type", "type"),
        ('{"type":"response.steer","input":"x","previous_response_id":"resp_1"}', "unknown_event_type", "type"),
        ('{"type":"response.create\\u0000"}', "unknown_event_type", "type"),
        ('{"type":"session.update","input":7}', "unknown_event_type", "type"),
        ('{"type":"response.create","input":7}', "invalid_type", "input"),
        ('{"type":"response.create"}', "missing_required_parameter", "model"),
        ('{"type":"response.create","model":"scripted/scripted"}', "missing_required_parameter", "input"),
        ('{"type":"response.create","stream_id":7}', "invalid_type", "stream_id"),
        ('{"type":"response.create","generate":"no"}', "invalid_type", "generate"),
        ('{"type":"response.create","stream_id":"' + "x" * 257 + '"}', "string_above_max_length", "stream_id"),
    ],
)
def test_a_frame_that_is_no_request_is_refused_and_the_connection_stays(
    socket: Socket, model: ScriptedUpstream, frame: str, code: str, param: str | None
) -> None:
    socket.raw.send(frame)
    found = socket.error(400)
    assert (found["code"], found["param"], found["type"]) == (code, param, "invalid_request_error")
    usable(socket, model)


def test_what_is_wrong_is_told_in_the_stream_that_it_is_in(socket: Socket) -> None:
    socket.ask(input=7, stream_id="a")
    assert socket.error(400, stream_id="a")["param"] == "input"
    socket.raw.send('{"type":"session.update","stream_id":"b"}')
    assert socket.error(400, stream_id="b")["code"] == "unknown_event_type"


def test_a_binary_frame_is_refused_and_the_connection_stays(socket: Socket, model: ScriptedUpstream) -> None:
    socket.raw.send(json.dumps({"type": "response.create", "model": MODEL, "input": "Hi"}).encode())
    assert socket.error(400)["code"] == "invalid_frame"
    usable(socket, model)


@behaviour("bug-42")
def test_nul_bytes_and_odd_characters_arrive_as_they_are(socket: Socket, model: ScriptedUpstream) -> None:
    text = "a\x00b\u2028c\ufffe\U0001f600\x7f"
    model.script(Reply(text="Yes."))
    response = socket.turn(input=text, metadata={"k\x00": "v\x00"})
    assert json.loads(model.requests[0].raw)["messages"][-1]["content"] == text
    assert response["metadata"] == {"k\x00": "v\x00"}


@behaviour("bug-73")
def test_a_frame_that_is_too_large_is_refused_and_the_connection_stays(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, "server: {max_body_bytes: 4096}") as api, opened(api.server) as socket:
        socket.ask(input="x" * 5000)
        assert socket.error(413)["code"] == "request_too_large"
        usable(socket, model)


@pytest.mark.parametrize("pieces", [1, 50])
def test_a_frame_that_is_much_too_large_ends_the_connection_and_says_why(
    tmp_path: Path, model: ScriptedUpstream, pieces: int
) -> None:
    with serving(tmp_path, model, "server: {max_body_bytes: 4096}") as api, opened(api.server) as socket:
        text = json.dumps({"type": "response.create", "input": "x" * 9000})
        with suppress(ConnectionClosed):  # it may be over before all pieces are out
            socket.raw.send([text[at::pieces] for at in range(pieces)] if pieces > 1 else text)
        assert socket.error(413)["code"] == "request_too_large"
        assert socket.closed() == 1009
        with opened(api.server) as other:
            usable(other, model)


def test_twenty_megabytes_are_a_frame_like_any(socket: Socket, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Long."))
    parts = [{"type": "input_text", "text": "x" * 10_000_000} for _ in range(2)]
    assert text_of(socket.turn(input=[{"role": "user", "content": parts}], store=False)) == "Long."
    assert len(model.requests[0].raw) > 20_000_000
    socket.ask(input="x" * 20_000_000)
    assert socket.error(400)["code"] == "string_above_max_length"


def test_two_hundred_frames_of_garbage_are_each_answered(socket: Socket, model: ScriptedUpstream) -> None:
    chance = random.Random(7)
    model.default = Reply(text="Not garbage.")
    refused = 0
    valid = json.dumps({"type": "response.create", "model": MODEL, "input": "Hi", "temperature": 9})
    for _ in range(200):
        cut = chance.randrange(len(valid))
        noise = "".join(chr(chance.choice([0, 9, 34, 92, 123, 125, 0x2028, 0xFFFF, 0x1F600])) for _ in range(5))
        socket.raw.send(valid[:cut] + noise + valid[cut + chance.randrange(3) :])
        found = socket.next()
        if found["type"] == "error":
            refused += 1
            assert 400 <= found["status"] < 500
        else:
            socket.until("response.completed")  # a field was made one that nobody knows
    assert refused > 150
    usable(socket, model)


_TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_FIELDS = (
    "type model input instructions previous_response_id conversation tools tool_choice stream_id generate store stream "
    "background stream_options include metadata reasoning text prompt truncation max_output_tokens"
).split()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES, min_size=1, max_size=4))
def test_whatever_a_field_holds_something_is_answered(
    shared: tuple[ScriptedUpstream, RunningServer], changed: dict[str, Any]
) -> None:
    upstream, server = shared
    upstream.default = Reply(text="Well.")
    body = {"type": "response.create", "model": MODEL, "input": "Hi", "store": False, **changed}
    with opened(server) as socket:
        socket.raw.send(json.dumps(body))
        found = socket.next()
        while found["type"] not in ("error", "response.completed"):
            found = socket.next()
        assert found.get("status", 200) < 500, found


# ------------------------------------------------------------------------------------ below the messages


def bare(server: RunningServer) -> sockets.socket:
    """An open connection without a client library."""
    address = urlsplit(server.root)
    line = sockets.create_connection((address.hostname, address.port), timeout=10)
    line.sendall(
        b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += line.recv(1)
    assert b" 101 " in head
    return line


def frame(opcode: int, data: bytes, *, last: bool = True, mask: bool = True) -> bytes:
    head = bytes([(0x80 if last else 0) | opcode, (0x80 if mask else 0) | 127]) + struct.pack("!Q", len(data))
    return head + (b"\0\0\0\0" if mask else b"") + data


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(1, b"hi", mask=False), 1002),
        (frame(3, b"hi"), 1002),
        (frame(0, b"hi"), 1002),
        (frame(1, b"\xff\xfe"), 1007),
        (b"\xf1\x82\0\0\0\0hi", 1002),
        (frame(1, b"a", last=False) + frame(1, b"b"), 1002),
        (b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0", 1009),
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"\0\0\0\0", 1009),
    ],
    ids=["unmasked", "unknown opcode", "stray piece", "not UTF-8", "reserved bits", "interleaved", "negative", "huge"],
)
def test_who_breaks_the_protocol_is_told_the_code_and_left(server: RunningServer, sent: bytes, code: int) -> None:
    with bare(server) as line:
        line.sendall(sent)
        got = b"".join(iter(lambda: line.recv(65_536), b""))
        assert struct.pack("!H", code) in got


def test_a_message_in_very_many_pieces_is_put_together(server: RunningServer, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Whole."))
    body = json.dumps({"type": "response.create", "model": MODEL, "input": "x" * 50_000, "store": False}).encode()
    with bare(server) as line:
        pieces = [frame(1, b"", last=False)]
        pieces += [frame(0, bytes((byte,)), last=False) + frame(0, b"", last=False) for byte in body]
        line.sendall(b"".join(pieces) + frame(0, b""))
        got = b""
        while b"response.completed" not in got:
            got = got[-50:] + line.recv(65_536)


def test_whatever_arrives_instead_of_frames_the_server_lives(server: RunningServer, model: ScriptedUpstream) -> None:
    chance = random.Random(11)
    for _ in range(30):
        with bare(server) as line:
            try:
                for _ in range(chance.randrange(1, 5)):
                    line.sendall(chance.randbytes(chance.randrange(1, 400)))
            except OSError:
                continue  # it was closed before all was sent
    for part in (b"\x81", b"\x81\xfe\x10", b"\x81\x85\0\0\0\0ab"):
        with bare(server) as line:
            line.sendall(part)  # and leaves in the middle of a frame
    with opened(server) as socket:
        usable(socket, model)
