"""Chunks that come with their vectors, and chunks by query: OGX's `/v1/vector-io`.

Each such chunk is a file of its own in the index, under a name that no File can have, so that it can be replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

from treadle.api.passages import Found, PassageService
from treadle.api.store_access import missing_store, usable_store
from treadle.api.vectors import unit
from treadle.errors import InvalidRequest, UpstreamBadStream
from treadle.ids import plausible
from treadle.ports import (
    Chunk,
    Collection,
    IndexedChunk,
    PassageQuery,
    ReadyDocument,
    StoreFiles,
    VectorIndex,
    VectorStoreRow,
    VectorStores,
)
from treadle.scope import Scope
from treadle.wire.retrieval import Attributes, RankingOptions
from treadle.wire.vector_io import (
    ChunkMetadata,
    EmbeddedChunk,
    InsertChunks,
    QueryChunks,
    QueryParams,
    QueryResult,
    text_of,
)

_MARK = "#"
_TOGETHER = 8
"""Chunks that are put into the index at the same time."""


class VectorIoService:
    """The use cases of `/v1/vector-io`."""

    def __init__(
        self,
        stores: VectorStores,
        files: StoreFiles,
        index: VectorIndex,
        passages: PassageService,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self._files = files
        self._index = index
        self._passages = passages
        self._clock = clock

    async def insert(self, scope: Scope, request: InsertChunks) -> None:
        """A chunk whose id is there already is replaced. When it returns, all chunks are findable."""
        store = await usable_store(self._stores, scope, request.vector_store_id, self._clock())
        checked = [(chunk, _indexed(chunk, store, number)) for number, chunk in enumerate(request.chunks)]
        collection = self._stores.collection(scope, store)
        gate = asyncio.Semaphore(_TOGETHER)
        documents = await asyncio.gather(*(self._put(collection, *pair, gate) for pair in checked))
        if documents and not await self._files.add_ready(scope, store.id, documents):
            raise missing_store(store.id)

    async def query(self, scope: Scope, request: QueryChunks) -> QueryResult:
        store = await usable_store(self._stores, scope, request.vector_store_id, self._clock())
        params = request.params or QueryParams()
        ranking = params.ranking_options or RankingOptions()
        if params.score_threshold is not None and ranking.score_threshold is None:
            ranking.score_threshold = min(1.0, max(0.0, params.score_threshold))
        text = text_of(request.query)
        if not text:
            raise InvalidRequest("The query must not be empty.", param="query")
        query = PassageQuery(
            stores=[store.id],
            queries=[text],
            filters=params.filters,
            ranking=ranking,
            mode=params.mode,
            limit=params.max_chunks or 10,
        )
        results = await self._passages.find(scope, query)
        collection = self._stores.collection(scope, store)
        vectors = await asyncio.gather(*(self._vector(collection, found) for found in results.found))
        return QueryResult(
            chunks=[_shown(found, vector, store) for found, vector in zip(results.found, vectors, strict=True)],
            scores=[found.score for found in results.found],
        )

    async def _put(
        self, collection: Collection, given: EmbeddedChunk, chunk: IndexedChunk, gate: asyncio.Semaphore
    ) -> ReadyDocument:
        file, document = _name(given.chunk_id), _document(given)
        async with gate:
            await self._index.remove(collection, file)
            await self._index.add(collection, file, [chunk])
            usage = await self._index.publish(collection, file)
        source = given.chunk_metadata.source if given.chunk_metadata else None
        return ReadyDocument(
            file=file,
            document=document,
            filename=source or document,
            attributes=_attributes(given),
            usage_bytes=usage,
            created_at=int(self._clock()),
        )

    async def _vector(self, collection: Collection, found: Found) -> list[float]:
        number = found.chunk.number
        read = await self._index.read(collection, found.file.file, start=number, limit=1)
        return read[0].vector if read and read[0].chunk.number == number else []


def _indexed(given: EmbeddedChunk, store: VectorStoreRow, number: int) -> IndexedChunk:
    """The chunk as the index takes it. InvalidRequest for one that does not fit the store."""
    at = f"chunks[{number}]"
    if len(given.embedding) != store.dimensions:
        raise InvalidRequest(
            f"The vectors of this store have {store.dimensions} numbers, not {len(given.embedding)}.",
            param=f"{at}.embedding",
        )
    text = text_of(given.content)
    if not text.strip():
        raise InvalidRequest("A chunk needs text.", param=f"{at}.content")
    try:
        vector = unit(given.embedding)
    except UpstreamBadStream:
        raise InvalidRequest("A vector must not be zero.", param=f"{at}.embedding") from None
    return IndexedChunk(Chunk(0, text), vector)


def _name(chunk_id: str) -> str:
    """The chunk's name in the index."""
    return _MARK + (chunk_id if plausible(chunk_id) else hashlib.sha256(chunk_id.encode()).hexdigest()[:40])


def _document(given: EmbeddedChunk) -> str:
    named = given.metadata.get("document_id")
    if isinstance(named, str) and named:
        return named
    return (given.chunk_metadata.document_id if given.chunk_metadata else None) or given.chunk_id


def _attributes(given: EmbeddedChunk) -> Attributes:
    return {key: value for key, value in given.metadata.items() if value is not None}


def _shown(found: Found, vector: list[float], store: VectorStoreRow) -> EmbeddedChunk:
    file, number = found.file, found.chunk.number
    chunk_id = file.file.removeprefix(_MARK) if file.file.startswith(_MARK) else f"{file.file}-{number}"
    return EmbeddedChunk(
        content=found.chunk.text,
        chunk_id=chunk_id,
        metadata={**file.attributes},
        chunk_metadata=ChunkMetadata(chunk_id=chunk_id, document_id=file.shown, source=file.filename),
        embedding=vector,
        embedding_model=store.embedding_model,
        embedding_dimension=store.dimensions,
    )
