"""Exact search over a snapshot: products with vectors, BM25 over postings, and the best rows of either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy
from numpy.typing import NDArray

from treadle.ports import Hit
from treadle.retrieval import bm25, sqlite_rows
from treadle.retrieval.sqlite_matrix import BLOCK, Floats, Loaded, Snapshot
from treadle.retrieval.sqlite_rows import Integers, Vectors
from treadle.retrieval.sqlite_threads import Connection

GATHERED_SHARE = 0.1
"""Up to this share of all rows, copying them together is faster than a product with all."""

_DIGITS = 6
"""Scores are rounded before they order anything: a product may be added up in another order with others beside it."""

_EXACT = 4096
"""Candidates whose cosines are computed in float64, at most."""

_SLACK = 2e-6
"""A product in float32 is not further off than this."""


class Query(msgspec.Struct):
    vector: Sequence[float]
    files: frozenset[str] | None
    limit: int


class WordQuery(msgspec.Struct):
    words: list[str]
    files: frozenset[str] | None
    limit: int


class Best(msgspec.Struct):
    """Rows with their scores, best first."""

    rows: list[int]
    scores: list[float]


def nearest(connection: Connection, loaded: Loaded, queries: Sequence[Query]) -> list[Best]:
    """The best rows of each query. Those that look into most of the collection share one product."""
    snapshot = loaded.snapshot
    chosen = [snapshot.rows_in(query.files) for query in queries]
    vectors = [_unit(query.vector) for query in queries]
    whole = [n for n, rows in enumerate(chosen) if rows is None or len(rows) > GATHERED_SHARE * len(snapshot.ids)]
    products: dict[int, NDArray[numpy.float32]] = {}
    if whole:
        together = _product(_parts(connection, loaded), len(snapshot.ids), numpy.stack([vectors[n] for n in whole]))
        products = dict(zip(whole, together, strict=True))
    found = []
    for n, (query, rows) in enumerate(zip(queries, chosen, strict=True)):
        if n in products:
            scores = products[n] if rows is None else products[n][rows]
        else:
            assert rows is not None
            scores = _gathered(connection, loaded, rows) @ vectors[n]
        places = _candidates(scores, query.limit)
        candidates = places if rows is None else rows[places]
        exact = scores[places].astype(numpy.float64)
        if len(candidates) <= _EXACT:
            some = numpy.sort(candidates)
            order = numpy.searchsorted(some, candidates)
            exact = (_gathered(connection, loaded, some)[order].astype(numpy.float64) * vectors[n]).sum(axis=1)
        found.append(_best(snapshot, candidates, exact, query.limit))
    return found


def matching(connection: Connection, snapshot: Snapshot, collection: int, query: WordQuery) -> Best:
    """The best rows by BM25, whose statistics are those of all live rows."""
    chosen = snapshot.rows_in(query.files)
    words = query.words
    if snapshot.count > bm25.MANY_CHUNKS:
        holding = {word: sqlite_rows.frequency(connection, collection, word) for word in words}
        words = bm25.telling(words, snapshot.count, holding)
    totals = numpy.zeros(len(snapshot.ids))
    lengths = bm25.K1 * (1 - bm25.B + bm25.B * snapshot.lengths / max(snapshot.mean_length, 1.0))
    for word in words:
        rows, counts = numpy.unique(
            snapshot.rows_of(sqlite_rows.occurrences(connection, collection, word)), return_counts=True
        )
        rarity = bm25.rarity(snapshot.count, len(rows))
        totals[rows] += rarity * counts * (bm25.K1 + 1) / (counts + lengths[rows])
    if chosen is not None:
        totals = totals[chosen]
    places = _candidates(totals, query.limit)
    places = places[totals[places] > 0]
    return _best(snapshot, places if chosen is None else chosen[places], totals[places], query.limit)


def hits(connection: Connection, snapshot: Snapshot, best: Best) -> list[Hit]:
    return [
        Hit(
            snapshot.files[snapshot.codes[row]].name,
            score,
            sqlite_rows.chunk(connection, int(snapshot.ids[row]), int(snapshot.numbers[row])),
        )
        for row, score in zip(best.rows, best.scores, strict=True)
    ]


def _unit(vector: Sequence[float]) -> Vectors:
    """Cosines are asked for, so a question's length may not matter."""
    values = numpy.asarray(vector, dtype=numpy.float64)
    length = numpy.linalg.norm(values)
    return (values / length if length else values).astype(numpy.float32)


def _parts(connection: Connection, loaded: Loaded) -> Iterator[Vectors]:
    rows = len(loaded.snapshot.ids)
    if loaded.blocks is not None:
        yield from loaded.blocks.parts(rows)
        return
    for start in range(0, rows, BLOCK):
        yield _read(connection, loaded, loaded.snapshot.ids[start : start + BLOCK])


def _gathered(connection: Connection, loaded: Loaded, rows: Integers) -> Vectors:
    if loaded.blocks is not None:
        return loaded.blocks.gathered(rows)
    return _read(connection, loaded, loaded.snapshot.ids[rows])


def _read(connection: Connection, loaded: Loaded, ids: Integers) -> Vectors:
    found = numpy.empty((len(ids), loaded.dimensions), dtype=numpy.float32)
    sqlite_rows.load_vectors(connection, ids.tolist(), found)
    return found


def _product(parts: Iterator[Vectors], rows: int, queries: Vectors) -> Vectors:
    """The products of all rows with each query."""
    found = numpy.empty((len(queries), rows), dtype=numpy.float32)
    start = 0
    for part in parts:
        numpy.matmul(queries, part.T, out=found[:, start : start + len(part)])
        start += len(part)
    return found


def _candidates(scores: NDArray[numpy.floating], limit: int) -> Integers:
    """The places of the `limit` best scores and of all that may be as good."""
    if len(scores) <= limit:
        return numpy.arange(len(scores))
    worst = numpy.partition(scores, len(scores) - limit)[len(scores) - limit]
    return numpy.flatnonzero(scores >= worst - _SLACK)


def _best(snapshot: Snapshot, rows: Integers, scores: Floats, limit: int) -> Best:
    """Best first; equal scores by the file's name and the chunk's number."""
    rounded = numpy.round(scores, _DIGITS)
    ranked = sorted(
        zip((-rounded).tolist(), rows.tolist(), strict=True),
        key=lambda pair: (
            pair[0],
            snapshot.files[snapshot.codes[pair[1]]].name,
            snapshot.numbers[pair[1]],
        ),
    )[:limit]
    return Best([row for _, row in ranked], [-score for score, _ in ranked])
