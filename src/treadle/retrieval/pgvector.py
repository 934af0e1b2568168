"""The index in Postgres with the pgvector extension: exact search behind a b-tree, BM25 over a GIN index.

No approximate index is made. Up to some 100,000 chunks in one collection the exact scan is fast, it finds what a filter
leaves, and it needs no building; a filtered search through HNSW found 19 % to 70 % of what is there. For a collection
that outgrows it, an operator can make a partial one: `CREATE INDEX ON treadle_index.vectors USING hnsw ((vector::
vector(384)) vector_ip_ops) WHERE collection = 7`.

Words come from `words`, like everywhere: Postgres only keeps and finds them, each with its collection's number before
it, so that the index gives postings of one collection only. Its own rank function takes the place of a count: see
`_COUNTS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from treadle import ports
from treadle.errors import StorageFault
from treadle.ports import Chunk, Collection, Hit, IndexedChunk, Place
from treadle.retrieval import bm25
from treadle.retrieval.checks import check_chunks, check_vector, storable, unequal
from treadle.retrieval.words import query_words, words

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

POOL = 8
"""Connections at most."""

CONNECT_SECONDS = 10.0

_MAX_WORDS_BYTES = 900_000
"""Of one chunk's words. Postgres keeps 1 MiB of them; what is beyond is not found by its words."""

_MAX_COUNT = 255
"""Postgres remembers no more occurrences of a word in one chunk."""

_KEPT_WORDS = 20_000
"""Common words that are remembered."""

_DRIFT = 0.1
"""How much a collection grows or shrinks before its words are counted anew."""

_LOCK = 7_236_125
"""Names the lock that processes take while they make the tables."""

_DIGITS = 1e6
"""Scores are rounded before they order anything: smaller differences mean nothing."""

_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS treadle_index;
CREATE TABLE IF NOT EXISTS treadle_index.collections (
    number bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL,
    store text NOT NULL,
    dimensions integer NOT NULL,
    UNIQUE (tenant, store)
);
CREATE TABLE IF NOT EXISTS treadle_index.files (
    number bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    collection bigint NOT NULL REFERENCES treadle_index.collections ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    published boolean NOT NULL DEFAULT false,
    chunks integer NOT NULL DEFAULT 0,
    words bigint NOT NULL DEFAULT 0,
    UNIQUE (collection, name)
);
CREATE TABLE IF NOT EXISTS treadle_index.vectors (
    collection bigint NOT NULL,
    file bigint NOT NULL REFERENCES treadle_index.files ON DELETE CASCADE,
    number integer NOT NULL,
    vector vector NOT NULL,
    PRIMARY KEY (file, number)
);
CREATE INDEX IF NOT EXISTS vectors_by_collection ON treadle_index.vectors (collection, file);
ALTER TABLE treadle_index.vectors ALTER COLUMN vector SET STORAGE MAIN;
CREATE TABLE IF NOT EXISTS treadle_index.texts (
    file bigint NOT NULL REFERENCES treadle_index.files ON DELETE CASCADE,
    number integer NOT NULL,
    text text NOT NULL,
    page integer,
    section text,
    length integer NOT NULL,
    terms tsvector NOT NULL,
    PRIMARY KEY (file, number)
);
CREATE INDEX IF NOT EXISTS texts_by_word ON treadle_index.texts USING gin (terms);
"""

_COUNTS = [(sum(1 / i**2 for i in range(1, n + 1)) - 0.5 / n**2) / 1.64493406685 for n in range(1, _MAX_COUNT + 1)]
"""Where a word's rank says that it occurs once, twice, and so on. `ts_rank` of one word that occurs n times is
(1 + 1/4 + ... + 1/n^2) / 1.64493406685, so that a place among the steps halfway between those values is the count, and
far cheaper than looking into the chunk's words."""


class _Store(msgspec.Struct):
    number: int
    chunks: int
    words: int


class PgVectorIndex(ports.VectorIndex):
    """A `VectorIndex` in the Postgres database `url`. The extension `vector` is made if the role may do so. Tables live
    in the schema `treadle_index`; several servers may share them."""

    def __init__(self, url: str, *, connections: int = POOL) -> None:
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=connections,
            timeout=CONNECT_SECONDS,
            open=False,
            # Statements are planned anew each time: what is best depends on how many files are looked into.
            kwargs={"autocommit": True, "prepare_threshold": None, "connect_timeout": int(CONNECT_SECONDS)},
        )
        self._common: dict[tuple[int, str], int] = {}
        """Words that were too common when their collection had so many chunks."""

    async def start(self) -> None:
        """StorageFault if the database cannot be used."""
        async with _faults():
            try:
                await self._pool.open(wait=True, timeout=CONNECT_SECONDS)
                async with self._pool.connection() as connection, connection.transaction():
                    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                    await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                    await connection.execute(_SCHEMA)
            except BaseException:
                await self._pool.close()
                raise

    async def close(self) -> None:
        await self._pool.close()

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        check_chunks(collection, chunks)
        async with self._transaction() as connection:
            store = await _made(connection, collection)
            [(number,)] = await _rows(
                connection,
                "INSERT INTO treadle_index.files (collection, name) VALUES (%s, %s) "
                "ON CONFLICT (collection, name) DO UPDATE SET published = false RETURNING number",
                (store, file),
            )
            numbers = [indexed.chunk.number for indexed in chunks]
            for table in ("vectors", "texts"):
                await connection.execute(
                    f"DELETE FROM treadle_index.{table} WHERE file = %s AND number = ANY(%s)",  # noqa: S608
                    (number, numbers),
                )
            async with connection.cursor() as cursor:
                await cursor.executemany(
                    "INSERT INTO treadle_index.vectors (collection, file, number, vector) "
                    "VALUES (%s, %s, %s, %s::real[]::vector)",
                    [(store, number, indexed.chunk.number, indexed.vector) for indexed in chunks],
                )
                await cursor.executemany(
                    "INSERT INTO treadle_index.texts (file, number, text, page, section, length, terms) "
                    "VALUES (%s, %s, %s, %s, %s, %s, %s::tsvector)",
                    [(number, *_text(store, indexed.chunk)) for indexed in chunks],
                )

    async def publish(self, collection: Collection, file: str) -> int:
        async with self._transaction() as connection:
            found = await _rows(
                connection,
                "UPDATE treadle_index.files SET published = true, (chunks, words) = ("
                "SELECT count(*), coalesce(sum(length), 0) FROM treadle_index.texts WHERE file = files.number) "
                "WHERE name = %s AND collection = "
                "(SELECT number FROM treadle_index.collections WHERE tenant = %s AND store = %s) "
                "RETURNING (SELECT coalesce(sum(octet_length(text)), 0) FROM treadle_index.texts "
                "WHERE file = files.number) + chunks * 4 * %s",
                (file, collection.tenant, collection.store, collection.dimensions),
            )
        return int(found[0][0]) if found else 0

    async def remove(self, collection: Collection, file: str) -> None:
        async with self._transaction() as connection:
            await connection.execute(
                "DELETE FROM treadle_index.files WHERE name = %s AND collection = "
                "(SELECT number FROM treadle_index.collections WHERE tenant = %s AND store = %s)",
                (file, collection.tenant, collection.store),
            )

    async def drop(self, collection: Collection) -> None:
        async with self._transaction() as connection:
            await connection.execute(
                "DELETE FROM treadle_index.collections WHERE tenant = %s AND store = %s",
                (collection.tenant, collection.store),
            )

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        check_vector(collection, vector)
        length = sum(value * value for value in vector) ** 0.5 or 1.0
        async with self._transaction() as connection:
            store = await _found(connection, collection)
            if store is None:
                return []
            rows = await _rows(
                connection,
                "SELECT files.name, vectors.number, "  # noqa: S608 -- see _rows
                "-round((vector <#> %(vector)s::real[]::vector) * %(digits)s::float8) / %(digits)s::float8 AS score "
                "FROM treadle_index.vectors JOIN treadle_index.files ON files.number = file "
                f"WHERE vectors.collection = %(store)s AND files.collection = %(store)s AND {_chosen(files)} "
                "ORDER BY score DESC, name, vectors.number LIMIT %(limit)s",
                {
                    "vector": [value / length for value in vector],
                    "digits": _DIGITS,
                    "store": store.number,
                    "files": list(files or ()),
                    "limit": limit,
                },
            )
        return [Hit(*row) for row in rows]

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        wanted = query_words(text)
        if not wanted:
            return []
        async with self._transaction() as connection:
            store = await _found(connection, collection)
            if store is None or not store.chunks:
                return []
            holding = await self._holding(connection, store, wanted)
            telling = bm25.telling(wanted, store.chunks, holding)
            rarities = {
                word: bm25.rarity(store.chunks, min(holding[word], store.chunks)) for word in telling if holding[word]
            }
            if not rarities:
                return []
            mean = max(store.words / store.chunks, 1.0)
            norm = f"{bm25.K1 * (1 - bm25.B)!r}::float8 + length * {bm25.K1 * bm25.B / mean!r}::float8"
            counts = {word: f"count_{n}" for n, word in enumerate(rarities)}
            weights = " + ".join(
                f"{rarity * (bm25.K1 + 1)!r}::float8 * {counts[word]} / ({counts[word]} + norm)"
                for word, rarity in rarities.items()
            )
            columns = ", ".join(
                f"width_bucket(ts_rank('{{1,1,1,1}}', terms, {_lexeme(store.number, word)}::tsquery)::float8, "
                f"%(counts)s::float8[]) AS {name}"
                for word, name in counts.items()
            )
            query = " | ".join(_mark(store.number, word) for word in rarities)
            rows = await _rows(
                connection,
                # All that is put in here are numbers and words of letters and digits.
                f"SELECT name, number, round(({weights}) * %(digits)s::float8) / %(digits)s::float8 AS score "  # noqa: S608
                "FROM ("
                f"SELECT files.name, texts.number, {norm} AS norm, {columns} "
                "FROM treadle_index.texts JOIN treadle_index.files ON files.number = file "
                f"WHERE terms @@ %(query)s::tsquery AND {_chosen(files)}) counted "
                "ORDER BY score DESC, name, number LIMIT %(limit)s",
                {
                    "counts": _COUNTS,
                    "digits": _DIGITS,
                    "query": query,
                    "files": list(files or ()),
                    "limit": limit,
                },
            )
        return [Hit(*row) for row in rows]

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        async with self._transaction() as connection:
            rows = await _rows(
                connection,
                "SELECT name, texts.number, text, page, section "
                "FROM unnest(%s::text[], %s::integer[]) AS list (wanted, number) "
                "JOIN treadle_index.collections ON tenant = %s AND store = %s "
                "JOIN treadle_index.files ON files.collection = collections.number AND name = wanted AND published "
                "JOIN treadle_index.texts ON texts.file = files.number AND texts.number = list.number",
                ([file for file, _ in places], [number for _, number in places], collection.tenant, collection.store),
            )
        there = {
            (name, number): Chunk(number=number, text=text, page=page, section=section)
            for name, number, text, page, section in rows
        }
        return [there.get(place) for place in places]

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        async with self._transaction() as connection:
            rows = await _rows(
                connection,
                "SELECT texts.number, text, page, section, vector::real[] "
                "FROM treadle_index.collections JOIN treadle_index.files ON files.collection = collections.number "
                "JOIN treadle_index.texts ON texts.file = files.number "
                "JOIN treadle_index.vectors ON vectors.file = texts.file AND vectors.number = texts.number "
                "WHERE tenant = %s AND store = %s AND name = %s AND published AND texts.number >= %s "
                "ORDER BY texts.number LIMIT %s",
                (collection.tenant, collection.store, file, start, limit),
            )
        return [
            IndexedChunk(Chunk(number=number, text=text, page=page, section=section), vector)
            for number, text, page, section, vector in rows
        ]

    async def _holding(self, connection: Connection, store: _Store, wanted: Sequence[str]) -> dict[str, int]:
        """How many chunks hold each word; of a common one in a large collection only that it is too many."""
        large = store.chunks > bm25.MANY_CHUNKS
        enough = int(bm25.COMMON_SHARE * store.chunks) + 1 if large else store.chunks
        known = {word: enough for word in wanted if large and self._is_common(store, word)}
        unknown = [word for word in wanted if word not in known]
        rows = await _rows(
            connection,
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM treadle_index.texts JOIN treadle_index.files "
            "ON files.number = file WHERE terms @@ wanted::tsquery AND published LIMIT %s) held) "
            "FROM unnest(%s::text[]) WITH ORDINALITY AS list (wanted, place) ORDER BY place",
            (enough, [_mark(store.number, word) for word in unknown]),
        )
        if len(self._common) > _KEPT_WORDS:
            self._common.clear()
        for word, (count,) in zip(unknown, rows, strict=True):
            known[word] = count
            if large and count >= enough:
                self._common[store.number, word] = store.chunks
        return known

    def _is_common(self, store: _Store, word: str) -> bool:
        """Counting a word is as much work as it is common, so it is not counted anew before much has changed."""
        counted_at = self._common.get((store.number, word), 0)
        return abs(store.chunks - counted_at) <= _DRIFT * counted_at

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        async with _faults(), self._pool.connection() as connection, connection.transaction():
            yield connection


@asynccontextmanager
async def _faults() -> AsyncIterator[None]:
    """Faults of the database are StorageFaults that tell their kind, and neither SQL nor data."""
    try:
        yield
    except PoolTimeout as error:
        raise StorageFault("The index's database cannot be reached.") from error
    except psycopg.Error as error:
        raise StorageFault(f"The index's database failed ({error.sqlstate or type(error).__name__}).") from error


async def _rows(connection: Connection, sql: str, params: Any) -> list[tuple[Any, ...]]:
    # What is passed as SQL is put together in this module only.
    return await (await connection.execute(sql.encode(), params, binary=True)).fetchall()


async def _found(connection: Connection, collection: Collection) -> _Store | None:
    """The collection with what can be found in it. InvalidRequest if its vectors have another length."""
    rows = await _rows(
        connection,
        "SELECT collections.number, dimensions, coalesce(sum(chunks), 0)::bigint, coalesce(sum(words), 0)::bigint "
        "FROM treadle_index.collections LEFT JOIN treadle_index.files ON collection = collections.number AND published "
        "WHERE tenant = %s AND store = %s GROUP BY collections.number",
        (collection.tenant, collection.store),
    )
    if not rows:
        return None
    number, dimensions, chunks, length = rows[0]
    if dimensions != collection.dimensions:
        raise unequal(collection, dimensions)
    return _Store(number, chunks, length)


async def _made(connection: Connection, collection: Collection) -> int:
    """The number of the collection, which is made if it is not there."""
    await connection.execute(
        "INSERT INTO treadle_index.collections (tenant, store, dimensions) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (collection.tenant, collection.store, collection.dimensions),
    )
    found = await _found(connection, collection)
    if found is None:
        raise StorageFault("The vector store is being deleted.")
    return found.number


def _chosen(files: frozenset[str] | None) -> str:
    return "published" if files is None else "published AND name = ANY(%(files)s)"


def _mark(store: int, word: str) -> str:
    """A word as Postgres keeps it. The dot keeps numbers and words apart: no word holds one, nor a quote."""
    return f"'{store}·{word}'"


def _lexeme(store: int, word: str) -> str:
    return f"'''{store}·{word}'''"


def _text(store: int, chunk: Chunk) -> tuple[int, str, int | None, str | None, int, str]:
    found = words(chunk.text)
    counts: dict[str, int] = {}
    for word in found:
        counts[word] = min(counts.get(word, 0) + 1, _MAX_COUNT)
    parts, size = [], 0
    for word, count in counts.items():
        # Positions stand for occurrences: the first ones will do, since nobody asks for phrases.
        parts.append(f"{_mark(store, word)}:{','.join(map(str, range(1, count + 1)))}")
        size += len(word.encode()) + 24 + 2 * count
        if size > _MAX_WORDS_BYTES:
            break
    section = None if chunk.section is None else storable(chunk.section)
    return chunk.number, storable(chunk.text), chunk.page, section, len(found), " ".join(parts)
