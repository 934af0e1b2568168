"""The statements of the index file: what changes it, and what is read from it. All are run by `sqlite_threads`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy
from numpy.typing import NDArray

from treadle.ports import Chunk, Collection, IndexedChunk, Place
from treadle.retrieval.checks import storable, unequal
from treadle.retrieval.sqlite_threads import Connection
from treadle.retrieval.words import words

Vectors = NDArray[numpy.float32]
Integers = NDArray[numpy.int64]

CLEARED = 200
"""Chunks that are cleared away in one transaction, so that nobody waits long for it."""

_LOADED = 1024
"""Rows that are fetched at a time while vectors are loaded."""


class Row(msgspec.Struct):
    """A chunk as it is stored."""

    number: int
    text: str
    page: int | None
    section: str | None
    vector: bytes
    words: list[str]


class CollectionRow(msgspec.Struct):
    number: int
    version: int


class FileRow(msgspec.Struct, frozen=True):
    """A published file. One that was replaced under its name has another number or another version."""

    number: int
    published: int
    name: str


def as_row(indexed: IndexedChunk) -> Row:
    chunk = indexed.chunk
    text = storable(chunk.text)
    vector = numpy.asarray(indexed.vector, dtype="<f4").tobytes()
    section = None if chunk.section is None else storable(chunk.section)
    return Row(chunk.number, text, chunk.page, section, vector, words(text))


def find(connection: Connection, collection: Collection) -> CollectionRow | None:
    """InvalidRequest if it holds vectors of another length."""
    row = connection.execute(
        "SELECT number, version, dimensions FROM collections WHERE tenant = ? AND store = ?",
        (collection.tenant, collection.store),
    ).fetchone()
    if row is None:
        return None
    if row[2] != collection.dimensions:
        raise unequal(collection, row[2])
    return CollectionRow(row[0], row[1])


def add(connection: Connection, collection: Collection, file: str, rows: Sequence[Row]) -> None:
    number = _file_to_fill(connection, collection, file)
    for row in rows:
        _forget_chunk(connection, number[0], number[1], row.number)
        (chunk_id,) = connection.execute(
            "INSERT INTO texts (text, page, section) VALUES (?, ?, ?) RETURNING id", (row.text, row.page, row.section)
        ).fetchone()
        connection.execute("INSERT INTO vectors (id, vector) VALUES (?, ?)", (chunk_id, row.vector))
        size = len(row.text.encode()) + len(row.vector)
        connection.execute(
            "INSERT INTO chunks (file, number, id, words, bytes) VALUES (?, ?, ?, ?, ?)",
            (number[1], row.number, chunk_id, len(row.words), size),
        )
        connection.execute("INSERT INTO terms (rowid, words) VALUES (?, ?)", (chunk_id, _marked(number[0], row.words)))


def publish(connection: Connection, collection: Collection, file: str) -> int:
    found = _file(connection, collection, file)
    if found is None:
        return 0
    (version,) = _changed(connection, found[0])
    connection.execute("UPDATE files SET published = ? WHERE number = ?", (version, found[1]))
    (size,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM chunks WHERE file = ?", (found[1],)).fetchone()
    return int(size)


def remove(connection: Connection, collection: Collection, file: str) -> None:
    """The chunks themselves are cleared away afterwards, by `clear`."""
    found = _file(connection, collection, file)
    if found is not None:
        connection.execute("UPDATE files SET name = NULL, published = 0 WHERE number = ?", (found[1],))
        _changed(connection, found[0])


def drop(connection: Connection, collection: Collection) -> None:
    key = (collection.tenant, collection.store)
    for (number,) in connection.execute(
        "DELETE FROM collections WHERE tenant = ? AND store = ? RETURNING number", key
    ).fetchall():
        connection.execute("UPDATE files SET name = NULL, published = 0 WHERE collection = ?", (number,))


def clear(connection: Connection) -> bool:
    """Takes some chunks of removed files out of the file; gives whether there may be more."""
    file = connection.execute("SELECT collection, number FROM files WHERE name IS NULL LIMIT 1").fetchone()
    if file is None:
        return False
    numbers = connection.execute("SELECT number FROM chunks WHERE file = ? LIMIT ?", (file[1], CLEARED)).fetchall()
    for (number,) in numbers:
        _forget_chunk(connection, file[0], file[1], number)
    if len(numbers) < CLEARED:
        connection.execute("DELETE FROM files WHERE number = ?", (file[1],))
    return True


def published_files(connection: Connection, collection: int, after: int = 0) -> list[FileRow]:
    """Those that were published after a version, in the order of their publication."""
    rows = connection.execute(
        "SELECT number, published, name FROM files WHERE collection = ? AND published > ? ORDER BY published",
        (collection, after),
    )
    return [FileRow(*row) for row in rows]


def count_published(connection: Connection, collection: int) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM files WHERE collection = ? AND published > 0", (collection,)
    ).fetchone()
    return int(count)


def chunks_of(connection: Connection, file: int) -> list[tuple[int, int, int]]:
    """Id, number and count of words of each chunk."""
    return connection.execute("SELECT id, number, words FROM chunks WHERE file = ? ORDER BY number", (file,)).fetchall()


def load_vectors(connection: Connection, ids: Sequence[int], into: Vectors) -> None:
    """Loads the vectors of the ids, in their order; zeros for chunks that were cleared away since."""
    nothing = bytes(4 * into.shape[1])
    for start in range(0, len(ids), _LOADED):
        part = ids[start : start + _LOADED]
        rows = [connection.execute("SELECT vector FROM vectors WHERE id = ?", (one,)).fetchone() for one in part]
        found = b"".join(nothing if row is None else row[0] for row in rows)
        into[start : start + len(part)] = numpy.frombuffer(found, dtype="<f4").reshape(len(part), -1)


def frequency(connection: Connection, collection: int, word: str) -> int:
    """In how many chunks a word is, those that cannot be found included."""
    row = connection.execute("SELECT doc FROM frequencies WHERE term = ?", (f"{collection}·{word}",)).fetchone()
    return row[0] if row else 0


def occurrences(connection: Connection, collection: int, word: str) -> Integers:
    """The ids of the chunks that hold a word, each as often as it does, ascending."""
    # Handing the ids over as one text costs a tenth of handing them over as rows.
    (found,) = connection.execute(
        "SELECT group_concat(doc) FROM postings WHERE term = ?", (f"{collection}·{word}",)
    ).fetchone()
    return numpy.fromstring(found or "", dtype=numpy.int64, sep=",")


def chunks(connection: Connection, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
    """The published chunks at these places, in their order; None for one that is not there."""
    row = find(connection, collection)
    if row is None:
        return [None] * len(places)
    found = [
        connection.execute(
            "SELECT text, page, section FROM files JOIN chunks ON chunks.file = files.number JOIN texts USING (id) "
            "WHERE collection = ? AND name = ? AND published > 0 AND chunks.number = ?",
            (row.number, *place),
        ).fetchone()
        for place in places
    ]
    return [None if one is None else Chunk(number, *one) for (_, number), one in zip(places, found, strict=True)]


def read(connection: Connection, collection: Collection, file: str, start: int, limit: int) -> list[IndexedChunk]:
    return list(_read(connection, collection, file, start, limit))


def _read(connection: Connection, collection: Collection, file: str, start: int, limit: int) -> Iterator[IndexedChunk]:
    found = _file(connection, collection, file)
    if found is None or not found[2]:
        return
    rows = connection.execute(
        "SELECT chunks.number, text, page, section, vector FROM chunks JOIN texts USING (id) JOIN vectors USING (id) "
        "WHERE file = ? AND chunks.number >= ? ORDER BY chunks.number LIMIT ?",
        (found[1], start, limit),
    )
    for number, text, page, section, vector in rows:
        values: list[float] = numpy.frombuffer(vector, dtype="<f4").tolist()
        yield IndexedChunk(Chunk(number=number, text=text, page=page, section=section), values)


def _file(connection: Connection, collection: Collection, file: str) -> tuple[int, int, int] | None:
    """Numbers of collection and file, and the version with which it was published."""
    row: tuple[int, int, int] | None = connection.execute(
        "SELECT collections.number, files.number, published FROM files "
        "JOIN collections ON collections.number = files.collection WHERE tenant = ? AND store = ? AND name = ?",
        (collection.tenant, collection.store, file),
    ).fetchone()
    return row


def _file_to_fill(connection: Connection, collection: Collection, file: str) -> tuple[int, int]:
    """Numbers of collection and file, which are made if need be. A published file is found no more until it is
    published again: a file is found whole or not at all."""
    row = find(connection, collection)
    if row is None:
        connection.execute(
            "INSERT INTO collections (tenant, store, dimensions) VALUES (?, ?, ?)",
            (collection.tenant, collection.store, collection.dimensions),
        )
    found = _file(connection, collection, file)
    if found is None:
        row = find(connection, collection)
        assert row is not None
        (number,) = connection.execute(
            "INSERT INTO files (collection, name) VALUES (?, ?) RETURNING number", (row.number, file)
        ).fetchone()
        return row.number, number
    if found[2]:
        connection.execute("UPDATE files SET published = 0 WHERE number = ?", (found[1],))
        _changed(connection, found[0])
    return found[0], found[1]


def _changed(connection: Connection, collection: int) -> tuple[int]:
    version: tuple[int] = connection.execute(
        "UPDATE collections SET version = version + 1 WHERE number = ? RETURNING version", (collection,)
    ).fetchone()
    return version


def _forget_chunk(connection: Connection, collection: int, file: int, number: int) -> None:
    row = connection.execute("DELETE FROM chunks WHERE file = ? AND number = ? RETURNING id", (file, number)).fetchone()
    if row is None:
        return
    (text,) = connection.execute("DELETE FROM texts WHERE id = ? RETURNING text", row).fetchone()
    connection.execute("DELETE FROM vectors WHERE id = ?", row)
    # A contentless table is told what it is to forget.
    connection.execute(
        "INSERT INTO terms (terms, rowid, words) VALUES ('delete', ?, ?)", (row[0], _marked(collection, words(text)))
    )


def _marked(collection: int, found: Sequence[str]) -> str:
    """Words as the full-text table keeps them. The dot keeps numbers and words apart: no word holds one."""
    return " ".join(f"{collection}·{word}" for word in found)
