"""What is special about the index in one file: crashes, several processes, memory, speed, and what stays on disk."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy
import pytest

from treadle.errors import StorageFault
from treadle.ports import Chunk, Collection, IndexedChunk
from treadle.retrieval import bm25, sqlite_matrix, sqlite_rows, sqlite_search
from treadle.retrieval.in_memory import InMemoryIndex
from treadle.retrieval.sqlite_numpy import SqliteIndex
from treadle.testing.conformance_index import DIMENSIONS, collection, matching, names, nearest, piece, published

PROGRAM = """
import asyncio, sys
from pathlib import Path

from treadle.ports import Collection
from treadle.retrieval.sqlite_numpy import SqliteIndex
from treadle.testing.conformance_index import DIMENSIONS, piece

async def write(index, writer):
    where = Collection("acme", "store", DIMENSIONS)
    for n in range(100_000):
        file, chunks = f"{writer}-{n}", 1 + (n + writer) % 4
        for number in range(chunks):
            await index.add(where, file, [piece(number, f"{file} word of {chunks}")])
        await index.publish(where, file)
        print("+", file, chunks, flush=True)
        if n % 3 == 2:
            print("?", file, chunks, flush=True)
            await index.remove(where, file)
            print("-", file, chunks, flush=True)

async def main():
    index = SqliteIndex(Path(sys.argv[1]))
    await index.start()
    await asyncio.gather(*(write(index, n) for n in range(4)))

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite3"


@pytest.fixture
async def index(path: Path) -> AsyncIterator[SqliteIndex]:
    index = SqliteIndex(path)
    await index.start()
    yield index
    await index.close()


def rows(path: Path) -> dict[str, int]:
    """How many rows each table has; for the words, how many postings."""
    connection = sqlite3.connect(path)
    try:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("collections", "files", "chunks", "texts", "vectors", "postings")
        }
    finally:
        connection.close()


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def killed_after(path: Path, lines: int) -> list[list[str]]:
    """Runs the program until it has reported `lines` steps, kills it, and gives all that it reported."""
    code = f"import sys; sys.path[:] = {sys.path!r}\n{PROGRAM}"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        reported = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        reported += process.stdout.readlines()
    assert len(reported) >= lines, "it ended by itself"
    return [line.decode().split() for line in reported if line.endswith(b"\n")]


@pytest.mark.parametrize("run", range(3))
async def test_a_killed_process_leaves_published_files_whole_and_the_others_invisible(path: Path, run: int) -> None:
    reported = killed_after(path, random.randrange(1, 120))
    published = {file: int(chunks) for sign, file, chunks in reported if sign == "+"}
    removed = {file for sign, file, _ in reported if sign == "-"}
    doubtful = {file for sign, file, _ in reported if sign == "?"} - removed
    index, where = SqliteIndex(path), Collection("acme", "store", DIMENSIONS)
    await index.start()
    found: dict[str, int] = {}
    hits = await index.nearest(where, [1, 0, 0, 0], files=None, limit=100_000)
    for hit, chunk in zip(hits, await index.chunks(where, names(hits)), strict=True):
        found[hit.file] = found.get(hit.file, 0) + 1
        assert chunk is not None
        assert chunk.text.startswith(hit.file)
    for file, chunks in published.items():
        assert found.get(file, 0) == (0 if file in removed else chunks) or file in doubtful, f"run {run}: {file}"
    # Published, and killed before it could be reported: whole as well.
    for file in found.keys() - published.keys():
        writer, n = file.split("-")
        assert found[file] == 1 + (int(n) + int(writer)) % 4
    assert len(await matching(index, where, "word", limit=100_000)) == sum(found.values())
    await until(lambda: rows(path)["files"] <= len(found) + 4)  # what was removed is cleared away; 4 were being added
    counted = rows(path)
    assert counted["texts"] == counted["vectors"] == counted["chunks"]
    await index.close()


async def test_what_is_removed_leaves_the_file(path: Path, index: SqliteIndex) -> None:
    one, other = collection(), collection()
    for where in (one, other):
        await published(index, where, "a", *(piece(number, f"some words {number}") for number in range(300)))
        await published(index, where, "b", piece(0, "few words"))
        await index.add(where, "c", [piece(0, "never published")])
    full = rows(path)
    await index.remove(one, "a")
    await index.drop(other)
    await until(lambda: rows(path)["files"] == 2)
    left = rows(path)
    assert left == {"collections": 1, "files": 2, "chunks": 2, "texts": 2, "vectors": 2, "postings": 4}
    assert full["postings"] == 2 * 904
    assert await matching(index, one, "words") == [("b", 0)]


async def test_clearing_away_goes_on_after_a_restart(path: Path) -> None:
    index, where = SqliteIndex(path), collection()
    await index.start()
    await published(index, where, "a", *(piece(number, "some words") for number in range(3000)))
    await index.remove(where, "a")
    await index.close()
    assert rows(path)["chunks"] > 0, "nothing was left to be done"
    index = SqliteIndex(path)
    await index.start()
    await until(lambda: rows(path)["files"] == 0)
    assert rows(path)["texts"] == rows(path)["postings"] == 0
    await index.close()


async def test_a_file_that_is_no_index_or_of_another_version_is_refused(path: Path) -> None:
    path.write_bytes(b"something else " * 1000)
    with pytest.raises(StorageFault):
        await SqliteIndex(path).start()
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9999")
    connection.close()
    with pytest.raises(StorageFault, match="9999"):
        await SqliteIndex(path).start()


async def test_a_closed_index_says_so(path: Path) -> None:
    index = SqliteIndex(path)
    with pytest.raises(StorageFault):
        await nearest(index, collection())
    await index.start()
    await index.close()
    with pytest.raises(StorageFault):
        await nearest(index, collection())
    with pytest.raises(StorageFault):
        await index.add(collection(), "a", [piece(0)])


async def test_vectors_are_loaded_once_and_new_ones_are_added_to_them(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    load = sqlite_rows.load_vectors

    def counted(connection: sqlite3.Connection, ids: list[int], into: sqlite_rows.Vectors) -> None:
        loaded.append(len(ids))
        load(connection, ids, into)

    monkeypatch.setattr(sqlite_rows, "load_vectors", counted)
    where = collection()
    await published(index, where, "a", *(piece(number) for number in range(100)))
    await nearest(index, where)
    await nearest(index, where)
    assert sum(loaded) == 100
    await published(index, where, "b", piece(0), piece(1))
    assert len(await nearest(index, where, (1, 0, 0, 0), "b")) == 2
    assert sum(loaded) == 102
    await index.remove(where, "b")
    await nearest(index, where)
    assert sum(loaded) == 102
    await index.remove(where, "a")
    await published(index, where, "c", piece(0))
    assert await nearest(index, where) == [("c", 0)]
    assert sum(loaded) == 103


async def test_searches_use_bounded_memory(path: Path) -> None:
    room = 3 * (100 * (4 * DIMENSIONS + 48) + 4096 + 200)
    index = SqliteIndex(path, cache_bytes=room)
    await index.start()
    stores = [collection() for _ in range(8)]
    for where in stores:
        await published(index, where, "a", *(piece(number) for number in range(100)))
    for where in stores * 2:
        assert len(await nearest(index, where)) == 10
        kept = index._cache._entries
        assert 1 <= len(kept) <= 3
        assert sum(entry.bytes for entry in kept.values()) <= room
    await index.close()


async def test_blocks_and_removed_rows_change_nothing_about_what_is_found(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small blocks, files that come and go, and the plain reference beside them."""
    monkeypatch.setattr(sqlite_matrix, "BLOCK", 7)
    monkeypatch.setattr(sqlite_search, "BLOCK", 7)
    reference, where, pick = InMemoryIndex(), collection(), random.Random(5)
    vocabulary = [f"w{n}" for n in range(300)] + ["the"] * 100
    alive: list[str] = []
    for step in range(120):
        if alive and pick.random() < 0.4:
            file = alive.pop(pick.randrange(len(alive)))
            await index.remove(where, file)
            await reference.remove(where, file)
        else:
            alive.append(f"f{step}")
            chunks = [
                piece(n, " ".join(pick.choices(vocabulary, k=12)), [pick.gauss(0, 1) for _ in range(DIMENSIONS)])
                for n in range(pick.randrange(1, 6))
            ]
            await published(index, where, alive[-1], *chunks)
            await published(reference, where, alive[-1], *chunks)
        vector = [pick.gauss(0, 1) for _ in range(DIMENSIONS)]
        files = frozenset(pick.sample(alive, min(3, len(alive)))) if pick.random() < 0.5 else None
        for got, expected in (
            (
                await index.nearest(where, vector, files=files, limit=5),
                await reference.nearest(where, vector, files=files, limit=5),
            ),
            (
                await index.matching(where, "w1 w2 w3 w4 w5 w6 w7 the", files=files, limit=5),
                await reference.matching(where, "w1 w2 w3 w4 w5 w6 w7 the", files=files, limit=5),
            ),
        ):
            assert names(got) == names(expected)
            assert [hit.score for hit in got] == pytest.approx([hit.score for hit in expected], abs=1e-5)


async def test_common_words_are_left_out_of_large_collections_unless_there_are_no_others(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "MANY_CHUNKS", 50)
    where = collection()
    await published(index, where, "a", *(piece(n, f"the {n} tea{n % 9}") for n in range(100)))
    assert await matching(index, where, "the 42") == [("a", 42)]
    assert len(await matching(index, where, "the")) == 10
    assert len(await matching(index, where, "the tea3", limit=100)) == 11, "the rarer one of two common words"


async def test_searches_that_wait_together_are_answered_together(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, other, gate, sizes = collection(), collection(), threading.Event(), []
    generator = numpy.random.default_rng(1)
    vectors = generator.standard_normal((50, DIMENSIONS))
    await published(index, where, "a", *(piece(n, "text", vectors[n].tolist()) for n in range(50)))
    search = sqlite_search.nearest

    def counted(*arguments: object) -> object:
        sizes.append(len(arguments[2]))  # type: ignore[arg-type]
        return search(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite_search, "nearest", counted)
    blocked = [index._searching().submit(lambda _: gate.wait(10)) for _ in range(3)]
    waiting = [asyncio.ensure_future(index.nearest(where, vectors[n].tolist(), files=None, limit=1)) for n in range(20)]
    waiting.append(asyncio.ensure_future(index.nearest(other, [1, 0, 0, 0], files=None, limit=1)))
    await asyncio.sleep(0)
    gate.set()
    *found, nothing = await asyncio.gather(*waiting)
    await asyncio.gather(*blocked)
    assert [names(hits) for hits in found] == [[("a", n)] for n in range(20)]
    assert nothing == []
    assert sum(sizes) == 20
    assert max(sizes) > 1, "each was answered alone"


async def test_a_hundred_collections_in_one_file_do_not_see_or_slow_each_other(index: SqliteIndex) -> None:
    stores = [collection() for _ in range(100)]
    for n, where in enumerate(stores):
        await published(index, where, "a", piece(0, f"shared word{n}"), piece(1, "shared again"))
    for n, where in enumerate(stores):
        assert await matching(index, where, f"word{n} word{n + 1}") == [("a", 0)]
        assert len(await matching(index, where, "shared")) == 2

    def postings(connection: sqlite3.Connection) -> int:
        """Rows of the full-text table that a search for `shared` reads."""
        found = sqlite_rows.find(connection, stores[7])
        assert found is not None
        return len(sqlite_rows.occurrences(connection, found.number, "share"))

    assert await index._searching().submit(postings) == 2


async def test_the_event_loop_goes_on_while_the_index_works(index: SqliteIndex) -> None:
    where, done = collection(dimensions=256), asyncio.Event()
    vectors = numpy.random.default_rng(2).standard_normal((2000, 256))
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    text = " ".join(f"word{n}" for n in range(300))
    worst = 0.0

    async def watch() -> None:
        nonlocal worst
        while not done.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - begun)

    watching = asyncio.create_task(watch())
    chunks = [IndexedChunk(Chunk(number=n, text=text), vectors[n].tolist()) for n in range(2000)]
    worst = 0.0
    await published(index, where, "a", *chunks)
    for _ in range(5):
        await index.nearest(where, [1.0] * 256, files=None, limit=10)
        await index.matching(where, "word1 word2", files=None, limit=10)
    await index.remove(where, "a")
    done.set()
    await watching
    assert worst < 0.5, f"the event loop stood still for {worst * 1000:.0f} ms"


async def test_chunks_that_were_cleared_away_before_their_vectors_were_loaded_do_no_harm(
    path: Path, index: SqliteIndex
) -> None:
    where = collection()
    await published(index, where, "a", *(piece(number, "word") for number in range(10)))
    await published(index, where, "b", piece(0, "word"))
    assert len(await matching(index, where, "word", limit=100)) == 11  # rows are kept, vectors are not asked for yet
    await index.remove(where, "b")
    await until(lambda: rows(path)["files"] == 1)
    assert await nearest(index, where) == [("a", number) for number in range(10)]


async def test_a_file_that_was_replaced_under_its_name_is_found_as_it_is_now(index: SqliteIndex) -> None:
    where = collection()
    await published(index, where, "big", *(piece(number, "big") for number in range(50)))
    await published(index, where, "a", piece(0, "old word"))
    await nearest(index, where)
    await index.remove(where, "a")
    await published(index, where, "a", piece(1, "new word", (0, 1, 0, 0)))
    assert await nearest(index, where, (1, 0, 0, 0), "a") == [("a", 1)]
    assert names(await index.matching(where, "word", files=frozenset({"a"}), limit=10)) == [("a", 1)]


async def test_a_search_that_began_before_others_saw_more_sees_it_as_well(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, began, gate, calls = collection(), threading.Event(), threading.Event(), []
    await published(index, where, "a", piece(0))
    await nearest(index, where)
    find = sqlite_rows.find

    def held(connection: sqlite3.Connection, wanted: Collection) -> sqlite_rows.CollectionRow | None:
        found = find(connection, wanted)
        calls.append(found)
        if len(calls) == 1:
            began.set()
            gate.wait(10)
        return found

    monkeypatch.setattr(sqlite_rows, "find", held)
    search = asyncio.ensure_future(nearest(index, where))
    assert await asyncio.to_thread(began.wait, 10)
    monkeypatch.setattr(sqlite_rows, "find", find)
    await published(index, where, "b", piece(0))
    assert len(await nearest(index, where)) == 2
    monkeypatch.setattr(sqlite_rows, "find", held)
    gate.set()
    assert await search == [("a", 0), ("b", 0)]
    assert len(calls) == 2, "it did not begin again"
