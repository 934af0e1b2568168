"""The first look at vectors in one byte a number: what it says is wrong by no more than it admits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.ports import Chunk, Collection, IndexedChunk
from treadle.retrieval import sqlite_matrix, sqlite_search
from treadle.retrieval.sqlite_codes import Codes, Vectors
from treadle.retrieval.sqlite_numpy import SqliteIndex
from treadle.testing.conformance_index import published

SHAPES: dict[str, Callable[[numpy.random.Generator, int, int], numpy.ndarray]] = {
    "any direction": lambda dice, rows, width: dice.standard_normal((rows, width)),
    "close together": lambda dice, rows, width: 1 + 0.01 * dice.standard_normal((rows, width)),
    "one large number": lambda dice, rows, width: 0.004 + 5.0 * numpy.eye(width)[dice.integers(0, width, rows)],
    "mostly zeros": lambda dice, rows, width: dice.standard_normal((rows, width)) * (dice.random((rows, width)) < 0.05),
    "one sign": lambda dice, rows, width: dice.random((rows, width)),
}


def vectors(shape: str, seed: int, rows: int, width: int) -> Vectors:
    """Of unit length, or zeros."""
    found = SHAPES[shape](numpy.random.default_rng(seed), rows, width)
    lengths = numpy.linalg.norm(found, axis=1, keepdims=True)
    return (found / numpy.where(lengths > 0, lengths, 1)).astype(numpy.float32)


@given(
    st.sampled_from(list(SHAPES)), st.sampled_from(list(SHAPES)), st.integers(0, 1000), st.sampled_from([1, 3, 48, 384])
)
def test_products_are_wrong_by_no_more_than_is_said(shape: str, asked: str, seed: int, width: int) -> None:
    rows, queries = vectors(shape, seed, 40, width), vectors(asked, seed + 1, 3, width)
    products, wrong = Codes.of(rows).about(40, Codes.of(queries))
    exact = queries.astype(numpy.float64) @ rows.astype(numpy.float64).T
    assert (numpy.abs(products - exact) <= wrong).all()
    assert wrong.max() < 0.25, "the bound says nothing"


def test_rows_can_be_written_in_parts_and_moved_to_a_larger_block() -> None:
    rows = vectors("any direction", 1, 30, 16)
    small, large, whole = Codes.empty(20, 16), Codes.empty(30, 16), Codes.of(rows)
    small.write(0, rows[:5])
    small.write(5, rows[5:20])
    small.copy_to(large, 20)
    large.write(20, rows[20:])
    queries = Codes.of(rows[:2])
    for mine, expected in zip(large.about(30, queries), whole.about(30, queries), strict=True):
        assert (mine == expected).all()
    assert large.bytes == 30 * (16 + 3 * 4)


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_nearest_are_the_nearest_whatever_vectors_look_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """With files that come and go, so that blocks grow and rows are masked."""
    monkeypatch.setattr(sqlite_matrix, "BLOCK", 64)
    width = 24
    rows = vectors(shape, 5, 600, width)
    index, where = SqliteIndex(tmp_path / "index.sqlite3"), Collection("acme", "vs_1", width)
    await index.start()
    there: list[int] = []
    for step in range(3):
        for file in range(step * 50, step * 50 + 50):
            pieces = [IndexedChunk(Chunk(number=n, text="x"), rows[4 * file + n].tolist()) for n in range(4)]
            await published(index, where, str(file), *pieces)
            there += range(4 * file, 4 * file + 4)
        for file in range(step * 50, step * 50 + 8):
            await index.remove(where, str(file))
            there = [row for row in there if row // 4 != file]
        for query in vectors(shape, 77 + step, 4, width):
            exact = numpy.round(numpy.vecdot(rows[there], query).astype(numpy.float64), sqlite_search._DIGITS)
            hits = await index.nearest(where, query.tolist(), files=None, limit=10)
            assert [hit.score for hit in hits] == pytest.approx(sorted(exact.tolist(), reverse=True)[:10], abs=2e-6)
    await index.close()
