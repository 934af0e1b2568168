"""What a search costs end to end: a store of 100,000 chunks in the embedded index, asked over HTTP, with one filter.

    python bench/search_http.py [--chunks 100000] [--files 10000] [--words 120] [--data FOLDER]

The server runs in a process of its own. The store is filled directly, before it starts: vectors are random directions
around a few hundred centres, texts are English words with the frequencies of natural language (Zipf). Each search is a
question of its own, nine words, and asks for ten hits by meaning and by words together; embedding it is part of what is
measured. The filter leaves half of the files, which is more work than one that leaves few: both are measured.
With the scripted model server a question's vector comes from another process; the embedded model reads it itself.
Recall is that of searches by meaning with the filter, against a plain NumPy product. `run.py` calls this. Linux only.

The budgets are for a machine on which NumPy multiplies 100,000 vectors of 384 numbers with one in 7 ms; times are
scaled by how long that takes here, before and after the searches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from figures import Figure
from ingestion import installed
from load import Connection
from numpy.typing import NDArray
from processes import Process, server, upstream
from upstream import embedding

from treadle.ports import Chunk, Collection, IndexedChunk, ReadyDocument, VectorStoreRow
from treadle.retrieval.sqlite_numpy import SqliteIndex
from treadle.scope import LOCAL
from treadle.store.connect import connect
from treadle.store.vector_files import SqlStoreFiles
from treadle.store.vector_stores import SqlVectorStores
from treadle.vocabularies import vocabulary

P50_MS, P95_MS, MEMORY_MB, LOST = 15.0, 40.0, 600.0, 0.05
"""The budgets. `LOST` is the share of the ten nearest that may be missed: a recall of 0.95."""
PRODUCT_MS = 7.0
"""What the plain product takes on the machine that the budgets are for."""
CPU_MS = {"scripted": 18.0, "embedded": 28.0}
"""Budgets of our own, which a busy machine does not exceed."""

STORE = "vs_bench"
DIMENSIONS = 384
VOCABULARY = 60_000
"""Words. Rare ones are put together from two, as rare English words are several tokens to a model."""
LIMIT = 10
GROUPS = 30
TOGETHER = 64
"""Files that are put into the index at the same time."""
ALIAS = {"scripted": "openai/bench", "embedded": "local/all-minilm-l6-v2"}
"""What the store's embedding model stands for, by the name of the measurement."""
HALF = {"type": "lt", "key": "group", "value": GROUPS // 2}
FEW = {"type": "eq", "key": "group", "value": 3}


class Corpus:
    """Chunks in files, and questions about them; the same ones every time."""

    def __init__(self, chunks: int, files: int, words: int) -> None:
        self.files, self.each, self._words = files, chunks // files, words
        generator = numpy.random.default_rng(1)
        centres = generator.standard_normal((300, DIMENSIONS), dtype=numpy.float32)
        self.vectors = generator.standard_normal((files * self.each, DIMENSIONS), dtype=numpy.float32)
        self.vectors += centres[generator.integers(0, len(centres), len(self.vectors))]
        self.vectors /= numpy.linalg.norm(self.vectors, axis=1, keepdims=True)
        share = 1 / numpy.arange(1, VOCABULARY + 1) ** 1.02
        self._sums = numpy.cumsum(share / share.sum())
        self._generator = generator
        self._vocabulary = _words(generator)

    def names(self) -> list[str]:
        return [f"file-{number:06}" for number in range(self.files)]

    def group(self, file: int) -> int:
        return file % GROUPS

    def pieces(self, file: int) -> list[IndexedChunk]:
        rows = range(file * self.each, (file + 1) * self.each)
        return [
            IndexedChunk(Chunk(number=number, text=self._text(self._words)), self.vectors[row].tolist())
            for number, row in enumerate(rows)
        ]

    def questions(self, count: int) -> list[str]:
        return [self._text(9) for _ in range(count)]

    def nearest(self, question: str, below: int) -> set[str]:
        """Where the nearest chunks are, among the files of the groups below a number: file and chunk."""
        scores = self.vectors @ numpy.asarray(embedding(question), dtype=numpy.float32)
        groups: NDArray[numpy.int64] = numpy.arange(len(scores)) // self.each % GROUPS
        scores[groups >= below] = -2
        return {f"file-{row // self.each:06}/{row % self.each}" for row in numpy.argsort(-scores)[:LIMIT].tolist()}

    def _text(self, words: int) -> str:
        ranks = numpy.searchsorted(self._sums, self._generator.random(words))
        return " ".join(self._vocabulary[rank] for rank in ranks.tolist())


def _words(generator: numpy.random.Generator) -> list[str]:
    """The vocabulary, the most frequent word first."""
    pieces = vocabulary("bert_uncased.txt").decode().split()
    single = [word for word in pieces if word.isascii() and word.isalpha() and len(word) > 2]
    generator.shuffle(single)
    seconds = [generator.permutation(single) for _ in range(2)]
    double = [first + second for some in seconds for first, second in zip(single, some.tolist(), strict=True)]
    return (single + double)[:VOCABULARY]


async def fill(corpus: Corpus, data: Path) -> None:
    """The store with its files and chunks, as if they had been attached and indexed."""
    row = VectorStoreRow(
        id=STORE, created_at=0, last_active_at=int(time.time()), embedding_model="questions", dimensions=DIMENSIONS
    )
    database = connect(str(data / "treadle.sqlite3"))
    await database.start()
    index = SqliteIndex(data / "vectors.sqlite3")
    await index.start()
    try:
        await SqlVectorStores(database).create(LOCAL, row)
        names = corpus.names()
        for start in range(0, corpus.files, TOGETHER):
            some = range(start, min(start + TOGETHER, corpus.files))
            await asyncio.gather(*(_put(index, names[file], corpus.pieces(file)) for file in some))
        files = [_file(name, corpus.group(number)) for number, name in enumerate(names)]
        await SqlStoreFiles(database).add_ready(LOCAL, STORE, files)
    finally:
        await index.close()
        await database.close()


async def _put(index: SqliteIndex, name: str, pieces: list[IndexedChunk]) -> None:
    where = Collection(LOCAL.tenant, STORE, DIMENSIONS)
    # Where a chunk stands is in its text, so that a client can tell which one it was given.
    for piece in pieces:
        piece.chunk.text = f"{name}/{piece.chunk.number} {piece.chunk.text}"
    await index.add(where, name, pieces)
    await index.publish(where, name)


def _file(name: str, group: int) -> ReadyDocument:
    attributes: dict[str, str | float | bool] = {"group": group, "language": "en", "draft": False}
    return ReadyDocument(
        file=name, document=name, filename=f"{name}.txt", attributes=attributes, usage_bytes=0, created_at=0
    )


@dataclass(frozen=True)
class Round:
    """What searches one after the other took, each in milliseconds."""

    p50: float
    p95: float
    cpu: float


class Asker:
    """Asks the server of a process."""

    def __init__(self, process: Process, port: int) -> None:
        self._process = process
        self._connection = Connection(port)
        self._port = port

    async def search(self, question: str, filters: dict[str, Any], mode: str = "hybrid") -> list[dict[str, Any]]:
        return await _search(self._connection, question, filters, mode)

    async def round(self, questions: list[str], filters: dict[str, Any]) -> Round:
        taken = []
        before = self._process.cpu_ms()
        for question in questions:
            begun = time.perf_counter()
            found = await self.search(question, filters)
            taken.append((time.perf_counter() - begun) * 1000)
            if len(found) != LIMIT:
                raise RuntimeError(f"{len(found)} hits")
        spent = (self._process.cpu_ms() - before) / len(questions)
        taken.sort()
        return Round(statistics.median(taken), taken[int(0.95 * (len(taken) - 1))], spent)

    async def rate(self, questions: list[str], together: int) -> float:
        """Searches per second."""
        left = iter(questions)

        async def worker() -> None:
            connection = Connection(self._port)
            for question in left:
                await _search(connection, question, HALF, "hybrid")
            connection.close()

        begun = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(together)))
        return len(questions) / (time.perf_counter() - begun)


async def _search(connection: Connection, question: str, filters: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    body = {"query": question, "filters": filters, "max_num_results": LIMIT, "search_mode": mode}
    status, answer = await connection.post(f"/v1/vector_stores/{STORE}/search", body)
    if status != 200:
        raise RuntimeError(answer.decode())
    found: list[dict[str, Any]] = json.loads(answer)["data"]
    return found


async def lost(asker: Asker, corpus: Corpus, questions: list[str]) -> float:
    """The share of the nearest chunks that searches by meaning do not find."""
    missed = 0
    for question in questions:
        found = await asker.search(question, HALF, "vector")
        places = {hit["content"][0]["text"].split(" ", 1)[0] for hit in found}
        missed += len(corpus.nearest(question, GROUPS // 2) - places)
    return missed / LIMIT / len(questions)


def measure(
    quick: bool, *, chunks: int = 0, files: int = 0, words: int = 120, data: Path | None = None
) -> tuple[list[Figure], list[str]]:
    """The figures, and what is worth knowing besides. `quick`: few chunks, and no wall times, which are noise then.
    `data`: a folder that is kept, and used again as it is."""
    chunks = chunks or (10_000 if quick else 100_000)
    corpus = Corpus(chunks, files or chunks // 10, words)
    with tempfile.TemporaryDirectory() as folder:
        place = data or Path(folder)
        begun = time.perf_counter()
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "vectors.sqlite3").exists():
            asyncio.run(fill(corpus, place))
        notes = [f"search: {chunks:,} chunks put into the index in {time.perf_counter() - begun:.0f} s"]
        return asyncio.run(_figures(corpus, place, 1 if quick else 5, notes)), notes


def product_ms() -> float:
    """How long the plain product takes on this machine: mostly the speed of its memory."""
    vectors = numpy.full((100_000, DIMENSIONS), 0.05, dtype=numpy.float32)
    taken = []
    for _ in range(25):
        begun = time.perf_counter()
        vectors @ vectors[0]
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


async def _figures(corpus: Corpus, data: Path, rounds: int, notes: list[str]) -> list[Figure]:
    """Times are scaled to the machine that the budgets are for."""
    before = product_ms()
    figures = await _measured(corpus, data, rounds, notes)
    after = product_ms()
    scale = PRODUCT_MS / statistics.mean((before, after))
    notes.append(f"search: the plain product takes {before:.1f} and {after:.1f} ms here; times above x {scale:.2f}")
    return [
        Figure(figure.name, figure.value * (scale if figure.unit == "ms" else 1.0), figure.budget, figure.unit)
        for figure in figures
    ]


async def _measured(corpus: Corpus, data: Path, rounds: int, notes: list[str]) -> list[Figure]:
    figures: list[Figure] = []
    with upstream() as (_, url):
        for kind, model in ALIAS.items():
            if kind == "embedded" and not installed():
                notes.append("search, embedded: not measured, because the embedding model is not installed")
                continue
            with server(url, data, {"TREADLE_ALIASES__QUESTIONS": model}) as (process, port):
                figures += await _of_server(Asker(process, port), corpus, kind, rounds, notes)
                figures.append(Figure(f"memory of searching, {kind}", process.rss_mb(), MEMORY_MB, "MB"))
    return figures


async def _of_server(asker: Asker, corpus: Corpus, kind: str, rounds: int, notes: list[str]) -> list[Figure]:
    figures: list[Figure] = []
    begun = time.perf_counter()
    await asker.search("what the first search loads", HALF)
    notes.append(f"search, {kind}: the first one took {(time.perf_counter() - begun) * 1000:.0f} ms")
    await asker.round(corpus.questions(50), HALF)
    for filters, left in ((HALF, "half of the files"), (FEW, "few files")):
        done = [await asker.round(corpus.questions(200), filters) for _ in range(rounds)]
        p50, p95, cpu = (statistics.median(getattr(one, name) for one in done) for name in ("p50", "p95", "cpu"))
        notes.append(f"search, {kind}, {left}: p50 {p50:.1f} ms, p95 {p95:.1f} ms, {cpu:.1f} ms of CPU")
        if filters is HALF:
            figures.append(Figure(f"CPU of a search, {kind}", cpu, CPU_MS[kind], "ms"))
        if filters is HALF and rounds > 1:
            figures.append(Figure(f"search, {kind}, p50", p50, P50_MS, "ms"))
            figures.append(Figure(f"search, {kind}, p95", p95, P95_MS, "ms"))
    notes.append(f"search, {kind}: {await asker.rate(corpus.questions(200), 8):.0f} a second, 8 at once")
    if kind == "scripted":
        missed = await lost(asker, corpus, corpus.questions(50))
        figures.append(Figure(f"share of the {LIMIT} nearest not found", missed, LOST, ""))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=0, help="a tenth of the chunks unless given")
    parser.add_argument("--words", type=int, default=120, help="of each chunk")
    parser.add_argument("--data", type=Path, help="a folder that is kept, and used again as it is")
    options = parser.parse_args()
    figures, notes = measure(False, **vars(options))
    for figure in figures:
        print(f"{figure.name:38} {figure.value:8.2f} {figure.unit:2}  budget {figure.budget:g}")
    print(*notes, sep="\n")


if __name__ == "__main__":
    main()
