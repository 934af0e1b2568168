"""Uploaded files: the rows. Their bytes are blobs under the same ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from treadle import ports
from treadle.ids import plausible
from treadle.ports import FilePage, FileRow, Order
from treadle.scope import Principal, Scope
from treadle.store import cursors
from treadle.store.db import Connection, Database, Row, Value
from treadle.store.threads import batches, marks

_COLUMNS = "id, filename, purpose, bytes, created_at, media_type, expires_at"


class SqlFiles(ports.Files):
    """The `Files` port over a `Database`."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def add(self, scope: Scope, row: FileRow) -> None:
        await self._database.write(partial(_add, scope=scope, row=row))

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, FileRow]:
        wanted = [*filter(plausible, ids)]
        if not wanted:
            return {}
        return await self._database.read(partial(_find, scope=scope, ids=wanted, now=int(self._clock())))

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order, purpose: str | None) -> FilePage:
        work = partial(
            _page, scope=scope, after=after, limit=limit, order=order, purpose=purpose, now=int(self._clock())
        )
        return await self._database.read(work)

    async def delete(self, scope: Scope, file_id: str) -> bool:
        return plausible(file_id) and await self._database.write(partial(_delete, scope=scope, file_id=file_id))

    async def expired(self, limit: int) -> list[tuple[Scope, str]]:
        return await self._database.read(partial(_expired, now=int(self._clock()), limit=limit))

    async def known(self, ids: Sequence[str]) -> set[str]:
        return await self._database.read(partial(_known, ids=ids))


def _row(row: Row) -> FileRow:
    file_id, filename, purpose, size, created_at, media_type, expires_at = row
    return FileRow(
        id=file_id,
        filename=filename,
        purpose=purpose,
        bytes=size,
        created_at=created_at,
        media_type=media_type,
        expires_at=expires_at,
    )


def _select(connection: Connection, scope: Scope, now: int, where: str, params: Sequence[Value]) -> list[Row]:
    """Rows of the scope that have not expired."""
    return connection.execute(
        f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND owner = ?"  # noqa: S608 -- only placeholders and fixed words
        f" AND (expires_at IS NULL OR expires_at > ?){where}",
        (scope.tenant, scope.owner, now, *params),
    )


def _add(connection: Connection, scope: Scope, row: FileRow) -> None:
    connection.change(
        "INSERT INTO files (id, tenant, owner, created_at, expires_at, filename, purpose, media_type, bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            scope.tenant,
            scope.owner,
            row.created_at,
            row.expires_at,
            row.filename,
            row.purpose,
            row.media_type,
            row.bytes,
        ),
    )


def _find(connection: Connection, scope: Scope, ids: Sequence[str], now: int) -> dict[str, FileRow]:
    found: dict[str, FileRow] = {}
    for some in batches(ids):
        rows = _select(connection, scope, now, f" AND id IN ({marks(some)})", some)
        found |= {row[0]: _row(row) for row in rows}
    return found


def _page(
    connection: Connection,
    scope: Scope,
    after: str | None,
    limit: int,
    order: Order,
    purpose: str | None,
    now: int,
) -> FilePage:
    where, params = ("", list[Value]()) if purpose is None else (" AND purpose = ?", [purpose])

    def place(cursor: str) -> cursors.Place | None:
        # Whatever its purpose, and if it has just expired: a client may be in the middle of the list.
        found = connection.execute(
            "SELECT created_at, id FROM files WHERE id = ? AND tenant = ? AND owner = ?",
            (cursor, scope.tenant, scope.owner),
        )
        return (found[0][0], found[0][1]) if found else None

    rows, more = cursors.page(
        lambda tail, values: _select(connection, scope, now, where + tail, (*params, *values)),
        place,
        ("created_at", "id"),
        after=after,
        before=None,
        limit=limit,
        order=order,
    )
    return FilePage([_row(row) for row in rows], more)


def _delete(connection: Connection, scope: Scope, file_id: str) -> bool:
    changed = connection.change(
        "DELETE FROM files WHERE id = ? AND tenant = ? AND owner = ?", (file_id, scope.tenant, scope.owner)
    )
    return changed > 0


def _expired(connection: Connection, now: int, limit: int) -> list[tuple[Scope, str]]:
    rows = connection.execute(
        "SELECT tenant, owner, id FROM files WHERE expires_at IS NOT NULL AND expires_at <= ?"
        " ORDER BY expires_at LIMIT ?",
        (now, limit),
    )
    return [(Scope(tenant, Principal(owner)), file_id) for tenant, owner, file_id in rows]


def _known(connection: Connection, ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in batches(ids):
        rows = connection.execute(f"SELECT id FROM files WHERE id IN ({marks(some)})", some)  # noqa: S608 -- only placeholders
        found |= {row[0] for row in rows}
    return found
