"""What every `Blobs` has to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from treadle.errors import NotFound
from treadle.ports import Blobs
from treadle.testing.gates import Gate

PATIENCE = 20


async def pieces(*given: bytes) -> AsyncGenerator[bytes, None]:
    for piece in given:
        yield piece


async def whole(blobs: Blobs, key: str, start: int = 0, end: int | None = None) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return b"".join([piece async for piece in blobs.read(key, start, end)])


async def keys(blobs: Blobs, before: float) -> set[str]:
    async with asyncio.timeout(PATIENCE):
        return {key async for batch in blobs.stored(before) for key in batch}


def later() -> float:
    """A time after everything that was stored up to now, whatever the store rounds times to."""
    return time.time() + 5


class BlobSuite:
    """For a Blobs. Provide `blobs`, empty."""

    @pytest.fixture
    def blobs(self) -> Blobs:
        raise NotImplementedError("a subclass provides the adapter under test")

    async def test_what_was_put_is_read_whole(self, blobs: Blobs) -> None:
        assert await blobs.put("file-1", pieces(b"one ", b"", b"two ", b"three")) == 13
        assert await whole(blobs, "file-1") == b"one two three"

    async def test_an_empty_blob_is_one(self, blobs: Blobs) -> None:
        assert await blobs.put("file-1", pieces()) == 0
        assert await whole(blobs, "file-1") == b""

    async def test_a_large_blob_in_odd_pieces_stays_as_it_is(self, blobs: Blobs) -> None:
        given = [bytes([number % 251]) * (77_777 + number) for number in range(230)]
        wanted = b"".join(given)
        assert len(wanted) > 2 * 8_388_608
        assert await blobs.put("file-1", pieces(*given)) == len(wanted)
        assert await whole(blobs, "file-1") == wanted

    @pytest.mark.parametrize(
        ("start", "end", "wanted"),
        [(0, 4, b"abcd"), (2, 4, b"cd"), (2, None, b"cdefgh"), (6, 99, b"gh"), (8, None, b""), (3, 3, b"")],
    )
    async def test_a_part_can_be_read(self, blobs: Blobs, start: int, end: int | None, wanted: bytes) -> None:
        await blobs.put("file-1", pieces(b"abc", b"defgh"))
        assert await whole(blobs, "file-1", start, end) == wanted

    async def test_what_is_not_there_is_not_found(self, blobs: Blobs) -> None:
        with pytest.raises(NotFound):
            await whole(blobs, "file-1")

    async def test_what_was_deleted_is_not_found(self, blobs: Blobs) -> None:
        await blobs.put("file-1", pieces(b"one"))
        await blobs.put("file-2", pieces(b"two"))
        await blobs.delete("file-1")
        await blobs.delete("file-1")
        with pytest.raises(NotFound):
            await whole(blobs, "file-1")
        assert await whole(blobs, "file-2") == b"two"

    @pytest.mark.parametrize("after", [0, 20])
    async def test_a_source_that_fails_leaves_nothing_and_its_fault_is_the_callers(
        self, blobs: Blobs, after: int
    ) -> None:
        async def failing() -> AsyncIterator[bytes]:
            for _ in range(after):
                yield bytes(1_000_000)
            raise RuntimeError("the client has gone")

        with pytest.raises(RuntimeError, match="the client has gone"):
            await blobs.put("file-1", failing())
        with pytest.raises(NotFound):
            await whole(blobs, "file-1")
        assert await keys(blobs, later()) == set()

    @pytest.mark.parametrize("after", [0, 20])
    async def test_a_put_that_is_cancelled_leaves_nothing(self, blobs: Blobs, after: int) -> None:
        waiting = Gate()

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(after):
                yield bytes(1_000_000)
            waiting.set()
            await Gate().wait()

        task = asyncio.create_task(blobs.put("file-1", endless()))
        await waiting.within(PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(NotFound):
            await whole(blobs, "file-1")
        assert await keys(blobs, later()) == set()

    async def test_reading_may_end_early(self, blobs: Blobs) -> None:
        await blobs.put("file-1", pieces(bytes(3_000_000)))
        found = blobs.read("file-1")
        assert isinstance(found, AsyncGenerator)
        async with asyncio.timeout(PATIENCE), aclosing(found):
            assert await anext(found)
        assert len(await whole(blobs, "file-1")) == 3_000_000

    async def test_many_are_written_and_read_at_once(self, blobs: Blobs) -> None:
        async def there_and_back(number: int) -> bool:
            content = bytes([number]) * 2_000_000
            await blobs.put(f"file-{number}", pieces(content[:999_999], content[999_999:]))
            return await whole(blobs, f"file-{number}") == content

        async with asyncio.timeout(60):
            assert all(await asyncio.gather(*(there_and_back(number) for number in range(12))))

    async def test_what_was_stored_can_be_listed_by_its_age(self, blobs: Blobs) -> None:
        names = {f"file-{number:03}" for number in range(30)}
        for name in names:
            await blobs.put(name, pieces(b"x"))
        assert await keys(blobs, later()) == names
        assert await keys(blobs, time.time() - 60) == set()

    @pytest.mark.parametrize("key", ["", "../x", "a/b", "a.b", "a\x00b", "a b", "é", "x" * 200])
    async def test_a_key_that_is_none_is_refused(self, blobs: Blobs, key: str) -> None:
        with pytest.raises(ValueError, match="key"):
            await blobs.put(key, pieces(b"x"))
        with pytest.raises(ValueError, match="key"):
            await whole(blobs, key)
        with pytest.raises(ValueError, match="key"):
            await blobs.delete(key)
