"""The files of vector stores, and the batches that they came in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from treadle import ports
from treadle.ids import plausible
from treadle.ports import (
    FileBatchRow,
    NewStoreFile,
    Order,
    ReadyDocument,
    StoreFilePage,
    StoreFileRow,
    VectorStoreRow,
)
from treadle.scope import Scope
from treadle.store import cursors
from treadle.store.db import Connection, Database, Row, Value
from treadle.store.threads import batches, marks
from treadle.store.vector_stores import COLUMNS as STORE_COLUMNS
from treadle.store.vector_stores import attributes_of, changed, counts_of, owns, row_of
from treadle.wire.retrieval import Attributes
from treadle.wire.vector_stores import Chunking, FileStatus, OtherChunking

chunking_of = msgspec.json.Decoder(Chunking).decode

_COLUMNS = (
    "f.store, f.file, f.filename, f.created_at, f.status, f.error_code, f.error_message, f.usage_bytes, f.chunks,"
    " f.chunking, f.attributes"
)


class SqlStoreFiles(ports.StoreFiles):
    """The `StoreFiles` port over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def attach(
        self, scope: Scope, store_id: str, files: Sequence[NewStoreFile], batch: FileBatchRow | None = None
    ) -> list[StoreFileRow] | None:
        return await self._database.write(partial(_attach, scope=scope, store_id=store_id, files=files, batch=batch))

    async def get(self, scope: Scope, store_id: str, file_id: str) -> StoreFileRow | None:
        if not plausible(store_id) or not plausible(file_id):
            return None
        return await self._database.read(partial(_get, scope=scope, store_id=store_id, file_id=file_id))

    async def page(
        self,
        scope: Scope,
        store_id: str,
        *,
        batch: str | None = None,
        status: FileStatus | None,
        after: str | None,
        before: str | None,
        limit: int,
        order: Order,
    ) -> StoreFilePage:
        work = partial(_page, scope=scope, store_id=store_id, batch=batch, status=status)
        return await self._database.read(partial(work, after=after, before=before, limit=limit, order=order))

    async def set_attributes(
        self, scope: Scope, store_id: str, file_id: str, attributes: Attributes
    ) -> StoreFileRow | None:
        if not plausible(store_id) or not plausible(file_id):
            return None
        work = partial(_set_attributes, scope=scope, store_id=store_id, file_id=file_id, attributes=attributes)
        return await self._database.write(work)

    async def detach(self, scope: Scope, store_id: str, file_id: str) -> bool:
        if not plausible(store_id) or not plausible(file_id):
            return False
        return await self._database.write(partial(_detach, scope=scope, store_id=store_id, file_id=file_id))

    async def holders(self, scope: Scope, file_id: str) -> list[VectorStoreRow]:
        return await self._database.read(partial(_holders, scope=scope, file_id=file_id))

    async def batch(self, scope: Scope, store_id: str, batch_id: str) -> FileBatchRow | None:
        if not plausible(store_id) or not plausible(batch_id):
            return None
        return await self._database.read(partial(_batch, scope=scope, store_id=store_id, batch_id=batch_id))

    async def cancel_batch(self, scope: Scope, store_id: str, batch_id: str) -> list[str] | None:
        return await self._database.write(partial(_cancel, scope=scope, store_id=store_id, batch_id=batch_id))

    async def add_ready(self, scope: Scope, store_id: str, documents: Sequence[ReadyDocument]) -> bool:
        return await self._database.write(partial(_add_ready, scope=scope, store_id=store_id, documents=documents))


# ---------------------------------------------------------------------------------------------- reading


def _select(connection: Connection, scope: Scope, where: str, params: Sequence[Value]) -> list[Row]:
    return connection.execute(
        f"SELECT {_COLUMNS} FROM vector_files f JOIN vector_stores s ON s.id = f.store"  # noqa: S608 -- only placeholders and fixed words
        f" WHERE s.tenant = ? AND s.owner = ? AND f.document IS NULL{where}",
        (scope.tenant, scope.owner, *params),
    )


def _shown(row: Row) -> StoreFileRow:
    store, file, filename, created_at, status, code, message, usage, chunks, chunking, attributes = row
    return StoreFileRow(
        store=store,
        file=file,
        filename=filename,
        created_at=created_at,
        status=status,
        error=None if code is None else (code, message),
        usage_bytes=usage,
        chunks=chunks,
        chunking=chunking_of(chunking),
        attributes=attributes_of(attributes),
    )


def _get(connection: Connection, scope: Scope, store_id: str, file_id: str) -> StoreFileRow | None:
    rows = _select(connection, scope, " AND f.store = ? AND f.file = ?", (store_id, file_id))
    return _shown(rows[0]) if rows else None


def _page(
    connection: Connection,
    scope: Scope,
    store_id: str,
    batch: str | None,
    status: FileStatus | None,
    after: str | None,
    before: str | None,
    limit: int,
    order: Order,
) -> StoreFilePage:
    scoped, given = " AND f.store = ?", [store_id]
    if batch is not None:
        scoped += " AND f.file IN (SELECT file FROM vector_batch_files WHERE batch = ?)"
        given.append(batch)
    where, params = scoped, list(given)
    if status is not None:
        where += " AND f.status = ?"
        params.append(status)

    def place(cursor: str) -> cursors.Place | None:
        # The filter does not count here: the cursor's file may have got another status since it was listed.
        found = _select(connection, scope, f"{scoped} AND f.file = ?", (*given, cursor))
        return (found[0][3], found[0][1]) if found else None

    rows, more = cursors.page(
        lambda tail, values: _select(connection, scope, where + tail, (*params, *values)),
        place,
        ("f.created_at", "f.file"),
        after=after,
        before=before,
        limit=limit,
        order=order,
    )
    return StoreFilePage([_shown(row) for row in rows], more)


def _holders(connection: Connection, scope: Scope, file_id: str) -> list[VectorStoreRow]:
    rows = connection.execute(
        f"SELECT {STORE_COLUMNS} FROM vector_stores s JOIN vector_files f ON f.store = s.id"  # noqa: S608 -- fixed words
        " WHERE f.file = ? AND f.document IS NULL AND s.tenant = ? AND s.owner = ?",
        (file_id, scope.tenant, scope.owner),
    )
    return [row_of(row) for row in rows]


def _batch(connection: Connection, scope: Scope, store_id: str, batch_id: str) -> FileBatchRow | None:
    rows = connection.execute(
        "SELECT b.created_at, b.cancelled FROM vector_batches b JOIN vector_stores s ON s.id = b.store"
        " WHERE b.id = ? AND s.id = ? AND s.tenant = ? AND s.owner = ?",
        (batch_id, store_id, scope.tenant, scope.owner),
    )
    if not rows:
        return None
    counted = connection.execute(
        "SELECT f.status, COUNT(*) FROM vector_batch_files b JOIN vector_files f ON f.store = ? AND f.file = b.file"
        " WHERE b.batch = ? GROUP BY f.status",
        (store_id, batch_id),
    )
    return FileBatchRow(
        id=batch_id,
        store=store_id,
        created_at=rows[0][0],
        cancelled=bool(rows[0][1]),
        counts=counts_of((status, number) for status, number in counted),
    )


# ---------------------------------------------------------------------------------------------- writing


def _attach(
    connection: Connection, scope: Scope, store_id: str, files: Sequence[NewStoreFile], batch: FileBatchRow | None
) -> list[StoreFileRow] | None:
    if not owns(connection, scope, store_id):
        return None
    present: dict[str, StoreFileRow] = {}
    names = [new.file for new in files]
    for some in batches(names):
        rows = _select(connection, scope, f" AND f.store = ? AND f.file IN ({marks(some)})", (store_id, *some))
        present |= {row[1]: _shown(row) for row in rows}
    found, visible = list[StoreFileRow](), False
    for new in files:
        before = present.get(new.file)
        if before is None:
            present[new.file] = _added(store_id, new)
            _insert(connection, present[new.file])
        else:
            present[new.file] = _again(before, new)
            visible = visible or before.status == "completed"
            _replace(connection, before, present[new.file])
        found.append(present[new.file])
    if visible:
        changed(connection, store_id)
    connection.change(
        "UPDATE vector_stores SET last_active_at = ? WHERE id = ? AND last_active_at < ?",
        (max(new.created_at for new in files), store_id, max(new.created_at for new in files)),
    )
    if batch is not None:
        connection.change(
            "INSERT INTO vector_batches (id, store, created_at, cancelled) VALUES (?, ?, ?, 0)",
            (batch.id, store_id, batch.created_at),
        )
        connection.executemany(
            "INSERT INTO vector_batch_files (batch, file) VALUES (?, ?)", [(batch.id, name) for name in present]
        )
    return found


def _added(store_id: str, new: NewStoreFile) -> StoreFileRow:
    return StoreFileRow(
        store=store_id,
        file=new.file,
        filename=new.filename,
        created_at=new.created_at,
        status="in_progress" if new.error is None else "failed",
        attributes=new.attributes or {},
        chunking=new.chunking,
        error=new.error,
    )


def _again(before: StoreFileRow, new: NewStoreFile) -> StoreFileRow:
    """What attaching makes of a file that is attached already."""
    attributes = before.attributes if new.attributes is None else new.attributes
    kept = before.status in ("completed", "in_progress") and before.chunking == new.chunking
    if kept or (new.error is not None and before.status != "failed"):
        return msgspec.structs.replace(before, attributes=attributes)
    return msgspec.structs.replace(
        _added(before.store, new), filename=new.filename, created_at=before.created_at, attributes=attributes
    )


def _insert(connection: Connection, row: StoreFileRow) -> None:
    code, message = row.error or (None, None)
    connection.change(
        "INSERT INTO vector_files (store, file, filename, created_at, status, error_code, error_message, usage_bytes,"
        " chunks, attempts, chunking, attributes) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?)",
        (
            row.store,
            row.file,
            row.filename,
            row.created_at,
            row.status,
            code,
            message,
            msgspec.json.encode(row.chunking),
            msgspec.json.encode(row.attributes),
        ),
    )


def _replace(connection: Connection, before: StoreFileRow, row: StoreFileRow) -> None:
    """Writes an attached file anew; whoever works on it has lost his claim if there is work to do again."""
    if before.status == row.status and before.chunking == row.chunking:
        connection.change(
            "UPDATE vector_files SET attributes = ? WHERE store = ? AND file = ?",
            (msgspec.json.encode(row.attributes), row.store, row.file),
        )
        return
    code, message = row.error or (None, None)
    connection.change(
        "UPDATE vector_files SET status = ?, error_code = ?, error_message = ?, usage_bytes = 0, chunks = 0,"
        " attempts = 0, lease = NULL, claim = NULL, chunking = ?, attributes = ? WHERE store = ? AND file = ?",
        (
            row.status,
            code,
            message,
            msgspec.json.encode(row.chunking),
            msgspec.json.encode(row.attributes),
            row.store,
            row.file,
        ),
    )


def _set_attributes(
    connection: Connection, scope: Scope, store_id: str, file_id: str, attributes: Attributes
) -> StoreFileRow | None:
    found = _get(connection, scope, store_id, file_id)
    if found is None:
        return None
    row = msgspec.structs.replace(found, attributes=attributes)
    _replace(connection, row, row)
    changed(connection, store_id)
    return row


def _detach(connection: Connection, scope: Scope, store_id: str, file_id: str) -> bool:
    if _get(connection, scope, store_id, file_id) is None:
        return False
    connection.change(
        "DELETE FROM vector_batch_files WHERE file = ? AND batch IN (SELECT id FROM vector_batches WHERE store = ?)",
        (file_id, store_id),
    )
    connection.change("DELETE FROM vector_files WHERE store = ? AND file = ?", (store_id, file_id))
    changed(connection, store_id)
    return True


def _cancel(connection: Connection, scope: Scope, store_id: str, batch_id: str) -> list[str] | None:
    if _batch(connection, scope, store_id, batch_id) is None:
        return None
    connection.change("UPDATE vector_batches SET cancelled = 1 WHERE id = ?", (batch_id,))
    rows = connection.execute(
        "UPDATE vector_files SET status = 'cancelled', lease = NULL, claim = NULL, chunks = 0 WHERE store = ?"
        " AND status = 'in_progress' AND file IN (SELECT file FROM vector_batch_files WHERE batch = ?) RETURNING file",
        (store_id, batch_id),
    )
    return [row[0] for row in rows]


def _add_ready(connection: Connection, scope: Scope, store_id: str, documents: Sequence[ReadyDocument]) -> bool:
    if not owns(connection, scope, store_id):
        return False
    chunking = msgspec.json.encode(OtherChunking())
    connection.executemany(
        "INSERT INTO vector_files (store, file, document, filename, created_at, status, usage_bytes, chunks, attempts,"
        " chunking, attributes) VALUES (?, ?, ?, ?, ?, 'completed', ?, 1, 0, ?, ?)"
        " ON CONFLICT (store, file) DO UPDATE SET document = excluded.document, filename = excluded.filename,"
        " usage_bytes = excluded.usage_bytes, attributes = excluded.attributes",
        [
            (
                store_id,
                document.file,
                document.document,
                document.filename,
                document.created_at,
                document.usage_bytes,
                chunking,
                msgspec.json.encode(document.attributes),
            )
            for document in documents
        ],
    )
    changed(connection, store_id)
    return True
