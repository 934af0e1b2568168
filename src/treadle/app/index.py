"""The vector index that the settings name, opened by whoever needs it first: a server without vector stores does not
pay for it, and need not have it installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from treadle import ports
from treadle.app.plugged import PluggedIndex
from treadle.errors import InvalidRequest, ServerError
from treadle.ports import Chunk, Collection, Hit, IndexedChunk, Place, VectorIndex
from treadle.settings import Settings

_NAMES = {"pgvector": "the Postgres database", "qdrant": "the Qdrant server"}


class OpenIndex(VectorIndex, Protocol):
    """An index with a beginning and an end."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class IndexNotInstalled(ServerError):
    """The index is configured, and what it needs is not there."""

    status = 503
    code = "not_installed"


class LazyIndex(ports.VectorIndex):
    """A `VectorIndex` that `make` makes when it is first used. A start that fails is tried
    again by the next use."""

    def __init__(self, make: Callable[[], OpenIndex]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._index: OpenIndex | None = None

    async def close(self) -> None:
        """Closes it if it was opened."""
        async with self._lock:
            index, self._index = self._index, None
            if index is not None:
                await index.close()

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        await (await self._opened()).add(collection, file, chunks)

    async def publish(self, collection: Collection, file: str) -> int:
        return await (await self._opened()).publish(collection, file)

    async def remove(self, collection: Collection, file: str) -> None:
        await (await self._opened()).remove(collection, file)

    async def drop(self, collection: Collection) -> None:
        await (await self._opened()).drop(collection)

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        return await (await self._opened()).nearest(collection, vector, files=files, limit=limit)

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        return await (await self._opened()).matching(collection, text, files=files, limit=limit)

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        return await (await self._opened()).chunks(collection, places)

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        return await (await self._opened()).read(collection, file, start=start, limit=limit)

    async def _opened(self) -> OpenIndex:
        if self._index is not None:
            return self._index
        async with self._lock:
            if self._index is None:
                index = await asyncio.to_thread(self._make)  # imports take time
                await index.start()
                self._index = index
            return self._index


def index_of(settings: Settings, plugged: Callable[[], VectorIndex]) -> LazyIndex:
    """The index that `knowledge.index` names, which `plugged` gives if it is a plug-in's. InvalidRequest if its address
    is missing."""
    given = settings.knowledge
    if given.index in _NAMES and not given.index_url:
        raise InvalidRequest(f"knowledge.index_url: the address of {_NAMES[given.index]} is needed")
    match given.index:
        case "sqlite":
            path = Path(given.index_url) if given.index_url else Path(settings.data_dir) / "vectors.sqlite3"
            return LazyIndex(lambda: _sqlite(path, given.cache_mb * 1_000_000))
        case "pgvector":
            return LazyIndex(lambda: _pgvector(given.index_url))
        case "qdrant":
            return LazyIndex(lambda: _qdrant(given.index_url, given.index_key))
        case name:
            return LazyIndex(lambda: PluggedIndex(name, plugged))


def _sqlite(path: Path, cache_bytes: int) -> OpenIndex:
    _require("numpy", "knowledge")
    _require("simsimd", "knowledge")
    from treadle.retrieval.sqlite_numpy import SqliteIndex

    return SqliteIndex(path, cache_bytes=cache_bytes)


def _pgvector(url: str) -> OpenIndex:
    _require("psycopg_pool", "postgres")
    from treadle.retrieval.pgvector import PgVectorIndex

    return PgVectorIndex(url)


def _qdrant(url: str, key: str) -> OpenIndex:
    _require("qdrant_client", "qdrant")
    from treadle.retrieval.qdrant import QdrantIndex

    return QdrantIndex(url, key=key)


def _require(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise IndexNotInstalled(f"Vector stores need {module}: pip install 'treadle[{extra}]'")
