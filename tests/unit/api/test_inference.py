"""Streams that are passed on: line by line complete, at a cost that grows with their length only, and bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from time import monotonic

import pytest

from treadle.api.inference import Completion


class Reads:
    """A raw reply of given reads."""

    content_type = "text/event-stream"

    def __init__(self, *reads: bytes) -> None:
        self._reads = reads

    async def read(self) -> bytes:
        return b"".join(self._reads)

    async def reads(self) -> AsyncGenerator[bytes, None]:
        for read in self._reads:
            yield read

    async def close(self) -> None:
        self._reads = ()


async def passed(*reads: bytes) -> list[bytes]:
    completion = Completion(Reads(*reads), stream=True, upstream="up", requested="asked/up")
    return [read async for read in completion.reads()]


async def test_lines_are_put_together_before_the_model_is_renamed() -> None:
    found = await passed(b'data: {"mod', b'el":"u', b'p"}\n\ndata: {"model":', b'"up"}\n', b"\n", b"data: e", b"nd")
    assert found == [b'data: {"model":"asked/up"}\n\n', b'data: {"model":"asked/up"}\n', b"\n", b"data: end"]


async def test_a_line_without_end_is_refused_and_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.api.inference._MAX_LINE", 10_000)
    found = await passed(*[b"x" * 900] * 10, b"\n", *[b"x" * 900] * 20)
    assert found[0] == b"x" * 9000 + b"\n"
    assert b"does not end" in found[1]
    assert len(found) == 2


async def test_a_long_line_in_many_reads_costs_no_more_than_its_length() -> None:
    start = monotonic()
    found = await passed(*[b"x" * 150] * 100_000)
    assert len(b"".join(found)) == 15_000_000
    assert monotonic() - start < 10
