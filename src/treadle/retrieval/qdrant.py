"""The index in Qdrant: for millions of chunks, with the server's own approximate search and sparse vectors.

All stores whose vectors have the same length share one Qdrant collection and are told apart by their payload, as Qdrant
advises: a collection for each store would cost memory and files for each. Weights of words are BM25 with two
differences: how rare a word is counts over all stores that share the collection, and the usual length of a chunk is
assumed instead of measured. So weights are comparable within a search, not between engines.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException

from treadle import ports
from treadle.errors import StorageFault
from treadle.ports import Chunk, Collection, Hit, IndexedChunk, Place
from treadle.retrieval import bm25
from treadle.retrieval.checks import check_chunks, check_vector, storable, unequal
from treadle.retrieval.words import query_words, words

SECONDS = 60
"""How long one request to the server may take."""

USUAL_LENGTH = 250
"""Words of a chunk of 400 tokens: what BM25 takes for the mean."""

_STORES = "treadle_stores"
"""The Qdrant collection that knows the length of each store's vectors."""

_DENSE, _WORDS = "dense", "words"
_DIGITS = 6
"""Scores are rounded before they order anything: smaller differences mean nothing."""

_MORE = 32
"""Hits that are asked for beyond the limit, to see where a tie at its end stops."""

_MOST = 4096
"""Hits that are asked for at most, however long a tie is."""

_BATCH = 256
"""Points that are sent, or read, at a time."""

_NAMES = uuid.UUID("5f0c3d52-6b7e-4f0e-9d0a-2b9a4c1f7e21")


class QdrantIndex(ports.VectorIndex):
    """A `VectorIndex` in a Qdrant server at `location`, an address, with `key` if it wants one. For tests there is
    `:memory:`, or a folder: then the client itself searches, in plain Python. `exact` compares with every vector
    instead of following the server's graph.

    A search while a file is published may see a part of it: the server changes points one after the other.
    """

    def __init__(self, location: str, *, key: str = "", exact: bool = False) -> None:
        self._location, self._key, self._exact = location, key, exact
        self._remote = location.startswith(("http://", "https://"))
        self._client: AsyncQdrantClient | None = None
        self._ready: set[Collection] = set()
        """Those whose vectors are known to have the right length, and to have a Qdrant collection."""

    async def start(self) -> None:
        """StorageFault if the server cannot be used."""
        if self._remote:
            self._client = AsyncQdrantClient(
                url=self._location, api_key=self._key or None, timeout=SECONDS, check_compatibility=False
            )
        elif self._location == ":memory:":
            self._client = AsyncQdrantClient(location=":memory:")
        else:
            self._client = AsyncQdrantClient(path=self._location)
        async with self._using() as client:
            await self._make(client, _STORES, {_DENSE: models.VectorParams(size=1, distance=models.Distance.DOT)}, {})

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        check_chunks(collection, chunks)
        async with self._using() as client:
            await self._prepare(client, collection)
            await client.set_payload(_name(collection), {"published": False}, _of(collection, file=file))
            for start in range(0, len(chunks), _BATCH):
                points = [_point(collection, file, indexed) for indexed in chunks[start : start + _BATCH]]
                await client.upsert(_name(collection), points)

    async def publish(self, collection: Collection, file: str) -> int:
        async with self._using() as client:
            if not await self._there(client, collection):
                return 0
            await client.set_payload(_name(collection), {"published": True}, _of(collection, file=file))
            size, place = 0, None
            while True:
                points, place = await client.scroll(
                    _name(collection), _of(collection, file=file), _BATCH, offset=place, with_payload=["bytes"]
                )
                size += sum(int((point.payload or {})["bytes"]) for point in points)
                if place is None:
                    return size

    async def remove(self, collection: Collection, file: str) -> None:
        async with self._using() as client:
            if await self._there(client, collection):
                await client.delete(_name(collection), models.FilterSelector(filter=_of(collection, file=file)))

    async def drop(self, collection: Collection) -> None:
        async with self._using() as client:
            self._ready.discard(collection)
            dimensions = await _dimensions(client, collection)
            if dimensions is None:
                return
            known = Collection(collection.tenant, collection.store, dimensions)
            self._ready.discard(known)
            if await client.collection_exists(_name(known)):
                await client.delete(_name(known), models.FilterSelector(filter=_of(known)))
            await client.delete(_STORES, models.PointIdsList(points=[_store_id(collection)]))

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        check_vector(collection, vector)
        length = sum(value * value for value in vector) ** 0.5 or 1.0
        return await self._search(collection, [value / length for value in vector], _DENSE, files, limit)

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        wanted = sorted({_index(word) for word in query_words(text)})
        if not wanted:
            return []
        query = models.SparseVector(indices=wanted, values=[1.0] * len(wanted))
        hits = await self._search(collection, query, _WORDS, files, limit)
        return [hit for hit in hits if hit.score > 0]

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        ids = [_point_id(collection, place) for place in places]
        async with self._using() as client:
            if not await self._there(client, collection):
                return [None] * len(places)
            points = await client.retrieve(_name(collection), ids)
        there = {point.id: point.payload for point in points if point.payload and point.payload["published"]}
        return [_chunk(there[one]) if one in there else None for one in ids]

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        async with self._using() as client:
            if not await self._there(client, collection):
                return []
            points, _ = await client.scroll(
                _name(collection),
                _of(collection, files=frozenset({file}), start=start),
                limit,
                order_by="number",
                with_vectors=[_DENSE],
            )
        return [IndexedChunk(_chunk(point.payload or {}), _dense(point.vector)) for point in points]

    async def _search(
        self,
        collection: Collection,
        query: list[float] | models.SparseVector,
        using: str,
        files: frozenset[str] | None,
        limit: int,
    ) -> list[Hit]:
        async with self._using() as client:
            if not await self._there(client, collection):
                return []

            async def ask(count: int) -> list[Hit]:
                found = await client.query_points(
                    _name(collection),
                    query=query,
                    using=using,
                    query_filter=_of(collection, files=files, published=True),
                    limit=count,
                    with_payload=["file", "number"],
                    search_params=models.SearchParams(exact=self._exact) if using == _DENSE else None,
                )
                return [_hit(point) for point in found.points]

            return await _ranked(ask, limit)

    async def _there(self, client: AsyncQdrantClient, collection: Collection) -> bool:
        """Whether the store was begun. InvalidRequest if its vectors have another length."""
        if collection in self._ready:
            return True
        dimensions = await _dimensions(client, collection)
        if dimensions is None:
            return False
        if dimensions != collection.dimensions:
            raise unequal(collection, dimensions)
        return await client.collection_exists(_name(collection))

    async def _prepare(self, client: AsyncQdrantClient, collection: Collection) -> None:
        if not await self._there(client, collection):
            await self._make(
                client,
                _name(collection),
                {_DENSE: models.VectorParams(size=collection.dimensions, distance=models.Distance.DOT)},
                {_WORDS: models.SparseVectorParams(modifier=models.Modifier.IDF)},
            )
            payload = {"dimensions": collection.dimensions}
            point = models.PointStruct(id=_store_id(collection), vector={_DENSE: [1.0]}, payload=payload)
            await client.upsert(_STORES, [point])
        self._ready.add(collection)

    async def _make(
        self,
        client: AsyncQdrantClient,
        name: str,
        dense: dict[str, models.VectorParams],
        sparse: dict[str, models.SparseVectorParams],
    ) -> None:
        if await client.collection_exists(name):
            return
        try:
            await client.create_collection(name, dense, sparse)
        except (ApiException, ValueError):
            if not await client.collection_exists(name):  # nobody else has made it just now
                raise
        if self._remote and sparse:  # the in-process engine has no such indexes, and says so
            tenant = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
            await client.create_payload_index(name, "store", tenant)
            await client.create_payload_index(name, "file", models.PayloadSchemaType.KEYWORD)
            await client.create_payload_index(name, "number", models.PayloadSchemaType.INTEGER)

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[AsyncQdrantClient]:
        """The client. Its faults are StorageFaults that tell their kind, and no data."""
        if self._client is None:
            raise StorageFault("The index is not open.")
        try:
            yield self._client
        except (ApiException, QdrantException, httpx.HTTPError) as error:
            status = getattr(error, "status_code", None)
            raise StorageFault(f"The index's server failed ({status or type(error).__name__}).") from error


async def _ranked(ask: Callable[[int], Awaitable[list[Hit]]], limit: int) -> list[Hit]:
    """The best hits, equal scores by file and number. The server breaks ties as it likes, so a tie that goes on at the
    end of what it gave is followed to its end."""
    count = limit + _MORE
    while True:
        hits = await ask(count)
        hits.sort(key=lambda hit: (-hit.score, hit.file, hit.number))
        if len(hits) < count or hits[-1].score < hits[limit - 1].score or count >= _MOST:
            return hits[:limit]
        count = min(4 * count, _MOST)


async def _dimensions(client: AsyncQdrantClient, collection: Collection) -> int | None:
    """The length of a store's vectors, if it was begun."""
    found = await client.retrieve(_STORES, [_store_id(collection)])
    return int((found[0].payload or {})["dimensions"]) if found else None


def _name(collection: Collection) -> str:
    return f"treadle_{collection.dimensions}"


def _key(collection: Collection) -> str:
    return f"{len(collection.tenant)}:{collection.tenant}:{collection.store}"


def _store_id(collection: Collection) -> str:
    return str(uuid.uuid5(_NAMES, _key(collection)))


def _of(
    collection: Collection,
    *,
    file: str | None = None,
    files: frozenset[str] | None = None,
    start: int | None = None,
    published: bool = False,
) -> models.Filter:
    """Points of a collection: of one file, published or not; or published ones of some files."""
    must: list[models.Condition] = [models.FieldCondition(key="store", match=models.MatchValue(value=_key(collection)))]
    if file is not None:
        must.append(models.FieldCondition(key="file", match=models.MatchValue(value=file)))
    if files is not None:
        must.append(models.FieldCondition(key="file", match=models.MatchAny(any=list(files))))
    if start is not None:
        must.append(models.FieldCondition(key="number", range=models.Range(gte=start)))
    if published or start is not None:
        must.append(models.FieldCondition(key="published", match=models.MatchValue(value=True)))
    return models.Filter(must=must)


def _point(collection: Collection, file: str, indexed: IndexedChunk) -> models.PointStruct:
    chunk, text = indexed.chunk, storable(indexed.chunk.text)
    vectors: dict[str, Any] = {_DENSE: indexed.vector}
    weights: dict[int, float] = {}
    found = words(text)
    counts: dict[str, int] = {}
    for word in found:
        counts[word] = counts.get(word, 0) + 1
    for word, count in counts.items():
        weights[_index(word)] = bm25.weight(1.0, count, len(found), USUAL_LENGTH)
    if weights:
        vectors[_WORDS] = models.SparseVector(indices=list(weights), values=list(weights.values()))
    payload = {
        "store": _key(collection),
        "file": file,
        "number": chunk.number,
        "published": False,
        "text": text,
        "page": chunk.page,
        "section": None if chunk.section is None else storable(chunk.section),
        "bytes": len(text.encode()) + 4 * len(indexed.vector),
    }
    return models.PointStruct(id=_point_id(collection, (file, chunk.number)), vector=vectors, payload=payload)


def _point_id(collection: Collection, place: Place) -> str:
    file, number = place
    return str(uuid.uuid5(_NAMES, f"{_key(collection)}:{len(file)}:{file}:{number}"))


def _index(word: str) -> int:
    """A word's place in sparse vectors. Of 100,000 words about one shares its place with another."""
    return zlib.crc32(word.encode())


def _hit(point: models.ScoredPoint) -> Hit:
    payload = point.payload or {}
    return Hit(str(payload["file"]), int(payload["number"]), round(point.score, _DIGITS))


def _chunk(payload: dict[str, Any]) -> Chunk:
    return Chunk(
        number=payload["number"], text=payload["text"], page=payload.get("page"), section=payload.get("section")
    )


def _dense(vectors: object) -> list[float]:
    found = vectors.get(_DENSE) if isinstance(vectors, dict) else None
    return [float(value) for value in found] if isinstance(found, list) else []
