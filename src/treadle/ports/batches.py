"""Port to the store of batches."""

from __future__ import annotations

from typing import Protocol

import msgspec

from treadle.ports.jobs import NewJob
from treadle.ports.store import Order
from treadle.scope import Scope


class BatchRow(msgspec.Struct, kw_only=True):
    """`data` is the JSON of the batch, its status included."""

    id: str
    created_at: int
    status: str
    idempotency_key: str | None = None
    data: bytes


class BatchPage(msgspec.Struct):
    batches: list[BatchRow]
    has_more: bool


class BatchResult(msgspec.Struct, frozen=True):
    """The answer to a line, which counts from 1. `data` is a line of the file it goes into."""

    line: int
    failed: bool
    data: bytes


class Batches(Protocol):
    """Batches and, while they run, the lines that are done. StorageFault when the database cannot be reached."""

    async def create(self, scope: Scope, row: BatchRow, job: NewJob, *, most: int) -> BatchRow:
        """The row as it is stored: an older one if that has the same idempotency key. With a new one its job is put;
        QueueFull if `most` are waiting."""
        ...

    async def get(self, scope: Scope, batch_id: str) -> BatchRow | None: ...

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order) -> BatchPage:
        """InvalidRequest (`param="after"`) for an unknown cursor."""
        ...

    async def change(self, scope: Scope, row: BatchRow, expected: frozenset[str]) -> bool:
        """Writes status and data if the status is one of `expected`; else nothing, and False."""
        ...

    async def keep(self, scope: Scope, batch_id: str, result: BatchResult) -> None:
        """Keeps the answer to a line; one that is there already stays."""
        ...

    async def done(self, scope: Scope, batch_id: str) -> dict[int, bool]:
        """The lines that are done, and whether they failed."""
        ...

    async def results(self, scope: Scope, batch_id: str, *, failed: bool, after: int, limit: int) -> list[BatchResult]:
        """Those with a line number above `after`, in order."""
        ...

    async def clear(self, scope: Scope, batch_id: str) -> None:
        """Forgets the answers: they are in files."""
        ...
