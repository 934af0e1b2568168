"""Searching vector stores: the one path for the `file_search` tool, the REST search and OGX's chunk queries."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from treadle import ports
from treadle.api.listings import Listing, Listings
from treadle.api.store_access import usable_stores
from treadle.api.vectors import EmbeddingChoice, TextVectors
from treadle.engine.filters import checked, compile_filter
from treadle.engine.fusion import Ranking, RankingDefaults, Scored, best_of, blended, fused, kept, ranking
from treadle.errors import ServerError, StorageFault, UnknownModel
from treadle.ports import (
    Chunk,
    Collection,
    Hit,
    Passage,
    PassageQuery,
    Passages,
    Reranker,
    SearchableFile,
    VectorIndex,
    VectorStoreRow,
    VectorStores,
)
from treadle.scope import Scope

log = logging.getLogger("treadle.search")

ACTIVE_SECONDS = 60
"""A search notes that a store is in use if nobody did for this long."""

DEPTH = 100
"""Hits of each list that are put together, at least. What a list does not hold counts nothing there, so a list that is
too short loses hits that are middling in both: 50 found less (docs/retrieval.md), and 1,000 no more."""

RERANKED = 4
"""Hits that a reranker sees, as a multiple of those that are wanted."""

T = TypeVar("T")

Key = tuple[str, str, int]
"""Store, file and number of a chunk."""


class Found(msgspec.Struct):
    """A chunk that was found, with the file it is of."""

    store: str
    file: SearchableFile
    chunk: Chunk
    score: float


class FoundChunks(msgspec.Struct):
    """Best first; see `Passages` for `broken`."""

    found: list[Found]
    broken: dict[str, str]


class _Lists(msgspec.Struct):
    """What one store has for each query, by meaning and by words; empty lists for what the mode does not ask for."""

    collection: Collection
    listing: Listing
    nearest: list[list[Hit]]
    matching: list[list[Hit]]


class PassageService(ports.PassageSearch):
    """The `PassageSearch` port."""

    def __init__(
        self,
        stores: VectorStores,
        index: VectorIndex,
        vectors: TextVectors,
        reranker: Reranker,
        defaults: RankingDefaults | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self._index = index
        self._vectors = vectors
        self._reranker = reranker
        self._defaults = defaults or RankingDefaults()
        self._clock = clock
        self._listings = Listings(stores)

    async def check(self, scope: Scope, stores: Sequence[str], param: str) -> None:
        await usable_stores(self._stores, scope, stores, self._clock(), param)

    async def passages(self, scope: Scope, query: PassageQuery) -> Passages:
        chunks = await self.find(scope, query)
        return Passages(
            [
                Passage(
                    file_id=found.file.shown,
                    filename=found.file.filename,
                    score=found.score,
                    text=found.chunk.text,
                    attributes=found.file.attributes,
                    page=found.chunk.page,
                    section=found.chunk.section,
                    store=found.store,
                )
                for found in chunks.found
            ],
            chunks.broken,
        )

    async def find(self, scope: Scope, query: PassageQuery) -> FoundChunks:
        """What `passages` gives, by chunk."""
        order = ranking(query.ranking, query.mode, defaults=self._defaults)
        if query.filters is not None:
            checked(query.filters)
        ids = list(dict.fromkeys(query.stores))
        rows = await usable_stores(self._stores, scope, ids, self._clock(), "vector_store_ids")
        await self._touch(scope, rows)
        lists, broken = await self._search(scope, rows, query, order)
        by_query = [_fused(lists, number, order) for number in range(len(query.queries))]
        hits = by_query[0] if len(by_query) == 1 else best_of(by_query)
        if not order.neural:
            hits = kept(hits, order, query.limit)
        chunks, faults = await self._chunks(lists, hits[: query.limit * RERANKED])
        hits = [hit for hit in hits if hit.key in chunks]
        if order.neural:
            hits = kept(await self._reranked(hits, query.queries, order, chunks), order, query.limit)
        found = [
            Found(hit.key[0], lists[hit.key[0]].listing.files[hit.key[1]], chunks[hit.key], hit.score) for hit in hits
        ]
        return FoundChunks(found, broken | faults)

    async def _chunks(
        self, lists: dict[str, _Lists], hits: Sequence[Scored[Key]]
    ) -> tuple[dict[Key, Chunk], dict[str, str]]:
        """The chunks of the hits, without those that were removed since, and the stores that failed meanwhile."""
        keys: dict[str, list[Key]] = {}
        for hit in hits:
            keys.setdefault(hit.key[0], []).append(hit.key)
        results = await asyncio.gather(
            *(
                self._index.chunks(lists[store].collection, [(file, number) for _, file, number in of_store])
                for store, of_store in keys.items()
            ),
            return_exceptions=True,
        )
        given, broken = _sorted_out(list(keys), results)
        return {
            key: chunk
            for store, chunks in given.items()
            for key, chunk in zip(keys[store], chunks, strict=True)
            if chunk is not None
        }, broken

    async def _touch(self, scope: Scope, rows: Sequence[VectorStoreRow]) -> None:
        """Puts the expiry off. A database that only reads for the moment still lets people search."""
        now = int(self._clock())
        idle = [row.id for row in rows if row.last_active_at <= now - ACTIVE_SECONDS]
        if idle:
            try:
                await self._stores.touch(scope, idle, now)
            except StorageFault as fault:
                log.warning("a search could not note that vector stores are in use: %s", fault.message)

    async def _search(
        self, scope: Scope, rows: Sequence[VectorStoreRow], query: PassageQuery, order: Ranking
    ) -> tuple[dict[str, _Lists], dict[str, str]]:
        """All stores together, each embedding model asked once. If all fail, the fault of the first is raised."""
        embedded = {}
        if order.mode != "keyword":
            for row in rows:
                choice = EmbeddingChoice(row.embedding_model, row.dimensions, row.shortened)
                if choice not in embedded:
                    embedded[choice] = asyncio.create_task(self._vectors.embed(query.queries, choice))
        try:
            results = await asyncio.gather(
                *(self._search_one(scope, row, query, order, embedded) for row in rows), return_exceptions=True
            )
        finally:
            for task in embedded.values():
                task.cancel()
            await asyncio.gather(*embedded.values(), return_exceptions=True)
        return _sorted_out([row.id for row in rows], results)

    async def _search_one(
        self,
        scope: Scope,
        row: VectorStoreRow,
        query: PassageQuery,
        order: Ranking,
        embedded: dict[EmbeddingChoice, asyncio.Task[list[list[float]]]],
    ) -> _Lists:
        listing = await self._listings.of(scope, row)
        files = None if query.filters is None else await listing.passing(query.filters, compile_filter(query.filters))
        collection = self._stores.collection(scope, row)
        depth = max(DEPTH, query.limit * (RERANKED if order.neural else 1))
        by_words: list[asyncio.Task[list[Hit]]] = []
        if order.mode != "vector":
            # Words need no vectors, so they are looked for while the model still embeds.
            by_words = [
                asyncio.create_task(self._index.matching(collection, text, files=files, limit=depth))
                for text in query.queries
            ]
        try:
            nearest: list[list[Hit]] = []
            if order.mode != "keyword":
                vectors = await asyncio.shield(
                    embedded[EmbeddingChoice(row.embedding_model, row.dimensions, row.shortened)]
                )
                nearest = list(
                    await asyncio.gather(
                        *(self._index.nearest(collection, vector, files=files, limit=depth) for vector in vectors)
                    )
                )
            return _Lists(collection, listing, nearest, list(await asyncio.gather(*by_words)))
        finally:
            for task in by_words:
                task.cancel()
            await asyncio.gather(*by_words, return_exceptions=True)

    async def _reranked(
        self, hits: Sequence[Scored[Key]], queries: Sequence[str], order: Ranking, chunks: dict[Key, Chunk]
    ) -> list[Scored[Key]]:
        """The hits by a reranker's judgement of them, the best one over all queries."""
        if not hits:
            return []
        texts = [chunks[hit.key].text for hit in hits]
        try:
            scores = await asyncio.gather(*(self._reranker.rerank(order.model, query, texts) for query in queries))
        except UnknownModel as fault:
            fault.param = "ranking_options.model"
            raise
        return blended(hits, [max(given) for given in zip(*scores, strict=True)], order)


def _sorted_out(stores: Sequence[str], results: Sequence[T | BaseException]) -> tuple[dict[str, T], dict[str, str]]:
    """What the stores gave, and why others could not. If all failed, the fault of the first is raised."""
    given: dict[str, T] = {}
    faults: dict[str, ServerError] = {}
    for store, result in zip(stores, results, strict=True):
        if isinstance(result, ServerError):
            log.warning("vector store %s could not be searched: %s", store, result.message)
            faults[store] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            given[store] = result
    if faults and not given:
        raise next(iter(faults.values()))
    return given, {store: fault.message for store, fault in faults.items()}


def _fused(lists: dict[str, _Lists], number: int, order: Ranking) -> list[Scored[Key]]:
    """The hits of all stores for one query, put together once."""

    def merged(by_store: dict[str, list[list[Hit]]]) -> list[Scored[Key]]:
        found: list[Scored[Key]] = []
        for store, of_queries in by_store.items():
            files = lists[store].listing.files
            # Files that are missing there were removed, or are not completed yet.
            found += [
                Scored((store, hit.file, hit.number), hit.score)
                for hit in (of_queries[number] if of_queries else ())
                if hit.file in files
            ]
        # Lists come best first; only those of several stores have to be put in order.
        return found if len(by_store) == 1 else sorted(found, key=lambda hit: (-hit.score, hit.key))

    return fused(
        merged({store: found.nearest for store, found in lists.items()}),
        merged({store: found.matching for store, found in lists.items()}),
        order,
    )
