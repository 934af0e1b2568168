"""Compressed bodies of several frames: whole, and never at the cost of everybody else's time."""

from __future__ import annotations

import gzip
import os

import pytest
from starlette.requests import Request

from treadle.errors import InvalidRequest
from treadle.http.bodies import read_body

LIMIT = 1 << 24


async def _read(body: bytes) -> bytes:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return await read_body(Request({"type": "http", "headers": [(b"content-encoding", b"gzip")]}, receive), LIMIT)


async def test_frames_larger_and_smaller_than_a_read_are_joined() -> None:
    parts = [os.urandom(size) for size in (1, 65_536, 200_000, 0, 10)]
    assert await _read(b"".join(gzip.compress(part) for part in parts)) == b"".join(parts)


async def test_a_last_frame_that_was_cut_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not complete"):
        await _read(gzip.compress(b"one") + gzip.compress(os.urandom(100_000))[:-9])


async def test_a_body_of_very_many_empty_frames_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 1000") as refused:
        await _read(gzip.compress(b"") * 100_000)
    assert refused.value.status == 400
