"""The composition of vector stores: what the settings may say, and an index that is opened by its first use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.api.knowledge_kit import MemoryIndex
from treadle.app import create_app
from treadle.app.index import IndexNotInstalled, LazyIndex, index_of
from treadle.errors import InvalidRequest, StorageFault
from treadle.ports import Chunk, Collection, IndexedChunk
from treadle.settings import Settings
from treadle.testing.server import settings_for

PLACE = Collection("default", "vs_1", 2)


class Opened(MemoryIndex):
    """Counts how often it is started; `faults` are raised by the first starts."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.starts = 0
        self.closed = False
        self._faults = list(faults)

    async def start(self) -> None:
        self.starts += 1
        await asyncio.sleep(0)
        if self._faults:
            raise self._faults.pop(0)

    async def close(self) -> None:
        self.closed = True


async def test_an_index_is_opened_once_by_its_first_uses_and_closed_if_it_was_opened() -> None:
    index, made = Opened(), []
    lazy = LazyIndex(lambda: made.append(index) or index)  # type: ignore[func-returns-value]
    await lazy.close()
    assert made == []
    await asyncio.gather(*(lazy.remove(PLACE, "a") for _ in range(5)))
    assert (len(made), index.starts) == (1, 1)
    await lazy.add(PLACE, "a", [IndexedChunk(Chunk(0, "apple"), [1.0, 0.0])])
    assert await lazy.publish(PLACE, "a") > 0
    assert len(await lazy.nearest(PLACE, [1.0, 0.0], files=None, limit=1)) == 1
    assert len(await lazy.matching(PLACE, "apple", files=None, limit=1)) == 1
    assert len(await lazy.read(PLACE, "a", start=0, limit=9)) == 1
    await lazy.drop(PLACE)
    assert await lazy.read(PLACE, "a", start=0, limit=9) == []
    await lazy.close()
    assert index.closed


async def test_a_start_that_fails_is_tried_again_by_the_next_use() -> None:
    index = Opened(StorageFault("The disk is full."))
    lazy = LazyIndex(lambda: index)
    with pytest.raises(StorageFault):
        await lazy.drop(PLACE)
    await lazy.drop(PLACE)
    assert index.starts == 2


async def test_what_the_index_needs_and_does_not_find_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.app.index.find_spec", lambda _: None)
    with pytest.raises(IndexNotInstalled, match=r"treadle\[knowledge\]") as fault:
        await index_of(settings(tmp_path), MemoryIndex).drop(PLACE)
    assert fault.value.status == 503


def settings(folder: Path, *extra: str) -> Settings:
    return settings_for(folder, "http://127.0.0.1:9/v1", *extra)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("knowledge: {chunk_tokens: 200, chunk_overlap_tokens: 101}", "knowledge.chunk_overlap_tokens"),
        ("knowledge: {index: qdrant}", "knowledge.index_url"),
        ("knowledge: {index: pgvector}", "knowledge.index_url"),
    ],
)
def test_settings_that_cannot_work_end_the_start_with_their_name(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        create_app(settings(tmp_path, line))
