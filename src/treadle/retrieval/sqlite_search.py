"""Exact search over a snapshot: products with vectors, BM25 over postings, and the best rows of either."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy
from numpy.typing import NDArray

from treadle.ports import Hit
from treadle.retrieval import bm25, sqlite_rows
from treadle.retrieval.sqlite_codes import Codes
from treadle.retrieval.sqlite_matrix import BLOCK, Blocks, Loaded, Snapshot, Weights
from treadle.retrieval.sqlite_rows import Integers, Vectors
from treadle.retrieval.sqlite_threads import Connection, Team

GATHERED_SHARE = 0.25
"""Up to this share of all rows, copying them together is faster than a product with all."""

_DIGITS = 6
"""Scores are rounded before they order anything: smaller differences mean nothing and differ between machines."""

_SLACK = 2e-6
"""Scores that are apart by less may be equal when they are rounded."""

KEPT_FREQUENCIES = 20_000
"""Words of a collection whose frequency is remembered."""


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

    rows: Integers
    scores: list[float]


def nearest(connection: Connection, loaded: Loaded, queries: Sequence[Query], team: Team) -> list[Best]:
    """The best rows of each query. Those that look into most of the collection go through it together."""
    snapshot = loaded.snapshot
    chosen = [snapshot.rows_in(query.files) for query in queries]
    vectors = [_unit(query.vector) for query in queries]
    whole = [n for n, rows in enumerate(chosen) if rows is None or len(rows) > GATHERED_SHARE * len(snapshot.ids)]
    scores: dict[int, Vectors] = {}
    if whole and loaded.blocks is not None:
        products, wrong = _about(loaded.blocks, len(snapshot.ids), numpy.stack([vectors[n] for n in whole]), team)
        for place, n in enumerate(whole):
            chosen[n] = _promising(products[place], wrong[place], chosen[n], queries[n].limit)
    elif whole:
        products = _read_products(connection, loaded, numpy.stack([vectors[n] for n in whole]))
        scores = dict(zip(whole, products, strict=True))
    found = []
    for n, (query, rows) in enumerate(zip(queries, chosen, strict=True)):
        if n in scores:
            of_rows = scores[n] if rows is None else scores[n][rows]
        else:
            assert rows is not None
            of_rows = _products_of(connection, loaded, rows, vectors[n])
        places = _candidates(of_rows, query.limit)
        found.append(_best(snapshot, places if rows is None else rows[places], of_rows[places], query.limit))
    return found


def matching(connection: Connection, snapshot: Snapshot, collection: int, query: WordQuery) -> Best:
    """The best rows by BM25, whose statistics are those of all live rows."""
    words = query.words
    if snapshot.count > bm25.MANY_CHUNKS:
        words = bm25.telling(words, snapshot.count, _frequencies(connection, snapshot, collection, words))
    totals = numpy.zeros(len(snapshot.ids))
    for word in words:
        found = snapshot.weights.get(word)
        if found is None:
            found = _weights(snapshot, sqlite_rows.occurrences(connection, collection, word))
            snapshot.weights.put(word, found)
        totals[found.rows] += found.values
    chosen = snapshot.rows_in(query.files)
    rows = numpy.flatnonzero(totals) if chosen is None else chosen[totals[chosen] > 0]
    places = _candidates(totals[rows], query.limit)
    return _best(snapshot, rows[places], totals[rows[places]], query.limit)


def hits(snapshot: Snapshot, best: Best) -> list[Hit]:
    codes, numbers = snapshot.codes[best.rows].tolist(), snapshot.numbers[best.rows].tolist()
    return [
        Hit(snapshot.files[code].name, number, score)
        for code, number, score in zip(codes, numbers, best.scores, strict=True)
    ]


def _unit(vector: Sequence[float]) -> Vectors:
    """Cosines are asked for, so a question's length may not matter."""
    values = numpy.asarray(vector, dtype=numpy.float64)
    length = numpy.linalg.norm(values)
    return (values / length if length else values).astype(numpy.float32)


def _read(connection: Connection, loaded: Loaded, ids: Integers) -> Vectors:
    found = numpy.empty((len(ids), loaded.dimensions), dtype=numpy.float32)
    sqlite_rows.load_vectors(connection, ids.tolist(), found)
    return found


def _about(blocks: Blocks, rows: int, vectors: Vectors, team: Team) -> tuple[Vectors, Vectors]:
    """The products of the vectors with all rows as their codes tell them, and by how much each may be wrong."""
    queries = Codes.of(vectors)
    products, wrong = (numpy.empty((len(vectors), rows), dtype=numpy.float32) for _ in range(2))

    def multiply(piece: tuple[int, Codes, int]) -> None:
        start, codes, count = piece
        products[:, start : start + count], wrong[:, start : start + count] = codes.about(count, queries)

    team.each(multiply, blocks.codes(rows))
    return products, wrong


def _promising(products: Vectors, wrong: Vectors, rows: Integers | None, limit: int) -> Integers:
    """Those of the rows (None: all) that may be among the `limit` best."""
    if rows is not None:
        products, wrong = products[rows], wrong[rows]
    places = numpy.arange(len(products))
    if len(products) > limit:
        sure = products - wrong
        worst = numpy.partition(sure, len(sure) - limit)[len(sure) - limit]
        places = numpy.flatnonzero(products + wrong >= worst - _SLACK)
    return places if rows is None else rows[places]


def _read_products(connection: Connection, loaded: Loaded, vectors: Vectors) -> Vectors:
    """The products of the vectors with all rows, which are read from the file.

    `vecdot` and not `@`: a row's product is the same whatever is computed beside it.
    """
    rows = len(loaded.snapshot.ids)
    found = numpy.empty((len(vectors), rows), dtype=numpy.float32)
    for start in range(0, rows, BLOCK):
        part = _read(connection, loaded, loaded.snapshot.ids[start : start + BLOCK])
        found[:, start : start + len(part)] = numpy.vecdot(part[:, None, :], vectors).T
    return found


def _products_of(connection: Connection, loaded: Loaded, rows: Integers, vector: Vectors) -> Vectors:
    """The product with some rows."""
    found = numpy.empty(len(rows), dtype=numpy.float32)
    start = 0
    if loaded.blocks is None:
        numpy.vecdot(_read(connection, loaded, loaded.snapshot.ids[rows]), vector, out=found)
        return found
    for part in loaded.blocks.gathered(rows):
        numpy.vecdot(part, vector, out=found[start : start + len(part)])
        start += len(part)
    return found


def _frequencies(connection: Connection, snapshot: Snapshot, collection: int, words: list[str]) -> dict[str, int]:
    """Counting is as much work as the word is common, so counts are kept."""
    kept, found = snapshot.frequencies, {}
    if len(kept) > KEPT_FREQUENCIES:
        kept.clear()
    for word in words:
        count = kept.get(word)  # other threads may fill and clear it meanwhile
        kept[word] = found[word] = sqlite_rows.frequency(connection, collection, word) if count is None else count
    return found


def _weights(snapshot: Snapshot, occurrences: Integers) -> Weights:
    """What a word adds to the rows that hold it."""
    ids, counts = _counted(occurrences)
    rows, there = snapshot.rows_of(ids)
    counts = counts[there]
    rarity = bm25.rarity(snapshot.count, len(rows))
    return Weights(rows, rarity * counts * (bm25.K1 + 1) / (counts + snapshot.length_norms[rows]))


def _counted(occurrences: Integers) -> tuple[Integers, Integers]:
    """The different ones of ascending numbers, and how often each is there."""
    starts = numpy.flatnonzero(numpy.diff(occurrences, prepend=-1))
    return occurrences[starts], numpy.diff(starts, append=len(occurrences))


def _candidates(scores: NDArray[numpy.floating], limit: int) -> Integers:
    """The places of the `limit` best scores and of all that may be as good."""
    if len(scores) <= limit:
        return numpy.arange(len(scores))
    worst = numpy.partition(scores, len(scores) - limit)[len(scores) - limit]
    return numpy.flatnonzero(scores >= worst - _SLACK)


def _best(snapshot: Snapshot, rows: Integers, scores: NDArray[numpy.floating], limit: int) -> Best:
    """Best first; equal scores by the file's name and the chunk's number."""
    rounded = numpy.round(scores.astype(numpy.float64), _DIGITS)
    order = numpy.lexsort((snapshot.numbers[rows], snapshot.name_ranks[snapshot.codes[rows]], -rounded))[:limit]
    return Best(rows[order], rounded[order].tolist())
