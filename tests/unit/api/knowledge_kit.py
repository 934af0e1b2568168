"""Small stand-ins for the outside of vector stores: an embedding model, documents, an index in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

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
from treadle.errors import InvalidRequest, NotFound, UnreadableFile, UnsupportedFile
from treadle.ids import new_id
from treadle.models.router import ModelRouter
from treadle.ports import (
    Chunk,
    ChunkRules,
    Collection,
    Embedding,
    FilePage,
    FileRow,
    Hit,
    IndexedChunk,
    Order,
    Place,
)
from treadle.scope import LOCAL, Scope
from treadle.store.ingestion import SqlIngestionQueue
from treadle.store.sqlite import Sqlite
from treadle.store.vector_files import SqlStoreFiles
from treadle.store.vector_stores import SqlVectorStores
from treadle.wire.vector_stores import StaticRules

EMBEDDER = "local/words"
DIMENSIONS = 8


class WordEmbedder:
    """Texts with the same words are near each other. `before` runs before each call: it may wait, or raise."""

    dimensions = DIMENSIONS

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.before: Callable[[Sequence[str]], None] = lambda _: None
        self.gate: asyncio.Event | None = None

    async def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> Embedding:
        size = self.dimensions if dimensions is None else dimensions
        if size > self.dimensions:
            raise InvalidRequest("too many", param="dimensions")
        self.calls.append(list(texts))
        self.before(texts)
        if self.gate is not None:
            await self.gate.wait()
        return Embedding([self._vector(text, size) for text in texts], tokens=1)

    @staticmethod
    def _vector(text: str, size: int) -> list[float]:
        vector = [0.01] * size
        for word in text.lower().split():
            vector[sum(word.encode()) % size] += 1.0
        return vector


class MemoryFiles:
    """Files and their bytes, all of one scope unless they are `given` to another."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], FileRow] = {}
        self.bytes: dict[str, bytes] = {}

    def put(self, text: str, name: str = "a.txt", scope: Scope = LOCAL) -> str:
        row = FileRow(id=new_id("file"), filename=name, purpose="assistants", bytes=len(text), created_at=1)
        self.rows[scope.owner, row.id] = row
        self.bytes[row.id] = text.encode()
        return row.id

    async def add(self, scope: Scope, row: FileRow) -> None:
        self.rows[scope.owner, row.id] = row

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, FileRow]:
        return {name: self.rows[scope.owner, name] for name in ids if (scope.owner, name) in self.rows}

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order, purpose: str | None) -> FilePage:
        raise NotImplementedError

    async def delete(self, scope: Scope, file_id: str) -> bool:
        return self.rows.pop((scope.owner, file_id), None) is not None


class MemoryBlobs:
    def __init__(self, files: MemoryFiles) -> None:
        self._files = files

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> int:
        raise NotImplementedError

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        if key not in self._files.bytes:
            raise NotFound("no such bytes")
        yield self._files.bytes[key]

    async def delete(self, key: str) -> None:
        self._files.bytes.pop(key, None)


class LineExtractor:
    """Each line of a document is a chunk, in a section if the line says `section: text`. Documents that are called
    `unsupported` or `broken` are."""

    async def chunks(
        self, source: AsyncIterator[bytes], filename: str, rules: ChunkRules
    ) -> AsyncIterator[list[Chunk]]:
        if filename.startswith("unsupported"):
            raise UnsupportedFile("Nobody can read this.")
        if filename.startswith("broken"):
            raise UnreadableFile("This is broken.")
        if filename.startswith("bug"):
            raise ZeroDivisionError
        lines = [line for line in (await self.text(source, filename, 10**9)).splitlines() if line]
        for start in range(0, len(lines), 3):
            yield [self._chunk(start + at, line) for at, line in enumerate(lines[start : start + 3])]

    @staticmethod
    def _chunk(number: int, line: str) -> Chunk:
        section, _, text = line.rpartition(": ")
        return Chunk(number, text, section=section or None)

    async def text(self, source: AsyncIterator[bytes], filename: str, limit: int) -> str:
        return b"".join([part async for part in source]).decode()[:limit]


@dataclass
class _Held:
    chunks: dict[int, IndexedChunk] = field(default_factory=dict)
    published: bool = False


class MemoryIndex:
    """The contract of an index, at its plainest. `before` runs before each change and may raise."""

    def __init__(self) -> None:
        self.files: dict[tuple[Collection, str], _Held] = {}
        self.before: Callable[[str], None] = lambda _: None

    def numbers(self, file: str) -> list[int]:
        """The numbers of all chunks of a file, published or not, over all collections."""
        return [number for (_, name), held in self.files.items() if name == file for number in sorted(held.chunks)]

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        self.before("add")
        held = self.files.setdefault((collection, file), _Held())
        assert not held.published
        held.chunks |= {chunk.chunk.number: chunk for chunk in chunks}

    async def publish(self, collection: Collection, file: str) -> int:
        self.before("publish")
        held = self.files.setdefault((collection, file), _Held())
        held.published = True
        return sum(len(chunk.chunk.text) + 4 * len(chunk.vector) for chunk in held.chunks.values())

    async def remove(self, collection: Collection, file: str) -> None:
        self.before("remove")
        self.files.pop((collection, file), None)

    async def drop(self, collection: Collection) -> None:
        self.before("drop")
        for key in [key for key in self.files if key[0] == collection]:
            del self.files[key]

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        self.before("nearest")

        def cosine(chunk: IndexedChunk) -> float:
            return sum(a * b for a, b in zip(chunk.vector, vector, strict=True))

        return self._best(collection, cosine, files, limit)

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        self.before("matching")
        words = set(text.lower().split())

        def common(chunk: IndexedChunk) -> float:
            return float(len(words & set(chunk.chunk.text.lower().split())))

        return [hit for hit in self._best(collection, common, files, limit) if hit.score > 0]

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        self.before("chunks")
        found: list[Chunk | None] = []
        for file, number in places:
            held = self.files.get((collection, file))
            there = held is not None and held.published and number in held.chunks
            found.append(held.chunks[number].chunk if held is not None and there else None)
        return found

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        held = self.files.get((collection, file))
        if held is None or not held.published:
            return []
        return [held.chunks[number] for number in sorted(held.chunks) if number >= start][:limit]

    def _best(
        self,
        collection: Collection,
        score: Callable[[IndexedChunk], float],
        files: frozenset[str] | None,
        limit: int,
    ) -> list[Hit]:
        hits = [
            Hit(name, chunk.chunk.number, score(chunk))
            for (held_in, name), held in self.files.items()
            if held_in == collection and held.published and (files is None or name in files)
            for chunk in held.chunks.values()
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.file, hit.number))[:limit]


class WordReranker:
    """The share of the query's words that a text holds."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, list[str]]] = []

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        self.calls.append((model, query, list(texts)))
        words = query.lower().split()
        return [sum(word in text.lower().split() for word in words) / len(words) for text in texts]


class Knowledge:
    """Vector stores over a database, with everything else of the above."""

    def __init__(self, database: Sqlite, router: ModelRouter | None = None) -> None:
        self.now = time.time()
        self.embedder = WordEmbedder()
        self.router = router or ModelRouter({}, {EMBEDDER: self.embedder})
        self.uploads = MemoryFiles()
        self.blobs = MemoryBlobs(self.uploads)
        self.index = MemoryIndex()
        self.vectors = TextVectors(EmbeddingService(self.router))
        self.rows, self.files = SqlVectorStores(database), SqlStoreFiles(database)
        self.queue = SqlIngestionQueue(database)
        self.ingestion = self.process()
        attachments = Attachments(
            self.files,
            self.uploads,
            self.ingestion,
            self.router,
            rules=StaticRules(max_chunk_size_tokens=800, chunk_overlap_tokens=400),
            wait_seconds=10.0,
        )
        self.stores = VectorStoreService(
            self.rows, attachments, self.index, self.vectors, self.router, embedding_model=EMBEDDER
        )
        self.attached = VectorFileService(self.rows, self.files, attachments, self.index)
        self.batches = FileBatchService(self.rows, self.files, attachments)
        self.reranker = WordReranker()
        self.passages = PassageService(self.rows, self.index, self.vectors, self.reranker, clock=lambda: self.now)
        self.search = SearchService(self.passages, self.router)
        self.chunks = VectorIoService(self.rows, self.files, self.index, self.passages)

    def process(self, **rules: object) -> Ingestion:
        """Workers as in one more process."""
        given: dict[str, object] = {"workers": 2, "embedding_batch": 4, "waits": (0.0, 0.0), "poll_seconds": 0.05}
        return Ingestion(
            self.queue,
            self.blobs,
            LineExtractor(),
            self.vectors,
            self.index,
            ContextWriter(self.router, seconds=5.0),
            IngestionRules(**(given | rules)),  # type: ignore[arg-type] # test data
        )
