"""Forms, however the network cuts them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request
from starlette.types import Message

from treadle.errors import InvalidRequest, TooLarge
from treadle.http.multipart import parts_of

CONTENT = b"line\r\n--not-the-boundary\r\n" + bytes(range(256)) + b"\r\n--bound"
BODY = (
    b'--boundary\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--boundary\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\nContent-Type: x/y\r\n\r\n'
    + CONTENT
    + b'\r\n--boundary\r\nContent-Disposition: form-data; name="empty"; filename="e"\r\n\r\n\r\n--boundary--\r\n'
)
WANTED = [("purpose", None, b"user_data"), ("file", "a.bin", CONTENT), ("empty", "e", b"")]


def request(*pieces: bytes, length: int | None = None) -> Request:
    left = list(pieces)

    async def receive() -> Message:
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    headers = [(b"content-type", b"multipart/form-data; boundary=boundary")]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def read(asked: Request, limit: int = 10_000) -> list[tuple[str, str | None, bytes]]:
    found = []
    async for part in parts_of(asked, limit):
        content = b"".join([piece async for piece in part.content()])
        found.append((part.name, part.filename, content))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(BODY)])
async def test_any_cut_gives_the_same(size: int) -> None:
    pieces = [BODY[start : start + size] for start in range(0, len(BODY), size)]
    assert await read(request(*pieces)) == WANTED


async def test_a_part_that_is_not_read_is_skipped() -> None:
    async def names() -> AsyncIterator[str]:
        async for part in parts_of(request(BODY[:200], BODY[200:]), 10_000):
            yield part.name

    assert [name async for name in names()] == ["purpose", "file", "empty"]


async def test_every_end_that_comes_too_early_is_noticed() -> None:
    for cut in range(0, len(BODY) - 4, 5):
        with pytest.raises(InvalidRequest):
            await read(request(BODY[:cut]))


async def test_the_bound_holds_for_what_is_announced_and_for_what_comes() -> None:
    with pytest.raises(TooLarge):
        await read(request(BODY, length=10_001))
    with pytest.raises(TooLarge):
        await read(request(BODY[:300], BODY[300:]), limit=len(BODY) - 1)
    assert await read(request(BODY), limit=len(BODY)) == WANTED
