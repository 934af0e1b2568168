"""Documents are read in processes apart, bounded in time and memory, and nothing of them is left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from treadle.ports import Chunk, ChunkRules
from treadle.retrieval.documents import DocumentReader


async def parts(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def cut(reader: DocumentReader, data: bytes, filename: str, rules: ChunkRules | None = None) -> list[Chunk]:
    return [chunk async for batch in reader.chunks(parts(data), filename, rules or ChunkRules()) for chunk in batch]


@pytest.fixture
async def reader() -> AsyncIterator[DocumentReader]:
    async with DocumentReader() as reader:
        yield reader


async def test_markdown_becomes_chunks_under_their_headings(reader: DocumentReader) -> None:
    text = "# Rivers\n\n" + "The Elbe flows. " * 30 + "\n\n## Lakes\n\n" + "The Mueritz is wide. " * 30
    chunks = await cut(reader, text.encode(), "water.md", ChunkRules(max_tokens=200, overlap_tokens=50))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert {chunk.section for chunk in chunks} == {"Rivers", "Rivers > Lakes"}


async def test_a_text_is_given_up_to_its_limit(reader: DocumentReader) -> None:
    assert await reader.text(parts(b"One two three."), "a.txt", 7) == "One two"
