"""The index in its plainest form: dictionaries and loops. It says what every other one has to do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import mul

import msgspec

from treadle import ports
from treadle.ports import Chunk, Collection, Hit, IndexedChunk, Place
from treadle.retrieval import bm25
from treadle.retrieval.checks import check_chunks, check_vector, unequal
from treadle.retrieval.words import query_words, words

_DIGITS = 6
"""Scores are rounded before they order anything: smaller differences mean nothing and differ between machines."""


class _File(msgspec.Struct):
    chunks: dict[int, IndexedChunk] = {}
    published: bool = False


class _Store(msgspec.Struct):
    dimensions: int
    files: dict[str, _File] = {}


class InMemoryIndex(ports.VectorIndex):
    """A `VectorIndex` for tests and for servers that keep nothing."""

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str], _Store] = {}

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        check_chunks(collection, chunks)
        store = self._find(collection) or _Store(collection.dimensions)
        self._stores[collection.tenant, collection.store] = store
        filled = store.files.setdefault(file, _File())
        filled.published = False
        filled.chunks.update((indexed.chunk.number, indexed) for indexed in chunks)

    async def publish(self, collection: Collection, file: str) -> int:
        store = self._find(collection)
        if store is None or file not in store.files:
            return 0
        published = store.files[file]
        published.published = True
        return sum(
            len(one.chunk.text.encode("utf-8", "replace")) + 4 * len(one.vector) for one in published.chunks.values()
        )

    async def remove(self, collection: Collection, file: str) -> None:
        store = self._find(collection)
        if store is not None:
            store.files.pop(file, None)

    async def drop(self, collection: Collection) -> None:
        self._stores.pop((collection.tenant, collection.store), None)

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        check_vector(collection, vector)
        length = math.hypot(*vector) or 1.0
        return _best(
            [
                Hit(file, one.chunk.number, sum(map(mul, one.vector, vector)) / length)
                for file, one in self._published(collection)
                if files is None or file in files
            ],
            limit,
        )

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        everything = [(file, one.chunk, Counter(words(one.chunk.text))) for file, one in self._published(collection)]
        mean = sum(counts.total() for _, _, counts in everything) / max(len(everything), 1)
        holding = {word: sum(word in counts for _, _, counts in everything) for word in query_words(text)}
        rarities = {
            word: bm25.rarity(len(everything), holding[word])
            for word in bm25.telling(list(holding), len(everything), holding)
        }
        hits = []
        for file, chunk, counts in everything:
            found = [
                bm25.weight(rarity, counts[word], counts.total(), mean)
                for word, rarity in rarities.items()
                if counts[word]
            ]
            if found and (files is None or file in files):
                hits.append(Hit(file, chunk.number, sum(found)))
        return _best(hits, limit)

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        there = {(name, one.chunk.number): one.chunk for name, one in self._published(collection)}
        return [there.get(place) for place in places]

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        there = [one for name, one in self._published(collection) if name == file and one.chunk.number >= start]
        return sorted(there, key=lambda one: one.chunk.number)[:limit]

    def _find(self, collection: Collection) -> _Store | None:
        store = self._stores.get((collection.tenant, collection.store))
        if store is not None and store.dimensions != collection.dimensions:
            raise unequal(collection, store.dimensions)
        return store

    def _published(self, collection: Collection) -> Iterator[tuple[str, IndexedChunk]]:
        store = self._find(collection)
        for name, file in store.files.items() if store is not None else ():
            if file.published:
                for indexed in file.chunks.values():
                    yield name, indexed


def _best(hits: list[Hit], limit: int) -> list[Hit]:
    for hit in hits:
        hit.score = round(hit.score, _DIGITS)
    return sorted(hits, key=lambda hit: (-hit.score, hit.file, hit.number))[:limit]
