"""Bodies that cannot be read are a 4xx in the one envelope: never a 500, never a dropped connection."""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import Iterator

import pytest

from tests.behaviour import refusals
from tests.behaviour.conftest import MODEL, Driver
from tests.behaviour.manifest import behaviour
from tests.behaviour.refusals import refused, send

bad = refusals.bad
BIG = 20_000_000

POSTS = ["/responses", "/responses/input_tokens", "/conversations", "/chat/completions", "/completions", "/embeddings"]
MALFORMED = {
    "an unclosed object": b'{"model": "x"',
    "a trailing comma": b'{"model": "x",}',
    "two values": b'{"model": "x"} {}',
    "no JSON at all": b"hello",
    "a raw NUL": b'{"model": "a\x00b"}',
    "NaN": b'{"model": "x", "temperature": NaN}',
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
}


@behaviour("input-json")
@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_body_that_is_no_json_object_is_refused(bad: Driver, path: str, body: bytes) -> None:
    refused(send(bad, body, path), param=...)


@behaviour("input-json")
@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens", "/chat/completions", "/embeddings"])
def test_an_empty_body_is_told_so(bad: Driver, path: str) -> None:
    assert "empty" in refused(send(bad, b"", path), code="invalid_json")["message"]


@behaviour("input-json")
def test_of_duplicate_keys_the_last_counts(bad: Driver) -> None:
    body = b'{"model": "%s", "input": "x", "input": 5}' % MODEL.encode()
    refused(send(bad, body), param="input", code="invalid_type")


@behaviour("input-large-body")
def test_one_text_of_twenty_megabytes_is_named(bad: Driver) -> None:
    for body, param in (
        ({"input": "x" * BIG}, "input"),
        ({"input": "x", "instructions": "x" * BIG}, "instructions"),
        ({"input": [{"role": "user", "content": "x" * BIG}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "é" * BIG}]}]},
            "input[0].content[0].text",
        ),
    ):
        refused(bad.post(**body), param=param, code="string_above_max_length")


@behaviour("input-large-body")
@pytest.mark.parametrize("path", POSTS)
def test_a_body_over_the_limit_is_a_413(bad: Driver, path: str) -> None:
    """Answered although the client is still sending, and the connection is not cut while it does."""
    refused(send(bad, b'{"input":"' + b"x" * 68_000_000 + b'"}', path), 413, code="request_too_large")


@behaviour("input-large-body")
def test_a_body_over_the_limit_without_a_declared_length_is_a_413(bad: Driver) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(70):
            yield b"x" * 1_000_000

    reply = bad.http.post(bad.server.url + "/responses", content=pieces())
    refused(reply, 413, code="request_too_large")
    assert bad.get("/health").status_code == 200


@behaviour("input-deep-nesting")
@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [300, 900, 100_000, 1_000_000])
def test_deep_nesting_is_refused(bad: Driver, path: str, opened: bytes, closed: bytes, depth: int) -> None:
    value = opened * depth + b"1" + closed * depth
    refused(send(bad, b'{"model": "x", "input": "x", "unknown": ' + value + b"}", path), code="invalid_json")


@behaviour("input-deep-nesting")
def test_depth_that_is_kept_as_it_came_is_refused_like_any_other(bad: Driver) -> None:
    deep = b"[" * 300 + b"]" * 300
    for field in (b'"tools": [{"type": "mcp", "x": %b}]', b'"input": [{"type": "mystery", "x": %b}]'):
        refused(send(bad, b'{"model": "x", ' + field % deep + b"}"), code="invalid_json")


@behaviour("input-surrogates")
@pytest.mark.parametrize("lone", ["\\ud800", "\\udc00", "\\ud83d\\ud83d", "x\\ud800\\n"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"model": "x", "input": "%s"}', "input"),
        ('{"model": "x", "input": [{"role": "user", "content": [{"text": "%s"}]}]}', "input[0].content[0].text"),
        ('{"model": "x", "metadata": {"k": "%s"}}', "metadata.k"),
        ('{"model": "x", "metadata": {"%s": "v"}}', "metadata"),
        ('{"model": "x", "tools": [{"type": "function", "parameters": {"a": "%s"}}]}', "tools[0].parameters.a"),
        ('{"model": "x", "unknown": "%s"}', "unknown"),
        ('{"%s": 1}', None),
    ],
)
@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_half_of_a_surrogate_pair_is_named(bad: Driver, path: str, lone: str, body: str, param: str | None) -> None:
    error = refused(send(bad, (body % lone).encode(), path), param=param, code="invalid_json")
    assert "surrogate" in error["message"]


@behaviour("input-utf8")
@pytest.mark.parametrize("broken", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80"])
@pytest.mark.parametrize("path", POSTS)
def test_a_text_that_is_not_utf8_is_named(bad: Driver, path: str, broken: bytes) -> None:
    body = b'{"model": "x", "input": [{"role": "user", "content": "' + broken + b'"}]}'
    error = refused(send(bad, body, path), param="input[0].content", code="invalid_json")
    assert "UTF-8" in error["message"]


@behaviour("input-utf8")
def test_a_body_in_another_encoding_is_refused(bad: Driver) -> None:
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        refused(send(bad, '{"model": "x", "input": "é"}'.encode(encoding)), code="invalid_json")


def test_compressed_bodies_that_are_broken_are_refused(bad: Driver) -> None:
    whole = gzip.compress(b'{"model": "nobody", "input": "x"}')
    for body in (whole[:-9], b"no gzip", b"", whole + b"junk", zlib.compress(b"{}")):
        refused(send(bad, body, **{"content-encoding": "gzip"}), code="invalid_json")
    for body in (b"\x28\xb5\x2f\xfd", b"no zstd", b""):
        refused(send(bad, body, **{"content-encoding": "zstd"}), code="invalid_json")
    for name in ("br", "deflate", "gzip, gzip", "x" * 3000):
        refused(send(bad, whole, **{"content-encoding": name}), 415, code="unsupported_media_type")


def test_compressed_bodies_are_read_whole_and_bombs_are_not(bad: Driver) -> None:
    halves = gzip.compress(b'{"model": "nobody", ') + gzip.compress(b'"input": "x"}')
    refused(send(bad, halves, **{"content-encoding": "gzip"}), 404, param="model")
    bomb = gzip.compress(b'{"input": "' + b"x" * 120_000_000 + b'"}', 1)
    refused(send(bad, bomb, **{"content-encoding": "gzip"}), 413, code="request_too_large")
    from backports import zstd

    refused(send(bad, zstd.compress(b'{"model": "nobody"}'), **{"content-encoding": "zstd"}), 404, param="model")
    bomb = zstd.compress(b"x" * 120_000_000)
    refused(send(bad, bomb, **{"content-encoding": "zstd"}), 413, code="request_too_large")


FORM = "application/x-www-form-urlencoded"


def test_forms_are_read_and_bad_ones_refused(bad: Driver) -> None:
    refused(send(bad, b"model=nobody&input=x", kind=FORM), 404, param="model")
    refused(send(bad, b"model=x&temperature=9&input=x", kind=FORM), param="temperature")
    refused(send(bad, b"model=x&input=%ff", kind=FORM), code="invalid_json")
    refused(send(bad, b"&".join(b"a=%d" % n for n in range(5000)), kind=FORM), code="invalid_json")
    refused(send(bad, b"", kind=FORM), param="model")


def test_json_that_curl_calls_a_form_is_read_as_json(bad: Driver) -> None:
    refused(send(bad, b'{"model": "nobody", "input": "a=b&c=d"}', kind=FORM), 404, param="model")


def test_other_content_types_are_json_or_refused(bad: Driver) -> None:
    for kind in ("text/plain", "application/octet-stream", "application/json; charset=utf-8", "nonsense"):
        refused(send(bad, b'{"model": "nobody", "input": "x"}', kind=kind), 404, param="model")
    refused(send(bad, b"--x\r\n", kind="multipart/form-data; boundary=x"), 415, code="unsupported_media_type")
    refused(send(bad, b"<xml/>", kind="text/xml"), code="invalid_json")


def test_a_request_that_breaks_off_harms_nobody(bad: Driver) -> None:
    address = bad.server.root.removeprefix("http://").split(":")
    head = b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
    for sent in (head + b'{"model": ', head, b"POST /v1/resp", b"\x00\x01\x02\r\n\r\n"):
        with socket.create_connection((address[0], int(address[1])), timeout=5) as raw:
            raw.sendall(sent)
    assert bad.get("/health").status_code == 200
