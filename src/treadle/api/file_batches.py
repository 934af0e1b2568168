"""Batches of files that are attached to a vector store together (contract §13)."""

from __future__ import annotations

import time
from collections.abc import Callable

from treadle.api.attaching import Attachments, OwnChunking, checked_id, checked_ids
from treadle.api.store_access import known_store, shown_counts, usable_store
from treadle.api.vector_files import shown_files
from treadle.errors import InvalidRequest, NotFound
from treadle.ids import new_id
from treadle.ports import FileBatchRow, Order, StoreFiles, VectorStores
from treadle.scope import Scope
from treadle.wire.vector_stores import AttachFile, CreateFileBatch, FileBatch, FileStatus, VectorStoreFileList


class FileBatchService:
    """The use cases of `/v1/vector_stores/{id}/file_batches`."""

    def __init__(
        self,
        stores: VectorStores,
        files: StoreFiles,
        attachments: Attachments,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self._files = files
        self._attachments = attachments
        self._clock = clock

    async def create(self, scope: Scope, store_id: str, request: CreateFileBatch) -> FileBatch:
        """Files that the caller does not have fail; they do not fail the batch."""
        await usable_store(self._stores, scope, store_id, self._clock())
        wanted = await self._wanted(request)
        row = FileBatchRow(id=new_id("vsfb"), store=store_id, created_at=int(self._clock()))
        await self._attachments.attach(scope, store_id, wanted, row)
        return await self.get(scope, store_id, row.id)

    async def get(self, scope: Scope, store_id: str, batch_id: str) -> FileBatch:
        row = await self._row(scope, store_id, batch_id)
        return FileBatch(
            id=row.id,
            created_at=row.created_at,
            vector_store_id=row.store,
            status=_status(row),
            file_counts=shown_counts(row.counts),
        )

    async def files(
        self,
        scope: Scope,
        store_id: str,
        batch_id: str,
        *,
        status: FileStatus | None,
        after: str | None,
        before: str | None,
        limit: int,
        order: Order,
    ) -> VectorStoreFileList:
        await self._row(scope, store_id, batch_id)
        return shown_files(
            await self._files.page(
                scope, store_id, batch=batch_id, status=status, after=after, before=before, limit=limit, order=order
            )
        )

    async def cancel(self, scope: Scope, store_id: str, batch_id: str) -> FileBatch:
        """Stops what is not done yet; files that are completed stay. InvalidRequest if nothing is left to stop."""
        row = await self._row(scope, store_id, batch_id)
        if not row.cancelled and not row.counts.in_progress:
            raise InvalidRequest(
                f"Cannot cancel file batch '{batch_id}': it is {_status(row)} already.", param="batch_id"
            )
        await self._files.cancel_batch(scope, store_id, batch_id)
        return await self.get(scope, store_id, batch_id)

    async def _wanted(self, request: CreateFileBatch) -> list[tuple[AttachFile, OwnChunking]]:
        if request.file_ids is not None and request.files is None:
            chunking = await self._attachments.chunking(request.chunking_strategy, "chunking_strategy")
            ids = checked_ids(request.file_ids, "file_ids")
            return [(AttachFile(file_id=file_id, attributes=request.attributes), chunking) for file_id in ids]
        if request.files is None or request.file_ids is not None:
            raise InvalidRequest("Give either 'file_ids' or 'files'.", param="file_ids")
        wanted = []
        for number, file in enumerate(request.files):
            at = f"files[{number}]"
            checked_id(file.file_id, f"{at}.file_id")
            wanted.append((file, await self._attachments.chunking(file.chunking_strategy, f"{at}.chunking_strategy")))
        return wanted

    async def _row(self, scope: Scope, store_id: str, batch_id: str) -> FileBatchRow:
        row = await self._files.batch(scope, store_id, batch_id)
        if row is None:
            await known_store(self._stores, scope, store_id)
            raise NotFound(f"File batch '{batch_id[:128]}' not found in this vector store.", param="batch_id")
        return row


def _status(row: FileBatchRow) -> FileStatus:
    counts = row.counts
    if row.cancelled:
        return "cancelled"
    if counts.in_progress:
        return "in_progress"
    return "failed" if counts.failed and counts.failed == counts.total else "completed"
