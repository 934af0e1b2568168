"""Reading the input file of a batch."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from treadle.api.batch_lines import BadLine, numbered, read_line

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "m"}}
ABSENT = object()


def line(**changes: Any) -> bytes:
    return json.dumps({name: value for name, value in {**GOOD, **changes}.items() if value is not ABSENT}).encode()


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
async def test_lines_are_counted_however_the_file_is_cut(size: int, end: bytes) -> None:
    found = [one async for one in numbered(pieces(b"one\n\n  \ntwo\r\nthree" + end, size), 100)]
    assert [(number, data.strip()) for number, data in found] == [(1, b"one"), (4, b"two"), (5, b"three")]


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_line_that_is_too_long_is_never_held_whole(size: int) -> None:
    found = []
    with pytest.raises(BadLine) as caught:
        async for one in numbered(pieces(b"short\n" + b"x" * 500, size), 10):
            found.append(one)
    assert (found, caught.value.error.line) == ([(1, b"short")], 2)


def test_a_line_is_read() -> None:
    assert read_line(1, b"\xef\xbb\xbf" + line(), "/v1/responses") == (1, "a", "m", b'{"model": "m"}')
    assert read_line(7, line(body={"stream": False, "background": None}), "/v1/responses").model == ""


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b'{"a":' + b"[" * 100_000, "invalid_json_line", None),
        (b"[1]", "invalid_request", None),
        (b"null", "invalid_request", None),
        (line(custom_id=ABSENT), "missing_required_parameter", "custom_id"),
        (line(method=ABSENT), "missing_required_parameter", "method"),
        (line(url=ABSENT), "missing_required_parameter", "url"),
        (line(body=ABSENT), "missing_required_parameter", "body"),
        (line(custom_id=5), "invalid_request", "custom_id"),
        (line(custom_id=""), "invalid_request", "custom_id"),
        (line(custom_id="x" * 513), "invalid_request", "custom_id"),
        (line(method="GET"), "invalid_request", "method"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (line(url=["/v1/responses"]), "invalid_url", "url"),
        (line(body=[]), "invalid_request", "body"),
        (line(body="{}"), "invalid_request", "body"),
        (line(body={"stream": True}), "streaming_unsupported", "body.stream"),
        (line(body={"background": True}), "invalid_request", "body.background"),
        (line(body={"model": 5}), "invalid_request", "body.model"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(data: bytes, code: str, param: str | None) -> None:
    with pytest.raises(BadLine) as caught:
        read_line(3, data, "/v1/responses")
    error = caught.value.error
    assert (error.code, error.param, error.line) == (code, param, 3)


def test_what_every_body_of_an_endpoint_needs_is_missed() -> None:
    with pytest.raises(BadLine) as caught:
        read_line(1, line(url="/v1/chat/completions"), "/v1/chat/completions")
    assert (caught.value.error.code, caught.value.error.param) == ("invalid_request", "body.messages")
