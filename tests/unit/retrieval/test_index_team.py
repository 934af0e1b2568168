"""The threads that help a search: all is done once, faults arrive, and nobody waits for a helper that is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from treadle.retrieval import sqlite_matrix, sqlite_search
from treadle.retrieval.sqlite_numpy import SqliteIndex
from treadle.retrieval.sqlite_threads import ENOUGH, Team
from treadle.testing.conformance_index import DIMENSIONS, collection, piece, published

PATIENCE = 10.0


@pytest.fixture
def team() -> Iterator[Team]:
    made = Team(2)
    yield made
    made.close()


def test_every_piece_is_done_once_with_and_without_help(team: Team) -> None:
    for count in (0, 1, 2 * ENOUGH, 1000):
        done: list[int] = []
        team.each(done.append, range(count))
        assert sorted(done) == list(range(count))


def test_helpers_work_beside_the_thread_that_asks(team: Team) -> None:
    together = threading.Barrier(3)
    team.each(lambda n: together.wait(PATIENCE) if n < 3 else None, range(3 * ENOUGH))
    assert not together.broken


def test_what_a_piece_raises_is_raised_whoever_did_it(team: Team) -> None:
    caller, together, alone = threading.current_thread(), threading.Barrier(2), Team(1)

    def work(piece: int) -> None:
        if piece < 2:
            together.wait(PATIENCE)
            if threading.current_thread() is not caller:
                raise ValueError("in a helper")

    with pytest.raises(ValueError, match="in a helper"):
        alone.each(work, range(2 * ENOUGH))
    alone.close()
    with pytest.raises(ZeroDivisionError):
        team.each(lambda n: 1 // n, range(2 * ENOUGH))


def test_a_helper_that_is_busy_is_not_waited_for() -> None:
    team, busy, free = Team(1), threading.Event(), threading.Event()
    caller = threading.current_thread()

    def hold(_: int) -> None:
        if threading.current_thread() is not other:
            busy.set()
            assert free.wait(PATIENCE)

    other = threading.Thread(target=lambda: team.each(hold, range(2 * ENOUGH)))
    other.start()
    assert busy.wait(PATIENCE)
    done: list[threading.Thread] = []
    team.each(lambda _: done.append(threading.current_thread()), range(10 * ENOUGH))
    assert set(done) == {caller}
    assert not free.is_set()
    free.set()
    other.join(PATIENCE)
    team.close()


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
async def test_any_share_of_the_files_gives_what_a_plain_product_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(sqlite_matrix, "BLOCK", 50)
    monkeypatch.setattr(sqlite_search, "BLOCK", 50)
    monkeypatch.setattr(sqlite_matrix, "GATHERED", 8)
    generator = numpy.random.default_rng(1)
    vectors = generator.standard_normal((600, DIMENSIONS))
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    index, where = SqliteIndex(tmp_path / "index.sqlite3"), collection()
    await index.start()
    for file in range(200):
        await published(index, where, str(file), *(piece(n, "text", vectors[3 * file + n].tolist()) for n in range(3)))
    question = generator.standard_normal(DIMENSIONS)
    for _ in range(5):
        some = {*generator.choice(200, int(200 * share), replace=False).tolist()}
        rows = [row for row in range(600) if row // 3 in some]
        best = sorted(rows, key=lambda row: -float(vectors[row] @ question))[:10]
        hits = await index.nearest(where, question.tolist(), files=frozenset(map(str, some)), limit=10)
        assert [3 * int(hit.file) + hit.number for hit in hits] == best
    await index.close()
