"""The queue of files that are to be indexed: the files in progress of all vector stores, and who works on them.

Claiming is the one thing in the store that is done for nobody in particular; what it hands out says for whom.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from treadle import ports
from treadle.ports import Collection, IngestionJob
from treadle.scope import Principal, Scope
from treadle.store.db import Connection, Database, Value
from treadle.store.vector_files import chunking_of
from treadle.store.vector_stores import changed
from treadle.wire.vector_stores import FileFault


class SqlIngestionQueue(ports.IngestionQueue):
    """The `IngestionQueue` port over a `Database`. `clock` gives Unix seconds; leases are measured by it."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, claim: str, lease_until: int) -> IngestionJob | None:
        now = int(self._clock())
        # Looking first spares the database a write transaction each time a worker finds nothing.
        if not await self._database.read(partial(_waiting, now=now)):
            return None
        return await self._database.write(partial(_claim, now=now, claim=claim, lease=lease_until))

    async def renew(self, scope: Scope, job: IngestionJob, lease_until: int, chunks: int) -> bool:
        return await self._database.write(
            partial(_change, scope=scope, job=job, assignments="lease = ?, chunks = ?", values=(lease_until, chunks))
        )

    async def complete(self, scope: Scope, job: IngestionJob, usage_bytes: int, chunks: int) -> bool:
        return await self._database.write(
            partial(_complete, scope=scope, job=job, usage_bytes=usage_bytes, chunks=chunks)
        )

    async def fail(self, scope: Scope, job: IngestionJob, code: FileFault, message: str) -> bool:
        assignments = "status = 'failed', error_code = ?, error_message = ?, chunks = 0, lease = NULL, claim = NULL"
        return await self._database.write(
            partial(_change, scope=scope, job=job, assignments=assignments, values=(code, message))
        )

    async def release(self, scope: Scope, job: IngestionJob) -> None:
        assignments = "lease = NULL, claim = NULL, chunks = 0, attempts = attempts - 1"
        await self._database.write(partial(_change, scope=scope, job=job, assignments=assignments, values=()))

    async def abandoned(self, scope: Scope, job: IngestionJob) -> bool:
        return await self._database.read(partial(_abandoned, scope=scope, job=job))


def release_all(connection: Connection) -> None:
    """Ends all claims. Only for a process that has the database to itself."""
    connection.change("UPDATE vector_files SET lease = NULL, claim = NULL WHERE lease IS NOT NULL")


def _waiting(connection: Connection, now: int) -> tuple[str, str] | None:
    rows = connection.execute(
        "SELECT store, file FROM vector_files WHERE status = 'in_progress' AND (lease IS NULL OR lease < ?)"
        " ORDER BY created_at, file LIMIT 1",
        (now,),
    )
    return (rows[0][0], rows[0][1]) if rows else None


def _claim(connection: Connection, now: int, claim: str, lease: int) -> IngestionJob | None:
    found = _waiting(connection, now)
    if found is None:
        return None
    connection.change(
        "UPDATE vector_files SET lease = ?, claim = ?, chunks = 0, attempts = attempts + 1"
        " WHERE store = ? AND file = ?",
        (lease, claim, *found),
    )
    ((tenant, owner, model, dimensions, shortened, filename, attempts, chunking),) = connection.execute(
        "SELECT s.tenant, s.owner, s.embedding_model, s.dimensions, s.shortened, f.filename, f.attempts, f.chunking"
        " FROM vector_files f JOIN vector_stores s ON s.id = f.store WHERE f.store = ? AND f.file = ?",
        found,
    )
    return IngestionJob(
        scope=Scope(tenant, Principal(owner)),
        collection=Collection(tenant, found[0], dimensions),
        embedding_model=model,
        shortened=bool(shortened),
        file=found[1],
        filename=filename,
        chunking=chunking_of(chunking),
        claim=claim,
        attempt=attempts,
    )


_MINE = (
    " WHERE store = ? AND file = ? AND claim = ? AND status = 'in_progress'"
    " AND store IN (SELECT id FROM vector_stores WHERE tenant = ? AND owner = ?)"
)


def _mine(scope: Scope, job: IngestionJob) -> tuple[str, ...]:
    return (job.collection.store, job.file, job.claim, scope.tenant, scope.owner)


def _change(
    connection: Connection, scope: Scope, job: IngestionJob, assignments: str, values: tuple[Value, ...]
) -> bool:
    sql = f"UPDATE vector_files SET {assignments}{_MINE}"  # noqa: S608 -- only placeholders and fixed words
    return connection.change(sql, (*values, *_mine(scope, job))) == 1


def _complete(connection: Connection, scope: Scope, job: IngestionJob, usage_bytes: int, chunks: int) -> bool:
    assignments = "status = 'completed', usage_bytes = ?, chunks = ?, lease = NULL, claim = NULL"
    done = _change(connection, scope, job, assignments, (usage_bytes, chunks))
    if done:
        changed(connection, job.collection.store)
    return done


def _abandoned(connection: Connection, scope: Scope, job: IngestionJob) -> bool:
    return not connection.execute(
        "SELECT 1 FROM vector_files f JOIN vector_stores s ON s.id = f.store WHERE f.store = ? AND f.file = ?"
        " AND f.status IN ('in_progress', 'completed') AND s.tenant = ? AND s.owner = ?",
        (job.collection.store, job.file, scope.tenant, scope.owner),
    )
