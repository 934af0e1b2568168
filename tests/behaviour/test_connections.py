"""What happens below the routes: offers of other protocols, bytes that are no HTTP, and heads without end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.behaviour.conftest import Driver
from tests.behaviour.kit import serving
from treadle.testing.upstream import Reply, ScriptedUpstream

PATIENCE = 10
OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"


def exchange(api: Driver, pieces: Iterable[bytes], answers: int = 1) -> list[tuple[int, dict[str, str], Any]]:
    """Sends the pieces one by one on a connection; status, headers and JSON of each answer."""
    where = urlsplit(api.server.url)
    with socket.create_connection((where.hostname, where.port), PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        found = []
        with connection.makefile("rb") as read:
            for _ in range(answers):
                status = int(read.readline().split()[1])
                headers: dict[str, str] = {}
                while line := read.readline().decode().strip():
                    name, _, value = line.partition(": ")
                    headers[name.lower()] = value
                found.append((status, headers, json.loads(read.read(int(headers["content-length"])))))
        return found


def create(text: str, head: str = OFFER, *, chunked: bool = False) -> bytes:
    body = json.dumps({"model": "scripted/m", "input": text}).encode()
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return f"POST /v1/responses HTTP/1.1\r\nHost: x\r\n{head}{length}\r\n\r\n".encode() + body


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_a_request_that_offers_http2_is_served_with_its_body(
    api: Driver, model: ScriptedUpstream, size: int, chunked: bool
) -> None:
    model.script(Reply(text="a"), Reply(text="b"))
    sent = create("one", chunked=chunked) + create("two")
    pieces = [sent[n : n + size] for n in range(0, len(sent), size)]
    found = exchange(api, pieces, 2)
    assert [(status, body["output"][0]["content"][0]["text"]) for status, _, body in found] == [(200, "a"), (200, "b")]
    assert [json.loads(request.raw)["messages"][-1]["content"] for request in model.requests] == ["one", "two"]


def test_an_offer_leaves_the_rest_of_the_connection_header_in_force(api: Driver) -> None:
    head = "Connection: close, Upgrade\r\nUpgrade: h2c\r\n"
    ((status, headers, _),) = exchange(api, [f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode()])
    assert (status, headers.get("connection")) == (200, "close")


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_what_is_no_http_is_refused_in_the_usual_form(api: Driver, sent: bytes) -> None:
    ((status, headers, body),) = exchange(api, [sent])
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert headers["x-request-id"]


@pytest.mark.parametrize(
    "head",
    [b"x: " + b"y" * 70_000, b"".join(b"x%d: y\r\n" % n for n in range(9000)), b"x: y\r\n" * 20_000],
    ids=["one header", "many headers", "one name often"],
)
@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["without end", "whole"])
def test_a_head_that_is_too_large_is_refused(api: Driver, head: bytes, end: bytes) -> None:
    ((status, _, body),) = exchange(api, [b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + head + end])
    assert (status, body["error"]["code"]) == (431, "headers_too_large")


def test_large_headers_that_are_not_too_large_are_taken(api: Driver) -> None:
    head = b"x: " + b"y" * 60_000
    ((status, _, _),) = exchange(api, [b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n"])
    assert status == 200


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("length", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_a_body_that_stops_arriving_ends_the_request_and_the_connection(
    tmp_path: Path, model: ScriptedUpstream, kind: str, length: str
) -> None:
    with serving(tmp_path, model, "server: {body_timeout_seconds: 0.2}") as api:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{length}\r\n\r\n"
        ((status, headers, body),) = exchange(api, [head.encode(), b"1\r\n{\r\n"])
    assert (status, body["error"]["type"], body["error"]["code"]) == (408, "invalid_request_error", "request_timeout")
    assert headers["connection"] == "close"
