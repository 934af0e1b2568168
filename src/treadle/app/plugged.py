"""Stand-ins for parts that plug-ins give: the services are wired before a plug-in is open."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from treadle import ports
from treadle.errors import Internal, ServerError
from treadle.ports import Chunk, ChunkRules, Collection, Hit, IndexedChunk, Place

log = logging.getLogger("treadle.plugins")

T = TypeVar("T")
Found = Callable[[], T]
"""Gives the plug-in's object once it is open."""


class PluggedIndex(ports.VectorIndex):
    """An index of another's making: what it raises that is no fault of ours is logged, and reported as `Internal`."""

    def __init__(self, name: str, index: Found[ports.VectorIndex]) -> None:
        self._name = name
        self._index = index

    async def start(self) -> None:
        """It is open before anything else begins."""

    async def close(self) -> None:
        """It is closed as all plug-ins are."""

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        await self._asked(self._index().add(collection, file, chunks))

    async def publish(self, collection: Collection, file: str) -> int:
        return await self._asked(self._index().publish(collection, file))

    async def remove(self, collection: Collection, file: str) -> None:
        await self._asked(self._index().remove(collection, file))

    async def drop(self, collection: Collection) -> None:
        await self._asked(self._index().drop(collection))

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        return await self._asked(self._index().nearest(collection, vector, files=files, limit=limit))

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        return await self._asked(self._index().matching(collection, text, files=files, limit=limit))

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        return await self._asked(self._index().chunks(collection, places))

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        return await self._asked(self._index().read(collection, file, start=start, limit=limit))

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except ServerError:
            raise
        except Exception as error:
            raise Internal.logged(log, f"the index {self._name}") from error


class PluggedBlobs(ports.Blobs):
    def __init__(self, blobs: Found[ports.Blobs]) -> None:
        self._blobs = blobs

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> int:
        return await self._blobs().put(key, parts)

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self._blobs().read(key, start, end)

    async def delete(self, key: str) -> None:
        await self._blobs().delete(key)

    def stored(self, before: float) -> AsyncIterator[list[str]]:
        return self._blobs().stored(before)


class PluggedExtractor(ports.Extractor):
    def __init__(self, extractor: Found[ports.Extractor]) -> None:
        self._extractor = extractor

    def chunks(self, source: AsyncIterator[bytes], filename: str, rules: ChunkRules) -> AsyncIterator[list[Chunk]]:
        return self._extractor().chunks(source, filename, rules)

    async def text(self, source: AsyncIterator[bytes], filename: str, limit: int) -> str:
        return await self._extractor().text(source, filename, limit)
