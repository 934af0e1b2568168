"""Batches: create, retrieve, list, cancel (contract §14). What runs them is in `batch_run.py`."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from treadle.errors import InvalidRequest, NotFound
from treadle.ids import new_id
from treadle.ports import Batches, BatchRow, JobQueue, NewJob, Order
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.batches import ENDED, ENDPOINTS, Batch, BatchList, CreateBatch

KIND = "batch"
WINDOW_SECONDS = 86_400
_batch = msgspec.json.Decoder(Batch)


class Conflict(InvalidRequest):
    """The request contradicts what is there."""

    status = 409
    code = "conflict"


class Kept(msgspec.Struct, kw_only=True):
    """The JSON of a row: the batch, and the request that it was made by."""

    batch: Batch
    request: CreateBatch


_kept = msgspec.json.Decoder(Kept)


def kept(row: BatchRow) -> Kept:
    return _kept.decode(row.data)


def row_of(found: Kept) -> BatchRow:
    batch, key = found.batch, found.request.idempotency_key
    return BatchRow(
        id=batch.id, created_at=batch.created_at, status=batch.status, idempotency_key=key, data=encode(found)
    )


def shown(row: BatchRow) -> Batch:
    """The batch as clients see it: its files once it has ended, and they are whole."""
    batch = kept(row).batch
    if batch.status not in ENDED:
        batch.output_file_id = batch.error_file_id = UNSET
    return batch


class BatchService:
    """The use cases of `/v1/batches`."""

    def __init__(
        self,
        batches: Batches,
        queue: JobQueue,
        *,
        most: int = 100,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`most`: how many may wait to be begun."""
        self._batches = batches
        self._queue = queue
        self._most = most
        self._clock = clock

    async def create(self, scope: Scope, request: CreateBatch) -> Batch:
        """The batch, which begins soon. A faulty input file is told in the batch, not here: it may be large."""
        if request.endpoint not in ENDPOINTS:
            message = f"Invalid endpoint: {request.endpoint[:128]}. Supported values: {', '.join(ENDPOINTS)}."
            raise InvalidRequest(message, param="endpoint")
        now = int(self._clock())
        batch = Batch(
            id=new_id("batch"),
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            metadata=request.metadata,
        )
        wanted = Kept(batch=batch, request=request)
        job = NewJob(id=batch.id, kind=KIND)
        row = await self._batches.create(scope, row_of(wanted), job, most=self._most)
        if row.id == batch.id:
            await self._queue.put(job)
            return batch
        if kept(row).request != request:
            raise Conflict(
                "Idempotency conflict: another batch was created with this key and other parameters.",
                param="idempotency_key",
                code="idempotency_conflict",
            )
        return shown(row)

    async def get(self, scope: Scope, batch_id: str) -> Batch:
        return shown(await self._row(scope, batch_id))

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order) -> BatchList:
        page = await self._batches.page(scope, after=after, limit=limit, order=order)
        data = [shown(row) for row in page.batches]
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        return BatchList(data=data, first_id=first, last_id=last, has_more=page.has_more)

    async def cancel(self, scope: Scope, batch_id: str) -> Batch:
        """Asks whoever runs it to stop. Conflict for one that has ended in another way."""
        while True:
            row = await self._row(scope, batch_id)
            found = kept(row)
            batch = found.batch
            if batch.status in ("cancelling", "cancelled"):
                return shown(row)
            if batch.status in ENDED or batch.status == "finalizing":
                raise Conflict(f"Cannot cancel a batch whose status is '{batch.status}'.", param="batch_id")
            before, batch.status, batch.cancelling_at = batch.status, "cancelling", int(self._clock())
            if await self._batches.change(scope, row_of(found), frozenset({before})):
                return batch

    async def _row(self, scope: Scope, batch_id: str) -> BatchRow:
        row = await self._batches.get(scope, batch_id)
        if row is None:
            raise NotFound(f"No batch found with id '{batch_id[:128]}'.", param="batch_id")
        return row
