"""The index of a single machine: one SQLite file, exact search with NumPy, keyword search over its full-text table.

Several processes may share the file. Nothing in memory is needed for correctness: each search looks up the collection's
version first and brings what is kept (`sqlite_matrix`) up to date. A file is published by one row, so that a process
that is killed leaves every file whole or not findable.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from treadle import ports
from treadle.errors import StorageFault
from treadle.ports import Chunk, Collection, Hit, IndexedChunk, Place
from treadle.retrieval import sqlite_rows, sqlite_schema, sqlite_search
from treadle.retrieval.checks import check_chunks, check_vector
from treadle.retrieval.sqlite_matrix import Cache, Loaded, Outdated
from treadle.retrieval.sqlite_search import Query, WordQuery
from treadle.retrieval.sqlite_threads import Connection, Searchers, Team, Writer, fault
from treadle.retrieval.words import query_words

CACHE_BYTES = 400_000_000

SEARCHERS = 3
"""Threads that search. More would contend for the interpreter; fewer would let one collection that is loaded hold up
all others."""


HELPERS = 3
"""Threads at most that a search through many vectors takes besides its own, one for each further core. It reads as fast
as memory gives, which a few threads use up."""


class SqliteIndex(ports.VectorIndex):
    """A `VectorIndex` in the file `path`. `cache_bytes` bounds the vectors that are kept in memory; a collection that
    is larger is read from the file by each search."""

    def __init__(self, path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._path = path
        self._cache = Cache(cache_bytes)
        self._writer: Writer | None = None
        self._searchers: Searchers | None = None
        self._team: Team | None = None

    async def start(self) -> None:
        """StorageFault if the file cannot be used."""
        await asyncio.to_thread(self._start)

    async def close(self) -> None:
        """Finishes what was asked for, then lets go. Later calls raise StorageFault."""
        await asyncio.to_thread(self._close)

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        writer = self._writing()
        rows = await asyncio.to_thread(_rows, collection, chunks)
        await writer.submit(lambda connection: sqlite_rows.add(connection, collection, file, rows))

    async def publish(self, collection: Collection, file: str) -> int:
        return await self._writing().submit(lambda connection: sqlite_rows.publish(connection, collection, file))

    async def remove(self, collection: Collection, file: str) -> None:
        await self._writing().submit(lambda connection: sqlite_rows.remove(connection, collection, file))

    async def drop(self, collection: Collection) -> None:
        await self._writing().submit(lambda connection: sqlite_rows.drop(connection, collection))

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        check_vector(collection, vector)
        query = Query(vector, files, limit)
        return await self._searching().join(
            collection, lambda connection, queries: self._nearest(connection, collection, queries), query
        )

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        return await self._searching().submit(
            lambda connection: self._matching(connection, collection, text, files, limit)
        )

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        return await self._searching().submit(lambda connection: sqlite_rows.chunks(connection, collection, places))

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        return await self._searching().submit(
            lambda connection: sqlite_rows.read(connection, collection, file, start, limit)
        )

    def _nearest(self, connection: Connection, collection: Collection, queries: Sequence[Query]) -> list[list[Hit]]:
        found = self._current(connection, collection, vectors=True)
        if found is None:
            return [[] for _ in queries]
        assert self._team is not None
        best = sqlite_search.nearest(connection, found[1], queries, self._team)
        return [sqlite_search.hits(found[1].snapshot, one) for one in best]

    def _matching(
        self, connection: Connection, collection: Collection, text: str, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        words = query_words(text)
        found = self._current(connection, collection, vectors=False) if words else None
        if found is None:
            return []
        snapshot = found[1].snapshot
        best = sqlite_search.matching(connection, snapshot, found[0], WordQuery(words, files, limit))
        return sqlite_search.hits(snapshot, best)

    def _current(self, connection: Connection, collection: Collection, *, vectors: bool) -> tuple[int, Loaded] | None:
        """The collection's number and what is kept of it, brought up to date."""
        while (row := sqlite_rows.find(connection, collection)) is not None:
            try:
                if vectors:
                    return row.number, self._cache.loaded(connection, row.number, row.version, collection.dimensions)
                return row.number, Loaded(self._cache.rows(connection, row.number, row.version), collection.dimensions)
            except Outdated:
                connection.execute("ROLLBACK")
                connection.execute("BEGIN")
        return None

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StorageFault("The index is not open.")
        return self._writer

    def _searching(self) -> Searchers:
        if self._searchers is None:
            raise StorageFault("The index is not open.")
        return self._searchers

    def _start(self) -> None:
        try:
            sqlite_schema.prepare(self._path)
            self._team = Team(min(HELPERS, (os.cpu_count() or 1) - 1))
            self._writer = Writer(lambda: sqlite_schema.open_connection(self._path), sqlite_rows.clear)
            self._searchers = Searchers("search", lambda: sqlite_schema.open_for_reading(self._path), SEARCHERS)
        except (sqlite3.Error, OSError) as error:
            self._close()
            if isinstance(error, sqlite3.Error):
                raise fault(error) from error
            raise StorageFault(f"The index file cannot be opened: {error.strerror}.") from error
        self._writer.start()
        self._searchers.start()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        searchers, self._searchers = self._searchers, None
        for threads in (writer, searchers):
            if threads is not None:
                threads.close()
        if self._team is not None:  # after those that it helps
            self._team.close()


def _rows(collection: Collection, chunks: Sequence[IndexedChunk]) -> list[sqlite_rows.Row]:
    check_chunks(collection, chunks)
    return [sqlite_rows.as_row(chunk) for chunk in chunks]
