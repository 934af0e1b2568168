"""Batches, and the answers to their lines until those are in files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from treadle import ports
from treadle.ids import plausible
from treadle.ports.batches import BatchPage, BatchResult, BatchRow
from treadle.ports.jobs import NewJob
from treadle.ports.store import Order
from treadle.scope import Scope
from treadle.store import cursors, jobs
from treadle.store.db import Connection, Database, Row, Value
from treadle.store.threads import marks

_COLUMNS = "id, created_at, status, idempotency_key, data"


class SqlBatches(ports.Batches):
    """The `Batches` port over a `Database`."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def create(self, scope: Scope, row: BatchRow, job: NewJob, *, most: int) -> BatchRow:
        now = int(self._clock() * 1000)
        return await self._database.write(partial(_create, scope=scope, row=row, job=job, most=most, now=now))

    async def get(self, scope: Scope, batch_id: str) -> BatchRow | None:
        if not plausible(batch_id):
            return None
        return await self._database.read(partial(_get, scope=scope, batch_id=batch_id))

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order) -> BatchPage:
        return await self._database.read(partial(_page, scope=scope, after=after, limit=limit, order=order))

    async def change(self, scope: Scope, row: BatchRow, expected: frozenset[str]) -> bool:
        return await self._database.write(partial(_change, scope=scope, row=row, expected=[*expected]))

    async def keep(self, scope: Scope, batch_id: str, result: BatchResult) -> None:
        await self._database.write(partial(_keep, scope=scope, batch_id=batch_id, result=result))

    async def done(self, scope: Scope, batch_id: str) -> dict[int, bool]:
        return await self._database.read(partial(_done, scope=scope, batch_id=batch_id))

    async def results(self, scope: Scope, batch_id: str, *, failed: bool, after: int, limit: int) -> list[BatchResult]:
        work = partial(_results, scope=scope, batch_id=batch_id, failed=failed, after=after, limit=limit)
        return await self._database.read(work)

    async def clear(self, scope: Scope, batch_id: str) -> None:
        await self._database.write(partial(_clear, scope=scope, batch_id=batch_id))


def _row(row: Row) -> BatchRow:
    batch_id, created_at, status, key, data = row
    return BatchRow(id=batch_id, created_at=created_at, status=status, idempotency_key=key, data=bytes(data))


def _select(connection: Connection, scope: Scope, where: str, params: Sequence[Value]) -> list[Row]:
    return connection.execute(
        f"SELECT {_COLUMNS} FROM batches WHERE tenant = ? AND owner = ?{where}",  # noqa: S608 -- only placeholders and fixed words
        (scope.tenant, scope.owner, *params),
    )


def _create(connection: Connection, scope: Scope, row: BatchRow, job: NewJob, most: int, now: int) -> BatchRow:
    if row.idempotency_key is not None:
        found = _select(connection, scope, " AND idempotency_key = ?", (row.idempotency_key,))
        if found:
            return _row(found[0])
    connection.change(
        "INSERT INTO batches (id, tenant, owner, created_at, status, idempotency_key, data)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.id, scope.tenant, scope.owner, row.created_at, row.status, row.idempotency_key, row.data),
    )
    jobs.put(connection, scope, job, now, most)
    return row


def _get(connection: Connection, scope: Scope, batch_id: str) -> BatchRow | None:
    found = _select(connection, scope, " AND id = ?", (batch_id,))
    return _row(found[0]) if found else None


def _page(connection: Connection, scope: Scope, after: str | None, limit: int, order: Order) -> BatchPage:
    def place(cursor: str) -> cursors.Place | None:
        found = _get(connection, scope, cursor)
        return (found.created_at, found.id) if found else None

    rows, more = cursors.page(
        partial(_select, connection, scope),
        place,
        ("created_at", "id"),
        after=after,
        before=None,
        limit=limit,
        order=order,
    )
    return BatchPage([_row(row) for row in rows], more)


def _change(connection: Connection, scope: Scope, row: BatchRow, expected: Sequence[str]) -> bool:
    changed = connection.change(
        "UPDATE batches SET status = ?, data = ? WHERE id = ? AND tenant = ? AND owner = ?"  # noqa: S608 -- only placeholders
        f" AND status IN ({marks(expected)})",
        (row.status, row.data, row.id, scope.tenant, scope.owner, *expected),
    )
    return changed > 0


_OWNED = "batch IN (SELECT id FROM batches WHERE id = ? AND tenant = ? AND owner = ?)"


def _keep(connection: Connection, scope: Scope, batch_id: str, result: BatchResult) -> None:
    connection.change(
        "INSERT INTO batch_results (batch, line, failed, data)"
        " SELECT id, ?, ?, ? FROM batches WHERE id = ? AND tenant = ? AND owner = ?"
        " ON CONFLICT DO NOTHING",
        (result.line, int(result.failed), result.data, batch_id, scope.tenant, scope.owner),
    )


def _done(connection: Connection, scope: Scope, batch_id: str) -> dict[int, bool]:
    rows = connection.execute(
        f"SELECT line, failed FROM batch_results WHERE {_OWNED}",  # noqa: S608 -- only fixed words
        (batch_id, scope.tenant, scope.owner),
    )
    return {line: bool(failed) for line, failed in rows}


def _results(
    connection: Connection, scope: Scope, batch_id: str, failed: bool, after: int, limit: int
) -> list[BatchResult]:
    rows = connection.execute(
        f"SELECT line, data FROM batch_results WHERE {_OWNED}"  # noqa: S608 -- only fixed words
        " AND failed = ? AND line > ? ORDER BY line LIMIT ?",
        (batch_id, scope.tenant, scope.owner, int(failed), after, limit),
    )
    return [BatchResult(line, failed, bytes(data)) for line, data in rows]


def _clear(connection: Connection, scope: Scope, batch_id: str) -> None:
    connection.change(f"DELETE FROM batch_results WHERE {_OWNED}", (batch_id, scope.tenant, scope.owner))  # noqa: S608 -- only fixed words
