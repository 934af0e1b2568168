"""The conformance suite of extractors, a pytest class to inherit from.

    from treadle.testing.conformance_documents import ExtractorSuite

    class TestAcme(ExtractorSuite):
        @pytest.fixture
        async def extractor(self):
            async with AcmeReader() as reader:
                yield reader

It asks for what every extractor can do: plain text, refusals, bounds of chunks, and ending when it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from treadle.errors import UnreadableFile, UnsupportedFile
from treadle.ports import Chunk, ChunkRules, Extractor

PATIENCE = 30
SMALL = ChunkRules(max_tokens=100, overlap_tokens=20)
PROSE = " ".join(f"Sentence number{number} stands here." for number in range(2_000))


async def source(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def cut(extractor: Extractor, text: str, filename: str = "a.txt", rules: ChunkRules = SMALL) -> list[Chunk]:
    """All chunks, bounded in time."""
    async with asyncio.timeout(PATIENCE):
        batches = extractor.chunks(source(text.encode()), filename, rules)
        return [chunk async for batch in batches for chunk in batch]


class ExtractorSuite:
    """For an Extractor. Provide `extractor`."""

    @pytest.fixture
    def extractor(self) -> Extractor:
        raise NotImplementedError("a subclass provides the extractor under test")

    async def test_a_short_text_is_one_chunk(self, extractor: Extractor) -> None:
        [chunk] = await cut(extractor, "Hello there.\n")
        assert (chunk.number, chunk.text) == (0, "Hello there.")

    async def test_all_of_a_text_is_in_chunks_in_order(self, extractor: Extractor) -> None:
        chunks = await cut(extractor, PROSE)
        assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
        reached = -1
        for chunk in chunks:
            named = [int(word[6:]) for word in chunk.text.split() if word.startswith("number")]
            assert named[0] <= reached + 1 <= named[-1]
            assert named == list(range(named[0], named[-1] + 1))
            reached = named[-1]
        assert reached == 1_999

    async def test_chunks_are_no_larger_than_asked_for(self, extractor: Extractor) -> None:
        # No tokenizer at hand counts fewer than one token for ten characters of such words.
        assert max(len(chunk.text) for chunk in await cut(extractor, PROSE)) <= 10 * SMALL.max_tokens
        assert max(len(chunk.text) for chunk in await cut(extractor, "x" * 50_000)) <= 10 * SMALL.max_tokens

    async def test_reading_twice_gives_the_same(self, extractor: Extractor) -> None:
        first, second = await asyncio.gather(cut(extractor, PROSE), cut(extractor, PROSE))
        assert first == second

    async def test_a_text_is_given_up_to_its_limit(self, extractor: Extractor) -> None:
        async with asyncio.timeout(PATIENCE):
            assert await extractor.text(source(b"One ", b"two three."), "a.txt", 7) == "One two"
            assert await extractor.text(source(b"One two three."), "a.txt", 1_000) == "One two three."

    async def test_nul_is_dropped(self, extractor: Extractor) -> None:
        [chunk] = await cut(extractor, "Hello\0 there")
        assert chunk.text == "Hello there"

    @pytest.mark.parametrize("text", ["", " \n\t\n "])
    async def test_a_document_without_text_is_unreadable(self, extractor: Extractor, text: str) -> None:
        with pytest.raises(UnreadableFile):
            await cut(extractor, text)

    async def test_what_is_no_document_is_unsupported_whatever_its_name(self, extractor: Extractor) -> None:
        program = b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 20
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(UnsupportedFile):
                await extractor.text(source(program), "a.txt", 100)

    async def test_text_is_accepted_whatever_its_name(self, extractor: Extractor) -> None:
        for name in ("a", "a.exe", "a.pdf", "../../a.zip", "a\0.doc", "x" * 500):
            [chunk] = await cut(extractor, "Hello there.", name)
            assert chunk.text == "Hello there."

    async def test_a_fault_of_the_source_reaches_the_caller(self, extractor: Extractor) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"Hello"
            raise ConnectionResetError("the store is gone")

        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ConnectionResetError, match="the store is gone"):
                await extractor.text(broken(), "a.txt", 100)

    async def test_ending_early_frees_what_was_used(self, extractor: Extractor) -> None:
        for _ in range(5):
            batches = extractor.chunks(source(PROSE.encode()), "a.txt", SMALL)
            assert isinstance(batches, AsyncGenerator), "chunks() must be closable"
            async with asyncio.timeout(PATIENCE), aclosing(batches):
                await anext(batches)
        assert len(await cut(extractor, "Hello")) == 1

    async def test_cancelling_frees_what_was_used(self, extractor: Extractor) -> None:
        for _ in range(5):
            task = asyncio.create_task(cut(extractor, PROSE))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=PATIENCE)
            assert task.cancelled()
        assert len(await cut(extractor, "Hello")) == 1
