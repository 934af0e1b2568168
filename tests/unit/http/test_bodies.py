"""Bodies of several compressed frames, and bodies that do not come: whole, and never at everybody else's cost."""

from __future__ import annotations

import asyncio
import gzip
import os

import pytest
from starlette.requests import Request
from starlette.types import Message

from treadle.errors import InvalidRequest, TooSlow
from treadle.http.bodies import ENOUGH, UPLOAD_SECONDS, Paced, read_body
from treadle.testing.gates import Gate

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


class Sender:
    """A client that sends what it is told, piece by piece, and then nothing more."""

    def __init__(self, *pieces: bytes, whole: bool = False) -> None:
        self._pieces = list(pieces)
        self._whole = whole
        self.waiting = Gate()

    async def receive(self) -> Message:
        if not self._pieces:
            self.waiting.set()
            await asyncio.Event().wait()
        body = self._pieces.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self._pieces) or not self._whole}


def paced(sender: Sender, seconds: float = 0.05, kind: bytes = b"application/json") -> Paced:
    return Paced({"type": "http", "headers": [(b"content-type", kind)]}, sender.receive, seconds)


def reader(receive: Paced) -> Request:
    return Request({"type": "http", "headers": []}, receive)


async def test_a_body_that_is_never_whole_is_given_up() -> None:
    with pytest.raises(TooSlow, match=r"did not arrive within 0\.05 seconds") as fault:
        await read_body(reader(paced(Sender(b'{"a":'))), LIMIT)
    assert (fault.value.status, fault.value.headers) == (408, {"connection": "close"})


async def test_drops_do_not_prolong_a_body() -> None:
    class Dripping(Sender):
        async def receive(self) -> Message:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(TooSlow):
        await read_body(reader(paced(Dripping())), LIMIT)


@pytest.mark.parametrize("kind", [b"multipart/form-data; boundary=x", b"Multipart/Form-Data"])
async def test_an_upload_goes_on_while_enough_arrives_and_not_longer(kind: bytes) -> None:
    clock = asyncio.get_running_loop()
    receive = paced(Sender(b"x" * ENOUGH, b"y", b"z" * ENOUGH), kind=kind)
    begun = clock.time()
    for _ in range(3):
        await receive()
    with pytest.raises(TooSlow, match="upload has stopped"):
        await receive()
    assert clock.time() - begun >= 0.05


async def test_the_pace_of_an_upload_is_counted_from_the_last_time_it_sufficed() -> None:
    receive = paced(Sender(b"x", b"y"), kind=b"multipart/form-data")
    await receive()
    first = receive._until
    await receive()
    assert receive._until == first
    receive = paced(Sender(b"x" * ENOUGH), kind=b"multipart/form-data")
    await receive()
    assert receive._arrived == 0
    assert receive._until >= first


async def test_an_upload_has_a_minute_at_most() -> None:
    assert paced(Sender(), 1e9, b"multipart/form-data")._seconds == UPLOAD_SECONDS
    assert paced(Sender(), 1e9)._seconds == 1e9


async def test_behind_the_body_there_is_no_limit() -> None:
    sender = Sender(b"{}", whole=True)
    receive = paced(sender)
    assert await read_body(reader(receive), LIMIT) == b"{}"
    waiting = asyncio.create_task(receive())
    await sender.waiting.wait()
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    waiting.cancel()
