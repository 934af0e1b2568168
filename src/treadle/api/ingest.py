"""Indexing the files of vector stores, off the request path: workers that claim files, read, embed and publish them.

The rows are the truth: a worker may vanish at any moment, and whoever claims its file next begins from the start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from treadle.api.contexts import DOCUMENT_CHARACTERS, ContextWriter
from treadle.api.vectors import EmbeddingChoice, TextVectors
from treadle.api.watches import Watches
from treadle.errors import (
    Internal,
    NotFound,
    QuotaExceeded,
    ServerError,
    StorageFault,
    UnreadableFile,
    UnsupportedFile,
    UpstreamFault,
    UpstreamRefused,
)
from treadle.ids import new_id
from treadle.ports import Blobs, Chunk, ChunkRules, Extractor, IndexedChunk, IngestionJob, IngestionQueue, VectorIndex
from treadle.wire.vector_stores import Chunking, ContextualChunking, FileFault, StaticChunking

log = logging.getLogger("treadle.ingest")

LEASE_SECONDS = 60
ATTEMPTS = 5
"""Claims of one file that may end without a result, as when the process dies of it, before it is given up."""

_PAUSE = 2.0
"""Seconds until a worker that met a fault of the database or of our own goes on."""


class ClaimEnded(Exception):
    """The file is not this worker's any more: cancelled, removed, or taken up by another one."""


@dataclass(slots=True, kw_only=True)
class IngestionRules:
    """`waits`: seconds before each further try of an embedding that failed; `poll_seconds`: how often files are looked
    for that nobody in this process attached."""

    workers: int = 2
    embedding_batch: int = 32
    waits: Sequence[float] = (1.0, 4.0, 15.0)
    poll_seconds: float = 5.0


@dataclass(slots=True)
class _Work:
    """A claimed file on its way into the index."""

    job: IngestionJob
    chunks: int = 0


class Ingestion:
    """A pool of workers. `start` and `stop` belong to one event loop."""

    def __init__(
        self,
        queue: IngestionQueue,
        blobs: Blobs,
        extractor: Extractor,
        vectors: TextVectors,
        index: VectorIndex,
        contexts: ContextWriter,
        rules: IngestionRules | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._blobs = blobs
        self._extractor = extractor
        self._vectors = vectors
        self._index = index
        self._contexts = contexts
        self._rules = rules or IngestionRules()
        self._clock = clock
        self._woken = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self.watches = Watches()

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._worker(), name="treadle-ingest") for _ in range(self._rules.workers)]

    async def stop(self) -> None:
        """Gives running files back, so that another process can take them up at once."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = []

    def wake(self) -> None:
        self._woken.set()

    async def _worker(self) -> None:
        while True:
            try:
                self._woken.clear()
                job = await self._queue.claim(new_id("claim"), self._lease())
                if job is not None:
                    self._woken.set()  # where one file waits there may be more, for the other workers
                    await self._work(job)
                    continue
            except StorageFault as fault:
                log.warning("indexing has to wait: %s", fault.message)
                await asyncio.sleep(_PAUSE)
            except Exception:
                log.exception("indexing failed in a way that it should not")
                await asyncio.sleep(_PAUSE)
            await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._rules.poll_seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    def _lease(self) -> int:
        return int(self._clock()) + LEASE_SECONDS

    async def _work(self, job: IngestionJob) -> None:
        """Brings the file to an end, or gives it back when the worker is cancelled. What the database fails to note
        stays claimed until its lease has run out, and is then taken up again."""
        work = _Work(job)
        try:
            if job.attempt > ATTEMPTS:
                message = f"Indexing was begun {ATTEMPTS} times and always ended without a result."
                await self._fail(job, "server_error", message)
            else:
                await self._supervise(work)
        except asyncio.CancelledError:
            await self._queue.release(job.scope, job)
            raise
        except ClaimEnded:
            if await self._queue.abandoned(job.scope, job):
                await self._index.remove(job.collection, job.file)
        except StorageFault:
            raise
        except ServerError as fault:
            await self._fail(job, _code(fault), fault.message)
        except Exception:  # noqa: BLE001 -- a document may bring out any bug, and must not stop the others
            await self._fail(job, "server_error", Internal.logged(log, job.file).message)
        finally:
            self.watches.ended(job.collection.store, job.file)

    async def _supervise(self, work: _Work) -> None:
        """Runs the work and keeps the claim meanwhile. Raises what the work raises, or ClaimEnded."""
        task = asyncio.create_task(self._index_file(work))
        try:
            while not (await asyncio.wait({task}, timeout=LEASE_SECONDS / 4))[0]:
                await self._keep_claim(work)
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _keep_claim(self, work: _Work) -> None:
        if not await self._queue.renew(work.job.scope, work.job, self._lease(), work.chunks):
            raise ClaimEnded

    async def _index_file(self, work: _Work) -> None:
        job = work.job
        await self._index.remove(job.collection, job.file)  # what an earlier attempt left
        situate = await self._situation(job)
        pending: list[Chunk] = []
        size = self._rules.embedding_batch
        source = self._blobs.read(job.file)
        batches = self._extractor.chunks(source, job.filename, rules_of(job.chunking))
        try:
            async for batch in batches:
                pending += batch
                while len(pending) >= size:
                    await self._add(work, await situate(pending[:size]))
                    del pending[:size]
        finally:
            await _close(batches)
            await _close(source)
        if pending:
            await self._add(work, await situate(pending))
        if not work.chunks:
            raise UnreadableFile("The document has no text.")
        await self._keep_claim(work)
        usage = await self._index.publish(job.collection, job.file)
        if not await self._queue.complete(job.scope, job, usage, work.chunks):
            raise ClaimEnded

    async def _situation(self, job: IngestionJob) -> Callable[[list[Chunk]], Awaitable[list[Chunk]]]:
        """What is done to chunks before they are embedded."""
        chunking = job.chunking
        if not isinstance(chunking, ContextualChunking):
            return _unchanged
        source = self._blobs.read(job.file)
        try:
            document = await self._extractor.text(source, job.filename, DOCUMENT_CHARACTERS)
        finally:
            await _close(source)
        return partial(self._contexts.situate, chunking.contextual, document)

    async def _add(self, work: _Work, chunks: list[Chunk]) -> None:
        vectors = await self._embed(work.job, [_embedded(chunk) for chunk in chunks])
        await self._keep_claim(work)
        indexed = [IndexedChunk(chunk, vector) for chunk, vector in zip(chunks, vectors, strict=True)]
        await self._index.add(work.job.collection, work.job.file, indexed)
        work.chunks += len(indexed)

    async def _embed(self, job: IngestionJob, texts: list[str]) -> list[list[float]]:
        """The vectors; a model server that is busy or away is asked again a few times."""
        choice = EmbeddingChoice(job.embedding_model, job.collection.dimensions, job.shortened)
        for wait in self._rules.waits:
            try:
                return await self._vectors.embed(texts, choice)
            except (UpstreamFault, QuotaExceeded) as fault:
                if isinstance(fault, UpstreamRefused) and fault.status < 500:
                    raise
                log.info("embedding %s failed and is tried again: %s", job.file, fault.message)
            await asyncio.sleep(wait)
        return await self._vectors.embed(texts, choice)

    async def _fail(self, job: IngestionJob, code: FileFault, message: str) -> None:
        log.info("%s could not be indexed in %s: %s", job.file, job.collection.store, message)
        try:
            await self._index.remove(job.collection, job.file)
        except ServerError as fault:
            # They are not published, so nobody finds them, and a further attempt removes them first.
            log.warning("chunks of %s stay in the index: %s", job.file, fault.message)
        await self._queue.fail(job.scope, job, code, message)


def rules_of(chunking: Chunking) -> ChunkRules:
    match chunking:
        case StaticChunking(static=rules):
            size, overlap = rules.max_chunk_size_tokens, rules.chunk_overlap_tokens or 0
        case ContextualChunking(contextual=wanted):
            size, overlap = wanted.max_chunk_size_tokens, wanted.chunk_overlap_tokens
        case _:
            return ChunkRules()
    return ChunkRules(max_tokens=size, overlap_tokens=min(overlap, size // 2))


def _code(fault: ServerError) -> FileFault:
    if isinstance(fault, UnsupportedFile):
        return "unsupported_file"
    # NotFound: the File was deleted, or has expired, since it was attached.
    return "invalid_file" if isinstance(fault, UnreadableFile | NotFound) else "server_error"


def _embedded(chunk: Chunk) -> str:
    """What the vector is made of: the headings above a chunk often say what it is about where its text does not."""
    return f"{chunk.section}\n\n{chunk.text}" if chunk.section else chunk.text


async def _unchanged(chunks: list[Chunk]) -> list[Chunk]:
    return chunks


async def _close(iterator: AsyncIterator[object]) -> None:
    """Ends a generator that was not read to its end; other iterators end by themselves."""
    if isinstance(iterator, AsyncGenerator):
        await iterator.aclose()
