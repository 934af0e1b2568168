"""How well searches find what they should: hit@1, hit@10 and nDCG@10 by meaning, by words, and by both.

    python bench/retrieval_quality.py [--pairs N] [--data FOLDER] [--json figures.json]

Questions and answers are the docstrings of Python's standard library: the first line asks, the rest, without that line,
answers. There are three sets:

- `docstrings`: each answer is a file of its own, and that file is to be found.
- `documents`: each file holds 20 answers one after the other, and the passage is to be found that holds the answer.
- `documents with headings`: the same in Markdown, each answer under its module's and its function's name.

Everything goes the way that users go: files are uploaded, attached to a vector store and indexed by the server's own
workers, then the store is searched, with the default settings and the embedded model. The server runs inside this
process (`treadle.client`). `--pairs` takes only so many of them, the same ones every time; `--data` keeps the
server's data, so that a second run only asks. Exit code 1 unless hybrid search has the best nDCG@10 on all sets.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import hashlib
import json
import math
import platform
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from treadle.client import async_client
from treadle.settings import Settings

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import VectorStoreSearchResponse

LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "tkinter", "ensurepip"}
"""Folders of the standard library whose docstrings are no documentation, or that not every Python has."""
QUESTION = range(20, 201)
ANSWER = 150
"""Characters of a question, and of an answer at least."""

EACH = 20
"""Answers in a document."""
LIMIT = 10
TOGETHER = 8

WAYS: dict[str, dict[str, object]] = {
    "vector": {"search_mode": "vector"},
    "keyword": {"search_mode": "keyword"},
    "hybrid": {},
    "hybrid, by ranks": {"search_mode": "hybrid", "ranking_options": {"ranker": "rrf"}},
}
"""What is asked for besides the question. `hybrid` leaves everything to the defaults."""

A = TypeVar("A")
R = TypeVar("R")
Place = tuple[str, str]
"""The name of a file, and a passage of it; where the file is to be found, no passage."""


@dataclass(frozen=True)
class Pair:
    name: str
    question: str
    answer: str


@dataclass(frozen=True)
class Scores:
    hit_1: float
    hit_10: float
    ndcg_10: float


def pairs(root: Path) -> list[Pair]:
    """The docstrings of the Python files below a folder that make a question and an answer; each question once."""
    found: dict[str, Pair] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if LEFT_OUT.intersection(parts) or parts[0].startswith("config-"):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
                question, answer = " ".join(first.split()), rest.strip()
                if len(question) in QUESTION and len(answer) >= ANSWER:
                    found.setdefault(question, Pair(".".join((*parts, node.name)), question, answer))
    return list(found.values())


def some(found: Sequence[Pair], count: int) -> list[Pair]:
    """That many pairs in an order that means nothing, nearly the same ones whatever the release of Python."""
    return sorted(found, key=lambda pair: hashlib.sha256(pair.name.encode()).digest())[:count]


def scores(ranks: Sequence[int | None]) -> Scores:
    """From the rank (from 1) of the first right answer to each question; None if none was among the first ten. Each
    question has one right answer (passages that repeat it count once), so nDCG is 1 / log2(rank + 1)."""
    first = [math.inf if rank is None or rank > LIMIT else rank for rank in ranks]
    count = max(len(first), 1)
    return Scores(
        sum(rank == 1 for rank in first) / count,
        sum(rank <= LIMIT for rank in first) / count,
        sum(1 / math.log2(rank + 1) for rank in first) / count,
    )


def rank_of(found: Sequence[Place], right: Iterable[Place]) -> int | None:
    wanted = set(right)
    return next((rank for rank, place in enumerate(found, start=1) if place in wanted), None)


def holding(passages: Sequence[str], answer: str) -> set[str]:
    """The passages that hold at least half of the answer's lines; where none does, those that hold most of them.
    Overlapping passages often hold the same answer."""
    lines = {line.strip() for line in answer.splitlines() if line.strip()}
    shares = {text: len(lines & {line.strip() for line in text.splitlines()}) / len(lines) for text in passages}
    enough = min(0.5, max(shares.values(), default=0.0))
    return {text for text, share in shares.items() if share >= enough > 0}


class Library:
    """A server with vector stores, through its client."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def store(self, name: str, files: dict[str, str]) -> str:
        """The id of the store of this name, made and filled if it is not there."""
        async for store in self._client.vector_stores.list():
            if store.name == name and store.file_counts.completed == len(files):
                return store.id
        store = await self._client.vector_stores.create(name=name)

        async def upload(item: tuple[str, str]) -> str:
            named = (item[0], item[1].encode("utf-8", "replace"))
            return (await self._client.files.create(file=named, purpose="assistants")).id

        ids = await _each(upload, list(files.items()))
        for start in range(0, len(ids), 500):
            batch = await self._client.vector_stores.file_batches.create(store.id, file_ids=ids[start : start + 500])
            while batch.status == "in_progress":
                await asyncio.sleep(0.5)
                batch = await self._client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id)
            if batch.file_counts.completed != batch.file_counts.total:
                raise RuntimeError(f"not all files could be indexed: {batch.file_counts}")
        return store.id

    async def passages(self, store: str) -> AsyncIterator[tuple[str, list[str]]]:
        """Each file of the store by its name, with its passages."""
        async for file in self._client.vector_stores.files.list(store, limit=100):
            name = (await self._client.files.retrieve(file.id)).filename
            content = self._client.vector_stores.files.content(file.id, vector_store_id=store)
            yield name, [part.text or "" async for part in content]

    async def search(self, store: str, questions: Sequence[str], way: str) -> list[list[VectorStoreSearchResponse]]:
        async def ask(question: str) -> list[VectorStoreSearchResponse]:
            page = await self._client.vector_stores.search(
                store, query=question, max_num_results=LIMIT, extra_body=WAYS[way]
            )
            return page.data

        return await _each(ask, questions)


async def _each(work: Callable[[A], Awaitable[R]], items: Sequence[A]) -> list[R]:
    """Some at a time; the results in order."""
    room = asyncio.Semaphore(TOGETHER)

    async def one(item: A) -> R:
        async with room:
            return await work(item)

    return await asyncio.gather(*map(one, items))


async def docstrings(library: Library, chosen: Sequence[Pair], ways: Iterable[str]) -> dict[str, Scores]:
    texts = {f"{n:04}.txt": pair.answer for n, pair in enumerate(chosen)}
    store = await library.store("docstrings", texts)
    result = {}
    for way in ways:
        found = await library.search(store, [pair.question for pair in chosen], way)
        # A file may have several passages; what counts is the order of the files.
        files = [list(dict.fromkeys((hit.filename, "") for hit in hits)) for hits in found]
        result[way] = scores([rank_of(names, [(file, "")]) for names, file in zip(files, texts, strict=True)])
    return result


def plain(chosen: Sequence[Pair]) -> str:
    return "\n\n".join(pair.answer for pair in chosen)


def headed(chosen: Sequence[Pair]) -> str:
    """The answers under headings; those of a module together, as they are in order."""
    lines, above = [], ""
    for pair in chosen:
        module, _, name = pair.name.rpartition(".")
        if module != above:
            lines.append(f"# {module}")
            above = module
        lines += [f"## {name}", pair.answer]
    return "\n\n".join(lines)


async def documents(
    library: Library,
    chosen: Sequence[Pair],
    ways: Iterable[str],
    *,
    name: str = "documents",
    written: Callable[[Sequence[Pair]], str] = plain,
    suffix: str = ".txt",
) -> dict[str, Scores]:
    groups = [chosen[start : start + EACH] for start in range(0, len(chosen), EACH)]
    texts = {f"{n:03}{suffix}": written(group) for n, group in enumerate(groups)}
    store = await library.store(name, texts)
    parts = {file: found async for file, found in library.passages(store)}
    print(f"{name}: {len(texts)} files in {sum(map(len, parts.values()))} passages", file=sys.stderr)
    right: list[list[Place]] = []
    for file, group in zip(texts, groups, strict=True):
        right += [[(file, text) for text in holding(parts[file], pair.answer)] for pair in group]
    result = {}
    for way in ways:
        found = await library.search(store, [pair.question for pair in chosen], way)
        places = [[(hit.filename, hit.content[0].text) for hit in hits] for hits in found]
        result[way] = scores([rank_of(*both) for both in zip(places, right, strict=True)])
    return result


SETS: dict[str, Callable[[Library, Sequence[Pair], Iterable[str]], Awaitable[dict[str, Scores]]]] = {
    "docstrings": docstrings,
    "documents": documents,
    "documents with headings": partial(documents, name="documents with headings", written=headed, suffix=".md"),
}


async def measure(
    chosen: Sequence[Pair], data: Path, ways: Sequence[str] = tuple(WAYS), sets: Sequence[str] = tuple(SETS)
) -> dict[str, dict[str, Scores]]:
    """The scores of each way of searching, by set."""
    found: dict[str, dict[str, Scores]] = {}
    async with async_client(Settings(data_dir=str(data))) as client:
        for name in sets:
            start = time.monotonic()
            found[name] = await SETS[name](Library(client), chosen, ways)
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return found


def table(found: dict[str, dict[str, Scores]]) -> str:
    lines = ["| Set | Search | hit@1 | hit@10 | nDCG@10 |", "| --- | --- | --: | --: | --: |"]
    for name, ways in found.items():
        lines += [f"| {name} | {way} | {s.hit_1:.3f} | {s.hit_10:.3f} | {s.ndcg_10:.3f} |" for way, s in ways.items()]
    return "\n".join(lines)


def hybrid_is_best(found: dict[str, dict[str, Scores]]) -> bool:
    return all(ways["hybrid"].ndcg_10 > max(ways["vector"].ndcg_10, ways["keyword"].ndcg_10) for ways in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures how well searches find what they should.")
    parser.add_argument("--pairs", type=int, metavar="N", help="only N questions and answers")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the server's data stays")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures are written besides")
    given = parser.parse_args()
    chosen = pairs(Path(sysconfig.get_paths()["stdlib"]))
    if given.pairs:
        chosen = some(chosen, given.pairs)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(chosen, given.data or Path(folder)))
    print(f"Python {platform.python_version()}, {len(chosen)} questions\n\n{table(found)}")
    if given.json:
        given.json.write_text(
            json.dumps({name: {way: asdict(s) for way, s in ways.items()} for name, ways in found.items()}, indent=1)
        )
    if not hybrid_is_best(found):
        print("hybrid search does not have the best nDCG@10 on all sets", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
