"""The event logs of background responses: bytes as clients are sent them, in chunks with sequence numbers.

Chunks are compressed: frames repeat each other, so that it costs less than writing them would.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from treadle import ports
from treadle.ids import plausible
from treadle.ports import EventChunk, Job, LogState
from treadle.scope import Scope
from treadle.store import jobs
from treadle.store.db import Connection, Database

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 1

_OWNED = (
    "response = ? AND EXISTS (SELECT 1 FROM responses r WHERE r.id = response_events.response AND r.tenant = ?"
    " AND r.owner = ? AND r.deleted = 0)"
)


class SqlEventLog(ports.EventLog):
    """The `EventLog` port over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, entries: Sequence[tuple[Job, EventChunk]]) -> frozenset[str]:
        return await self._database.write(partial(_append, entries=entries), guarded=True)

    async def read(self, scope: Scope, response_id: str, after: int, limit: int) -> list[EventChunk]:
        if not plausible(response_id):
            return []
        return await self._database.read(partial(_read, scope=scope, response_id=response_id, after=after, limit=limit))

    async def state(self, scope: Scope, response_id: str) -> LogState | None:
        if not plausible(response_id):
            return None
        return await self._database.read(partial(_state, scope=scope, response_id=response_id))

    async def expire(self, before: int) -> None:
        await self._database.write(partial(_expire, before=before), guarded=True)


def put(connection: Connection, response_id: str, chunk: EventChunk) -> None:
    """Adds a chunk, as part of a transaction that has the right to."""
    connection.change(
        "INSERT INTO response_events (response, first, last, data) VALUES (?, ?, ?, ?)",
        (response_id, chunk.first, chunk.last, zstd.compress(chunk.data, _LEVEL)),
    )


def remove(connection: Connection, response_id: str) -> None:
    connection.change("DELETE FROM response_events WHERE response = ?", (response_id,))


def _append(connection: Connection, entries: Sequence[tuple[Job, EventChunk]]) -> frozenset[str]:
    lost: set[str] = set()
    for job, chunk in entries:
        if jobs.holds(connection, job):
            put(connection, job.id, chunk)
        else:
            lost.add(job.id)
    return frozenset(lost)


def _read(connection: Connection, scope: Scope, response_id: str, after: int, limit: int) -> list[EventChunk]:
    rows = connection.execute(
        f"SELECT first, last, data FROM response_events WHERE {_OWNED} AND last > ? ORDER BY first LIMIT ?",  # noqa: S608 -- only placeholders and fixed words
        (response_id, scope.tenant, scope.owner, after, limit),
    )
    return [EventChunk(first, last, zstd.decompress(data)) for first, last, data in rows]


def _state(connection: Connection, scope: Scope, response_id: str) -> LogState | None:
    rows = connection.execute(
        "SELECT lease, (SELECT MAX(last) FROM response_events WHERE response = r.id) FROM responses r"
        " WHERE id = ? AND tenant = ? AND owner = ? AND deleted = 0",
        (response_id, scope.tenant, scope.owner),
    )
    return LogState(last=rows[0][1], ended=rows[0][0] is None) if rows else None


def _expire(connection: Connection, before: int) -> None:
    connection.change(
        "DELETE FROM response_events WHERE response IN"
        " (SELECT id FROM responses WHERE created_at < ? AND lease IS NULL)",
        (before,),
    )
