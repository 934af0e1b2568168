"""The files of vector stores: attaching, changing, reading and removing them (contract §13)."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import UNSET

from treadle.api.attaching import Attachments, checked_id
from treadle.api.store_access import known_store, usable_store
from treadle.errors import InvalidRequest, NotFound
from treadle.ids import plausible
from treadle.ports import IndexedChunk, Order, StoreFilePage, StoreFileRow, StoreFiles, VectorIndex, VectorStores
from treadle.scope import Scope
from treadle.wire.vector_stores import (
    AttachFile,
    FileContent,
    FileContentPage,
    FileStatus,
    LastError,
    UpdateVectorStoreFile,
    VectorStoreFile,
    VectorStoreFileDeleted,
    VectorStoreFileList,
)

CONTENT_PAGE = 10_000
"""Chunks of a file that are shown at once."""

_READ = 500
"""Chunks that are read from the index at once."""


class VectorFileService:
    """The use cases of `/v1/vector_stores/{id}/files`."""

    def __init__(
        self,
        stores: VectorStores,
        files: StoreFiles,
        attachments: Attachments,
        index: VectorIndex,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self._files = files
        self._attachments = attachments
        self._index = index
        self._clock = clock

    async def attach(self, scope: Scope, store_id: str, request: AttachFile) -> VectorStoreFile:
        """A file that is attached already is given back, with its new attributes if the request has any. It is indexed
        again if it failed, was cancelled, or is to be cut in another way."""
        await usable_store(self._stores, scope, store_id, self._clock())
        checked_id(request.file_id, "file_id")
        chunking = await self._attachments.chunking(request.chunking_strategy, "chunking_strategy")
        if await self._attachments.upload(scope, request.file_id) is None:
            raise NotFound(f"File '{request.file_id}' not found.", param="file_id")
        await self._attachments.settled(scope, store_id, [(request, chunking)])
        return await self.get(scope, store_id, request.file_id)

    async def get(self, scope: Scope, store_id: str, file_id: str) -> VectorStoreFile:
        return shown_file(await self._row(scope, store_id, file_id))

    async def list(
        self,
        scope: Scope,
        store_id: str,
        *,
        status: FileStatus | None,
        after: str | None,
        before: str | None,
        limit: int,
        order: Order,
    ) -> VectorStoreFileList:
        await known_store(self._stores, scope, store_id)
        return shown_files(
            await self._files.page(scope, store_id, status=status, after=after, before=before, limit=limit, order=order)
        )

    async def update(
        self, scope: Scope, store_id: str, file_id: str, request: UpdateVectorStoreFile
    ) -> VectorStoreFile:
        """Replaces the attributes; null is none."""
        row = await self._files.set_attributes(scope, store_id, file_id, request.attributes or {})
        return shown_file(row or await self._row(scope, store_id, file_id))

    async def detach(self, scope: Scope, store_id: str, file_id: str) -> VectorStoreFileDeleted:
        """Removes the file from the store; the File stays."""
        store = await known_store(self._stores, scope, store_id)
        found = await self._files.detach(scope, store_id, file_id)
        if plausible(file_id):
            # Also if the row was gone: an earlier attempt may have failed in between.
            await self._index.remove(self._stores.collection(scope, store), file_id)
        if not found:
            raise _missing_file(file_id)
        return VectorStoreFileDeleted(file_id)

    async def forget(self, scope: Scope, file_id: str) -> None:
        """Takes a File that is deleted out of all stores."""
        for store in await self._files.holders(scope, file_id):
            await self._files.detach(scope, store.id, file_id)
            await self._index.remove(self._stores.collection(scope, store), file_id)

    async def content(
        self, scope: Scope, store_id: str, file_id: str, *, start: int, embeddings: bool, metadata: bool
    ) -> FileContentPage:
        """The chunks of a completed file, from number `start` on. InvalidRequest for one that is not completed."""
        store = await known_store(self._stores, scope, store_id)
        row = await self._row(scope, store_id, file_id)
        if row.status != "completed":
            status = row.status.replace("_", " ")
            raise InvalidRequest(
                f"File '{file_id}' is {status} in this vector store: it has no content.", param="file_id"
            )
        collection = self._stores.collection(scope, store)
        chunks: list[IndexedChunk] = []
        while len(chunks) < CONTENT_PAGE:
            at = chunks[-1].chunk.number + 1 if chunks else start
            read = await self._index.read(collection, file_id, start=at, limit=_READ)
            chunks += read
            if len(read) < _READ:
                break
        more = len(chunks) >= CONTENT_PAGE
        return FileContentPage(
            data=[_content(chunk, row, embeddings=embeddings, metadata=metadata) for chunk in chunks],
            has_more=more,
            next_page=str(chunks[-1].chunk.number + 1) if more else None,
        )

    async def _row(self, scope: Scope, store_id: str, file_id: str) -> StoreFileRow:
        row = await self._files.get(scope, store_id, file_id)
        if row is None:
            await known_store(self._stores, scope, store_id)
            raise _missing_file(file_id)
        return row


def shown_file(row: StoreFileRow) -> VectorStoreFile:
    return VectorStoreFile(
        id=row.file,
        created_at=row.created_at,
        vector_store_id=row.store,
        status=row.status,
        last_error=None if row.error is None else LastError(*row.error),
        usage_bytes=row.usage_bytes,
        attributes=row.attributes,
        chunking_strategy=row.chunking,
        chunks_done=row.chunks if row.status == "in_progress" else UNSET,
    )


def shown_files(page: StoreFilePage) -> VectorStoreFileList:
    data = [shown_file(row) for row in page.files]
    first, last = (data[0].id, data[-1].id) if data else ("", "")
    return VectorStoreFileList(data=data, first_id=first, last_id=last, has_more=page.has_more)


def _content(found: IndexedChunk, row: StoreFileRow, *, embeddings: bool, metadata: bool) -> FileContent:
    chunk = found.chunk
    content = FileContent(text=chunk.text, embedding=found.vector if embeddings else None)
    if metadata:
        content.metadata = row.attributes
        content.chunk_metadata = {
            "chunk_id": f"{row.file}-{chunk.number}",
            "document_id": row.file,
            "source": row.filename,
            "created_timestamp": row.created_at,
            "page": chunk.page,
            "section": chunk.section,
        }
    return content


def _missing_file(file_id: str) -> NotFound:
    return NotFound(f"File '{file_id[:128]}' not found in this vector store.", param="file_id")
