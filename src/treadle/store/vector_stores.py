"""Vector stores. Their files are in `vector_files.py`; the chunks are in an index, which is no concern of this one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from treadle import ports
from treadle.ids import plausible
from treadle.ports import (
    Collection,
    CountedStore,
    Order,
    SearchableFile,
    StatusCounts,
    StoreChanges,
    VectorStorePage,
    VectorStoreRow,
)
from treadle.scope import Scope
from treadle.store import cursors
from treadle.store.db import Connection, Database, Row, Value
from treadle.store.threads import batches, marks
from treadle.wire.retrieval import Attributes

_metadata = msgspec.json.Decoder(dict[str, str])
attributes_of = msgspec.json.Decoder(Attributes).decode

COLUMNS = (
    "s.id, s.created_at, s.last_active_at, s.name, s.description, s.embedding_model, s.dimensions, s.shortened,"
    " s.expires_days, s.version, s.metadata"
)


class SqlVectorStores(ports.VectorStores):
    """The `VectorStores` port over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, scope: Scope, row: VectorStoreRow) -> None:
        await self._database.write(partial(_create, scope=scope, row=row))

    async def get(self, scope: Scope, store_id: str) -> CountedStore | None:
        if not plausible(store_id):
            return None
        return await self._database.read(partial(_get, scope=scope, store_id=store_id))

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, VectorStoreRow]:
        wanted = [*filter(plausible, ids)]
        return await self._database.read(partial(_find, scope=scope, ids=wanted)) if wanted else {}

    def collection(self, scope: Scope, row: VectorStoreRow) -> Collection:
        return Collection(scope.tenant, row.id, row.dimensions)

    async def page(
        self, scope: Scope, *, after: str | None, before: str | None, limit: int, order: Order
    ) -> VectorStorePage:
        return await self._database.read(
            partial(_page, scope=scope, after=after, before=before, limit=limit, order=order)
        )

    async def update(self, scope: Scope, store_id: str, changes: StoreChanges) -> CountedStore | None:
        if not plausible(store_id):
            return None
        return await self._database.write(partial(_update, scope=scope, store_id=store_id, changes=changes))

    async def touch(self, scope: Scope, ids: Sequence[str], now: int) -> None:
        await self._database.write(partial(_touch, scope=scope, ids=ids, now=now))

    async def delete(self, scope: Scope, store_id: str) -> bool:
        return plausible(store_id) and await self._database.write(partial(_delete, scope=scope, store_id=store_id))

    async def searchable(self, scope: Scope, store_id: str) -> list[SearchableFile]:
        return await self._database.read(partial(_searchable, scope=scope, store_id=store_id))


def row_of(row: Row) -> VectorStoreRow:
    """A row of COLUMNS."""
    store_id, created_at, active, name, description, model, dimensions, shortened, days, version, metadata = row
    return VectorStoreRow(
        id=store_id,
        created_at=created_at,
        last_active_at=active,
        name=name,
        description=description,
        embedding_model=model,
        dimensions=dimensions,
        shortened=bool(shortened),
        expires_days=days,
        version=version,
        metadata=_metadata.decode(metadata),
    )


def owns(connection: Connection, scope: Scope, store_id: str) -> bool:
    return bool(
        connection.execute(
            "SELECT 1 FROM vector_stores WHERE id = ? AND tenant = ? AND owner = ?",
            (store_id, scope.tenant, scope.owner),
        )
    )


def changed(connection: Connection, store_id: str) -> None:
    """Notes that searches see other files or attributes from now on."""
    connection.change("UPDATE vector_stores SET version = version + 1 WHERE id = ?", (store_id,))


def counts_of(rows: Iterable[tuple[str, int]]) -> StatusCounts:
    counts = StatusCounts()
    for status, number in rows:
        setattr(counts, status, number)
    return counts


def _create(connection: Connection, scope: Scope, row: VectorStoreRow) -> None:
    connection.change(
        "INSERT INTO vector_stores (id, tenant, owner, created_at, last_active_at, name, description, embedding_model,"
        " dimensions, shortened, expires_days, version, metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            scope.tenant,
            scope.owner,
            row.created_at,
            row.last_active_at,
            row.name,
            row.description,
            row.embedding_model,
            row.dimensions,
            int(row.shortened),
            row.expires_days,
            row.version,
            msgspec.json.encode(row.metadata),
        ),
    )


def _get(connection: Connection, scope: Scope, store_id: str) -> CountedStore | None:
    rows = _select(connection, scope, " AND s.id = ?", (store_id,))
    return _counted(connection, rows)[0] if rows else None


def _find(connection: Connection, scope: Scope, ids: Sequence[str]) -> dict[str, VectorStoreRow]:
    found: dict[str, VectorStoreRow] = {}
    for some in batches(ids):
        found |= {row[0]: row_of(row) for row in _select(connection, scope, f" AND s.id IN ({marks(some)})", some)}
    return found


def _select(connection: Connection, scope: Scope, where: str, params: Sequence[Value]) -> list[Row]:
    return connection.execute(
        f"SELECT {COLUMNS} FROM vector_stores s WHERE s.tenant = ? AND s.owner = ?{where}",  # noqa: S608 -- only placeholders and fixed words
        (scope.tenant, scope.owner, *params),
    )


def _counted(connection: Connection, rows: Sequence[Row]) -> list[CountedStore]:
    """The stores with their counts: one more statement, however many stores."""
    ids = [row[0] for row in rows]
    counts: dict[str, list[tuple[str, int]]] = {}
    usage = dict.fromkeys(ids, 0)
    for some in batches(ids):
        # Chunks that came with their vectors take room, but are no files.
        for store, status, number, used in connection.execute(
            "SELECT store, status, COUNT(*) - COUNT(document), SUM(usage_bytes) FROM vector_files"  # noqa: S608 -- only placeholders and fixed words
            f" WHERE store IN ({marks(some)}) GROUP BY store, status",
            some,
        ):
            counts.setdefault(store, []).append((status, number))
            usage[store] += int(used)
    return [CountedStore(row_of(row), counts_of(counts.get(row[0], ())), usage[row[0]]) for row in rows]


def _page(
    connection: Connection, scope: Scope, after: str | None, before: str | None, limit: int, order: Order
) -> VectorStorePage:
    def place(cursor: str) -> cursors.Place | None:
        found = _select(connection, scope, " AND s.id = ?", (cursor,))
        return (found[0][1], found[0][0]) if found else None

    rows, more = cursors.page(
        partial(_select, connection, scope),
        place,
        ("s.created_at", "s.id"),
        after=after,
        before=before,
        limit=limit,
        order=order,
    )
    return VectorStorePage(_counted(connection, rows), more)


def _update(connection: Connection, scope: Scope, store_id: str, changes: StoreChanges) -> CountedStore | None:
    fields: dict[str, Value] = {"last_active_at": changes.last_active_at}
    if changes.name is not None:
        fields["name"] = changes.name
    if changes.metadata is not None:
        fields["metadata"] = msgspec.json.encode(changes.metadata)
    if changes.expires_days is not UNSET:
        fields["expires_days"] = changes.expires_days
    assignments = ", ".join(f"{name} = ?" for name in fields)
    connection.change(
        f"UPDATE vector_stores SET {assignments} WHERE id = ? AND tenant = ? AND owner = ?",  # noqa: S608 -- only placeholders and fixed words
        (*fields.values(), store_id, scope.tenant, scope.owner),
    )
    return _get(connection, scope, store_id)


def _touch(connection: Connection, scope: Scope, ids: Sequence[str], now: int) -> None:
    for some in batches(ids):
        connection.change(
            f"UPDATE vector_stores SET last_active_at = ? WHERE id IN ({marks(some)}) AND tenant = ? AND owner = ?"  # noqa: S608 -- only placeholders and fixed words
            " AND last_active_at < ?",
            (now, *some, scope.tenant, scope.owner, now),
        )


def _delete(connection: Connection, scope: Scope, store_id: str) -> bool:
    if not owns(connection, scope, store_id):
        return False
    connection.change(
        "DELETE FROM vector_batch_files WHERE batch IN (SELECT id FROM vector_batches WHERE store = ?)", (store_id,)
    )
    for table in ("vector_batches", "vector_files"):
        connection.change(f"DELETE FROM {table} WHERE store = ?", (store_id,))  # noqa: S608 -- fixed words
    connection.change("DELETE FROM vector_stores WHERE id = ?", (store_id,))
    return True


def _searchable(connection: Connection, scope: Scope, store_id: str) -> list[SearchableFile]:
    rows = connection.execute(
        "SELECT f.file, COALESCE(f.document, f.file), f.filename, f.attributes FROM vector_files f"
        " JOIN vector_stores s ON s.id = f.store"
        " WHERE f.store = ? AND s.tenant = ? AND s.owner = ? AND f.status = 'completed'",
        (store_id, scope.tenant, scope.owner),
    )
    return [
        SearchableFile(file, shown, filename, attributes_of(attributes)) for file, shown, filename, attributes in rows
    ]
