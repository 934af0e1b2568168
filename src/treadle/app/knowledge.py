"""Composition of knowledge: vector stores, what indexes their files and what searches them."""

from __future__ import annotations

from collections.abc import Callable

from treadle.api.attaching import Attachments
from treadle.api.contexts import ContextWriter
from treadle.api.embeddings import EmbeddingService
from treadle.api.file_batches import FileBatchService
from treadle.api.ingest import Ingestion, IngestionRules
from treadle.api.passages import PassageService
from treadle.api.search import SearchService
from treadle.api.vector_files import VectorFileService
from treadle.api.vector_io import VectorIoService
from treadle.api.vector_stores import VectorStoreService
from treadle.api.vectors import TextVectors
from treadle.app.files import FileStorage
from treadle.app.index import index_of
from treadle.app.plugins import OpenPlugins
from treadle.engine.fusion import RankingDefaults
from treadle.errors import InvalidRequest
from treadle.http.endpoints import Endpoint
from treadle.http.routes.vector_files import VectorFileRoutes
from treadle.http.routes.vector_io import VectorIoRoutes
from treadle.http.routes.vector_stores import VectorStoreRoutes
from treadle.models.rerank import RemoteReranker
from treadle.ports import PassageSearch, Router
from treadle.settings import Settings
from treadle.store.db import Database
from treadle.store.ingestion import SqlIngestionQueue
from treadle.store.vector_files import SqlStoreFiles
from treadle.store.vector_stores import SqlVectorStores
from treadle.wire.vector_stores import StaticRules


class Knowledge:
    """Made without I/O. `start` needs the open database and plug-ins; `stop` comes before they close, so that files
    which are being indexed are given back for another process."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        storage: FileStorage,
        router: Router,
        plugins: OpenPlugins,
        *,
        embedding_model: str,
        watched: Callable[[PassageSearch], PassageSearch],
    ) -> None:
        """`embedding_model` is the one for stores that name none; `watched` puts an observer around a search."""
        given = settings.knowledge
        rules = _sizes(settings)
        stores, files = SqlVectorStores(database), SqlStoreFiles(database)
        vectors = TextVectors(EmbeddingService(router))
        self._index = index = index_of(settings, plugins.index)
        self.extractor = plugins.extractor()
        self._ingestion = Ingestion(
            SqlIngestionQueue(database),
            storage.blobs,
            self.extractor,
            vectors,
            index,
            ContextWriter(router),
            IngestionRules(
                workers=given.workers,
                embedding_batch=given.embedding_batch,
                waits=[4.0**attempt for attempt in range(given.embedding_retries)],
            ),
        )
        attachments = Attachments(
            files,
            storage.rows,
            self._ingestion,
            router,
            rules=rules,
            default_model=settings.default_model,
            wait_seconds=given.wait_seconds,
        )
        passages = PassageService(
            stores,
            index,
            vectors,
            RemoteReranker(router),
            RankingDefaults(mode=given.search_mode, fusion=given.ranker, model=settings.rerank.model),
        )
        self.passages = watched(passages)
        self._stores = VectorStoreService(stores, attachments, index, vectors, router, embedding_model=embedding_model)
        self._files = VectorFileService(stores, files, attachments, index)
        self._batches = FileBatchService(stores, files, attachments)
        self._search = SearchService(self.passages, router, default_model=settings.default_model)
        self._chunks = VectorIoService(stores, files, index, passages)
        storage.service.on_delete(self._files.forget)

    def endpoints(self, max_body: int) -> list[Endpoint]:
        return [
            *VectorStoreRoutes(self._stores, self._search, max_body).endpoints(),
            *VectorFileRoutes(self._files, self._batches, max_body).endpoints(),
            *VectorIoRoutes(self._chunks, max_body).endpoints(),
        ]

    def start(self) -> None:
        self._ingestion.start()

    async def stop(self) -> None:
        await self._ingestion.stop()
        await self._index.close()


def _sizes(settings: Settings) -> StaticRules:
    size, overlap = settings.knowledge.chunk_tokens, settings.knowledge.chunk_overlap_tokens
    if overlap > size // 2:
        raise InvalidRequest(f"knowledge.chunk_overlap_tokens: at most half of chunk_tokens, here {size // 2}")
    return StaticRules(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap)
