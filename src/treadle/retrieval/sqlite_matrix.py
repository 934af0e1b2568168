"""What is kept in memory of collections that were searched lately: rows, and vectors in blocks of float32.

A `Snapshot` never changes, so searches use it without a lock while the next one is made. The next one shares what
stayed the same: new chunks are written behind the used part of the last block, removed ones are masked until many are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy
from numpy.typing import NDArray

from treadle.retrieval import bm25, sqlite_rows
from treadle.retrieval.sqlite_codes import Codes
from treadle.retrieval.sqlite_rows import FileRow, Integers, Vectors
from treadle.retrieval.sqlite_threads import Connection

Floats = NDArray[numpy.float64]
Flags = NDArray[numpy.bool_]

BLOCK = 8192
"""Rows of a block at most: large enough for the product to be as fast as in one piece."""

BYTES = 4 + 1
"""What a number of a vector takes, with its code."""

GATHERED = 512
"""Rows that are copied together at a time: few enough to be in the processor's cache when they are read again."""

DEAD_SHARE = 0.25
"""Removed rows that stay in memory, until the rows are copied without them."""

DRIFT = 0.1
"""How much a collection grows or shrinks before its words are counted anew."""

SELECTIONS = 32
"""Sets of files of a snapshot whose rows are remembered."""


SPREAD = 4
"""Up to how many ids for each row a table of all ids is kept."""

WEIGHTS_BYTES = 16_000_000
"""What is remembered of a snapshot's words."""


class Weights(msgspec.Struct):
    """The BM25 weight of one word in the rows that hold it."""

    rows: Integers
    values: Floats

    @property
    def bytes(self) -> int:
        return self.rows.nbytes + self.values.nbytes + 200


class KeptWeights:
    """The weights of the words that were looked for last, within `limit` bytes: questions share most of their words,
    and the common ones cost the most to read."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._kept: OrderedDict[str, Weights] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, word: str) -> Weights | None:
        with self._lock:
            found = self._kept.get(word)
            if found is not None:
                self._kept.move_to_end(word)
            return found

    def put(self, word: str, weights: Weights) -> None:
        with self._lock:
            if word in self._kept or weights.bytes > self._limit:
                return
            self._kept[word] = weights
            self._bytes += weights.bytes
            while self._bytes > self._limit:
                self._bytes -= self._kept.popitem(last=False)[1].bytes


class Snapshot:
    """The published chunks of a collection at one version. Rows are numbered from 0; those that are not `live` are no
    more there."""

    def __init__(
        self, version: int, files: list[FileRow], codes: Integers, ids: Integers, numbers: Integers, lengths: Integers
    ) -> None:
        self.version = version
        self.files = files
        """By code."""
        self.codes, self.ids, self.numbers, self.lengths = codes, ids, numbers, lengths
        """Of each row: its file, its id, its number within the file, and how many words it has."""
        self.gone: frozenset[int] = frozenset()
        """Codes of files that were removed."""
        self.live: Flags | None = None
        """None: all rows."""
        self.count = len(ids)
        self.frequencies: dict[str, int] = {}
        """In how many chunks a word was when there were `counted_at` of them."""
        self.counted_at = self.count
        self.weights = KeptWeights(min(WEIGHTS_BYTES, 6 * ids.nbytes + 4096))
        self._selections: OrderedDict[frozenset[str], Integers] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """About: rows, what is derived from them, names, and at most as much again of words."""
        rows = (6 + SPREAD) * self.ids.nbytes + 4096
        return rows + min(WEIGHTS_BYTES, rows) + 200 * len(self.files)

    @cached_property
    def length_norms(self) -> Floats:
        """What BM25 adds to a word's count, by row."""
        lengths = self.lengths if self.live is None else self.lengths[self.live]
        mean = max(float(lengths.mean()), 1.0) if len(lengths) else 1.0
        return bm25.K1 * (1 - bm25.B + bm25.B * self.lengths.astype(numpy.float64) / mean)

    @cached_property
    def name_ranks(self) -> Integers:
        """The place of each file among all of them by name, by code."""
        ranks = numpy.empty(len(self.files), dtype=numpy.int64)
        ranks[sorted(range(len(self.files)), key=lambda code: self.files[code].name)] = numpy.arange(len(self.files))
        return ranks

    def rows_in(self, files: frozenset[str] | None) -> Integers | None:
        """The rows of the files, ascending; None: all rows, live or not."""
        if files is None:
            return None if self.live is None else numpy.flatnonzero(self.live)
        with self._lock:
            found = self._selections.get(files)
            if found is None:
                wanted = numpy.fromiter(
                    (file.name in files and code not in self.gone for code, file in enumerate(self.files)),
                    dtype=numpy.bool_,
                    count=len(self.files),
                )
                self._selections[files] = found = numpy.flatnonzero(wanted[self.codes])
                if len(self._selections) > SELECTIONS:
                    self._selections.popitem(last=False)
            return found

    def rows_of(self, ids: Integers) -> tuple[Integers, Flags]:
        """The live rows of those ids that have one, and which of the ids these are."""
        first, table = self._rows_by_id
        if table is None:
            known, order = self._sorted_ids
            places = numpy.minimum(numpy.searchsorted(known, ids), len(known) - 1)
            rows, there = order[places], known[places] == ids
        else:
            places = ids - first
            there = (places >= 0) & (places < len(table))
            rows = table[numpy.where(there, places, 0)]
            there &= rows >= 0
        if self.live is not None:
            there &= self.live[rows]
        return rows[there], there

    @cached_property
    def _rows_by_id(self) -> tuple[int, Integers | None]:
        """The smallest id, and the row of each id from there on, -1 where there is none. None: the ids are too far
        apart, because other collections were filled at the same time."""
        first, last = (int(self.ids.min()), int(self.ids.max())) if len(self.ids) else (0, 0)
        if last - first >= SPREAD * max(len(self.ids), 1):
            return first, None
        table = numpy.full(last - first + 1, -1, dtype=numpy.int64)
        table[self.ids - first] = numpy.arange(len(self.ids))
        return first, table

    @cached_property
    def _sorted_ids(self) -> tuple[Integers, Integers]:
        """The ids, ascending, and their rows."""
        order = numpy.argsort(self.ids, kind="stable")
        return self.ids[order], order

    def without(self, gone: set[int]) -> None:
        """Marks the files of these codes as removed. Only while the snapshot is made."""
        self.gone = frozenset(gone)
        flags = numpy.ones(len(self.files), dtype=numpy.bool_)
        flags[list(gone)] = False
        self.live = flags[self.codes] if gone else None
        self.count = int(self.live.sum()) if self.live is not None else len(self.ids)


class Blocks:
    """Vectors of rows 0 to `used`, which only grows."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._blocks: list[Vectors] = []
        self._codes: list[Codes] = []
        self.used = 0

    @property
    def bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks) + sum(codes.bytes for codes in self._codes)

    def extend(self, connection: Connection, ids: Sequence[int]) -> None:
        start = 0
        while start < len(ids):
            room = self._room(len(ids) - start)
            sqlite_rows.load_vectors(connection, ids[start : start + len(room)], room)
            self._codes[self.used // BLOCK].write(self.used % BLOCK, room)
            start += len(room)
            self.used += len(room)

    def codes(self, rows: int) -> list[tuple[int, Codes, int]]:
        """The codes of the first `rows` rows by block: where they begin, and how many of them count."""
        starts = range(0, rows, BLOCK)
        return [(start, codes, min(BLOCK, rows - start)) for start, codes in zip(starts, self._codes, strict=False)]

    def gathered(self, rows: Integers) -> Iterator[Vectors]:
        """The vectors of some rows, ascending, a few at a time; each part is overwritten by the next one."""
        buffer = numpy.empty((min(GATHERED, len(rows)), self._dimensions), dtype=numpy.float32)
        ends = numpy.searchsorted(rows, numpy.arange(1, len(self._blocks) + 1) * BLOCK)
        start = 0
        for number, end in enumerate(ends.tolist()):
            for at in range(start, end, GATHERED):
                some = rows[at : min(at + GATHERED, end)] - number * BLOCK
                # Any other mode than the default one, which would copy once more.
                yield numpy.take(self._blocks[number], some, axis=0, out=buffer[: len(some)], mode="clip")
            start = end

    def _room(self, wanted: int) -> Vectors:
        """Room behind the last row, for `wanted` rows or for fewer."""
        filled = self.used % BLOCK
        number = self.used // BLOCK
        if number == len(self._blocks):
            rows = min(BLOCK, wanted)
            self._blocks.append(numpy.empty((rows, self._dimensions), dtype=numpy.float32))
            self._codes.append(Codes.empty(rows, self._dimensions))
        block = self._blocks[number]
        if filled == len(block):
            rows = min(BLOCK, max(2 * filled, filled + wanted))
            larger, codes = (
                numpy.empty((rows, self._dimensions), dtype=numpy.float32),
                Codes.empty(rows, self._dimensions),
            )
            larger[:filled] = block
            self._codes[number].copy_to(codes, filled)
            self._blocks[number], self._codes[number] = larger, codes
            block = larger
        return block[filled : filled + min(wanted, len(block) - filled)]


class _Entry:
    """What is kept of one collection. The lock is held while the next snapshot is made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.snapshot: Snapshot | None = None
        self.blocks: Blocks | None = None

    @property
    def bytes(self) -> int:
        rows = self.snapshot.bytes if self.snapshot is not None else 0
        return rows + (self.blocks.bytes if self.blocks is not None else 0)


class Loaded(msgspec.Struct):
    """A snapshot with its vectors. Without blocks they are too many to be kept, and are read for each search."""

    snapshot: Snapshot
    dimensions: int
    blocks: Blocks | None = None


class Outdated(Exception):
    """A transaction sees less than what is kept already: a newer one will do."""


class Cache:
    """Collections that were searched last, within `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, connection: Connection, collection: int, version: int) -> Snapshot:
        """The collection as the connection's transaction sees it. Outdated if others have seen a later one."""
        entry = self._entry(collection)
        with entry.lock:
            snapshot = _refresh(entry, connection, collection, version)
        self._evict(collection)
        return snapshot

    def loaded(self, connection: Connection, collection: int, version: int, dimensions: int) -> Loaded:
        entry = self._entry(collection)
        with entry.lock:
            snapshot = _refresh(entry, connection, collection, version)
            rows = len(snapshot.ids)
            if rows * (BYTES * dimensions + 3 * 4) + snapshot.bytes > self._limit:
                entry.blocks = None
                return Loaded(snapshot, dimensions)
            blocks = entry.blocks = entry.blocks or Blocks(dimensions)
            if blocks.used < rows:
                blocks.extend(connection, snapshot.ids[blocks.used :].tolist())
        self._evict(collection)
        return Loaded(snapshot, dimensions, blocks)

    def _entry(self, collection: int) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(collection, _Entry())
            self._entries.move_to_end(collection)
            return entry

    def _evict(self, current: int) -> None:
        with self._lock:
            total = sum(entry.bytes for entry in self._entries.values())
            for collection in list(self._entries):
                if total <= self._limit:
                    return
                if collection != current:
                    total -= self._entries.pop(collection).bytes


def _refresh(entry: _Entry, connection: Connection, collection: int, version: int) -> Snapshot:
    old = entry.snapshot
    if old is not None and old.version == version:
        return old
    if old is not None and old.version > version:
        raise Outdated
    fresh = _following(old, connection, collection, version) if old is not None else None
    if fresh is None:
        entry.snapshot = entry.blocks = None
        fresh = _read(connection, collection, version)
    entry.snapshot = fresh
    return fresh


def _following(old: Snapshot, connection: Connection, collection: int, version: int) -> Snapshot | None:
    """The next snapshot with the rows of the old one in place. None if too many of them are gone."""
    added = sqlite_rows.published_files(connection, collection, old.version)
    gone = set(old.gone)
    if sqlite_rows.count_published(connection, collection) != len(old.files) - len(gone) + len(added):
        there = set(sqlite_rows.published_files(connection, collection))
        gone.update(code for code, file in enumerate(old.files) if file not in there)
    fresh = _appended(old, connection, version, added)
    fresh.without(gone)
    if abs(fresh.count - old.counted_at) <= DRIFT * old.counted_at:
        fresh.frequencies, fresh.counted_at = old.frequencies, old.counted_at
    return fresh if fresh.count >= (1 - DEAD_SHARE) * len(fresh.ids) else None


def _read(connection: Connection, collection: int, version: int) -> Snapshot:
    empty = numpy.empty(0, dtype=numpy.int64)
    nothing = Snapshot(version, [], empty, empty, empty, empty)
    return _appended(nothing, connection, version, sqlite_rows.published_files(connection, collection))


def _appended(old: Snapshot, connection: Connection, version: int, added: list[FileRow]) -> Snapshot:
    codes: list[int] = []
    rows: list[tuple[int, int, int]] = []
    for code, file in enumerate(added, start=len(old.files)):
        chunks = sqlite_rows.chunks_of(connection, file.number)
        codes += [code] * len(chunks)
        rows += chunks
    table = numpy.array(rows, dtype=numpy.int64).reshape(-1, 3)
    return Snapshot(
        version,
        old.files + added,
        numpy.concatenate([old.codes, numpy.array(codes, dtype=numpy.int64)]),
        numpy.concatenate([old.ids, table[:, 0]]),
        numpy.concatenate([old.numbers, table[:, 1]]),
        numpy.concatenate([old.lengths, table[:, 2]]),
    )
