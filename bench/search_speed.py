"""What a search costs at the index itself: no HTTP, no embedding, no attributes.

    python bench/search_speed.py [--chunks 100000] [--dimensions 384] [--files 10000] [--searches 200] [--cache-mb 400]
    python bench/search_speed.py --index postgresql://...

One collection. Vectors are random directions around a few hundred centres, texts are words with the frequencies of
natural language (Zipf). A search asks for 10 hits; the filter leaves 3 % of the files. Times are of one search after
the other, then of 16 at once. Recall is measured against a plain NumPy product. Linux only: memory comes from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy

from treadle.ports import Chunk, Collection, IndexedChunk, VectorIndex
from treadle.retrieval.pgvector import PgVectorIndex
from treadle.retrieval.sqlite_numpy import SqliteIndex

VOCABULARY = 60_000
WORDS = 120
LIMIT = 10
CALLERS = 16


class Data:
    """Chunks that are made as they are needed, and questions about them."""

    def __init__(self, chunks: int, dimensions: int) -> None:
        self.chunks, self.dimensions = chunks, dimensions
        generator = numpy.random.default_rng(1)
        centres = generator.standard_normal((300, dimensions)).astype(numpy.float32)
        self.vectors = generator.standard_normal((chunks, dimensions)).astype(numpy.float32)
        self.vectors += centres[generator.integers(0, len(centres), chunks)]
        self.vectors /= numpy.linalg.norm(self.vectors, axis=1, keepdims=True)
        self._share = 1 / numpy.arange(1, VOCABULARY + 1) ** 1.02
        self._share /= self._share.sum()
        self._generator = generator

    def text(self) -> str:
        return " ".join(f"w{word:x}" for word in self._generator.choice(VOCABULARY, WORDS, p=self._share))

    def piece(self, number: int, row: int) -> IndexedChunk:
        return IndexedChunk(Chunk(number=number, text=self.text()), self.vectors[row].tolist())

    def question(self, row: int) -> tuple[list[float], str]:
        """A vector near that of a row, and nine words of which most are common."""
        vector = self.vectors[row] + 0.3 * self._generator.standard_normal(self.dimensions) / self.dimensions**0.5
        words = self._generator.choice(VOCABULARY, 9, p=self._share)
        return (vector / numpy.linalg.norm(vector)).tolist(), " ".join(f"w{word:x}" for word in words)


def memory_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field}")


async def fill(index: VectorIndex, where: Collection, data: Data, files: int) -> None:
    each = data.chunks // files
    started, published = time.perf_counter(), 0.0
    for number in range(files):
        name = f"file-{number:06}"
        await index.add(where, name, [data.piece(n, number * each + n) for n in range(each)])
        begun = time.perf_counter()
        await index.publish(where, name)
        published += time.perf_counter() - begun
    print(f"filling, making data as well    {time.perf_counter() - started:8.1f} s")
    print(f"publish                        {published / files * 1e3:8.2f} ms")


async def times(name: str, searches: int, search: Callable[[int], Awaitable[object]]) -> None:
    """One after the other, then CALLERS at once."""
    taken = []
    for number in range(searches):
        begun = time.perf_counter()
        await search(number)
        taken.append((time.perf_counter() - begun) * 1e3)
    taken.sort()
    begun = time.perf_counter()

    async def caller(first: int) -> None:
        for number in range(first, searches, CALLERS):
            await search(number)

    await asyncio.gather(*(caller(first) for first in range(CALLERS)))
    rate = searches / (time.perf_counter() - begun)
    p50, p95 = taken[len(taken) // 2], taken[int(len(taken) * 0.95)]
    print(f"{name:30} p50 {p50:6.2f} ms  p95 {p95:6.2f} ms   {CALLERS} at once: {rate:6.0f} /s")


async def lag(seconds: float) -> float:
    """The longest time that the event loop was late, in milliseconds."""
    worst, end = 0.0, time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await asyncio.sleep(0.001)
        worst = max(worst, time.perf_counter() - begun - 0.001)
    return worst * 1e3


async def measure(index: VectorIndex, where: Collection, data: Data, files: int, searches: int) -> None:
    pick = random.Random(2)
    questions = [data.question(pick.randrange(data.chunks)) for _ in range(searches)]
    few = frozenset(f"file-{number:06}" for number in pick.sample(range(files), max(1, files * 3 // 100)))

    begun = time.perf_counter()
    await index.nearest(where, questions[0][0], files=None, limit=LIMIT)
    print(f"first search, loads vectors    {(time.perf_counter() - begun) * 1e3:8.0f} ms")
    begun = time.perf_counter()
    await index.matching(where, questions[0][1], files=None, limit=LIMIT)
    print(f"first search for words         {(time.perf_counter() - begun) * 1e3:8.1f} ms")

    def nearest(chosen: frozenset[str] | None) -> Callable[[int], Awaitable[object]]:
        return lambda number: index.nearest(where, questions[number][0], files=chosen, limit=LIMIT)

    def matching(chosen: frozenset[str] | None) -> Callable[[int], Awaitable[object]]:
        return lambda number: index.matching(where, questions[number][1], files=chosen, limit=LIMIT)

    def hybrid(chosen: frozenset[str] | None) -> Callable[[int], Awaitable[object]]:
        return lambda number: asyncio.gather(nearest(chosen)(number), matching(chosen)(number))

    for name, chosen in (("all files", None), ("3 % of files", few)):
        await times(f"nearest, {name}", searches, nearest(chosen))
        await times(f"matching, {name}", searches, matching(chosen))
        await times(f"hybrid, {name}", searches, hybrid(chosen))
    late = asyncio.create_task(lag(2.0))
    while not late.done():
        await asyncio.gather(*(nearest(None)(number) for number in range(8)))
    print(f"event loop late at most        {await late:8.1f} ms")
    begun = time.perf_counter()
    await index.add(where, "new", [data.piece(n, n) for n in range(10)])
    await index.publish(where, "new")
    await index.nearest(where, questions[0][0], files=None, limit=LIMIT)
    print(f"add, publish, search           {(time.perf_counter() - begun) * 1e3:8.1f} ms")
    await index.remove(where, "new")
    await recall(index, where, data, questions[:50], few, data.chunks // files)


async def recall(
    index: VectorIndex,
    where: Collection,
    data: Data,
    questions: list[tuple[list[float], str]],
    few: frozenset[str],
    each: int,
) -> None:
    rows = {(f"file-{row // each:06}", row % each): row for row in range(data.chunks)}
    allowed = numpy.array([name in few for name, _ in rows])
    for label, chosen in (("all files", None), ("3 % of files", few)):
        found = 0
        for vector, _ in questions:
            scores = data.vectors @ numpy.asarray(vector, dtype=numpy.float32)
            if chosen is not None:
                scores[~allowed] = -2
            best = set(numpy.argsort(-scores)[:LIMIT].tolist())
            hits = await index.nearest(where, vector, files=chosen, limit=LIMIT)
            found += len(best & {rows[hit.file, hit.number] for hit in hits})
        print(f"recall@{LIMIT}, {label:20} {found / LIMIT / len(questions):8.3f}")


async def main(arguments: argparse.Namespace) -> None:
    where = Collection("bench", "store", arguments.dimensions)
    data = Data(arguments.chunks, arguments.dimensions)
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.index or f"{folder}/index.sqlite3"

        def made() -> SqliteIndex | PgVectorIndex:
            if place.startswith("postgres"):
                return PgVectorIndex(place)
            return SqliteIndex(Path(place), cache_bytes=arguments.cache_mb * 1_000_000)

        index = made()
        await index.start()
        last = f"file-{arguments.files - 1:06}"
        if not await index.read(where, last, start=0, limit=1):
            await fill(index, where, data, arguments.files)
            await index.close()
            index = made()
            await index.start()
        if isinstance(index, SqliteIndex):
            print(f"file                           {Path(place).stat().st_size / 1e6:8.0f} MB")
        ours = data.vectors.nbytes / 2**20
        before = memory_mb("VmRSS") - ours
        await measure(index, where, data, arguments.files, arguments.searches)
        print(f"memory without the data        {memory_mb('VmRSS') - ours:8.0f} MB, {before:.0f} MB before searching")
        await index.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--cache-mb", type=int, default=400)
    parser.add_argument("--index", default="", help="a file that is kept and used again, or the address of a Postgres")
    asyncio.run(main(parser.parse_args()))
