"""Conversations: threads with a name, whose items can be listed, added and taken out one by one."""

from __future__ import annotations

from functools import partial

from treadle import ports
from treadle.errors import InvalidRequest
from treadle.ids import plausible
from treadle.ports import Checkpoint, ConversationRow, ItemPage, Order, StoredItem
from treadle.scope import Scope
from treadle.store import threads
from treadle.store.db import Connection, Database


class SqlConversations(ports.Conversations):
    """The `Conversations` port over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, scope: Scope, row: ConversationRow, items: list[StoredItem]) -> None:
        """InvalidRequest (`param="items"`) if an id occurs twice."""
        await self._database.write(partial(_create, scope=scope, row=row, items=items), guarded=True)

    async def get(self, scope: Scope, conversation_id: str) -> ConversationRow | None:
        if not plausible(conversation_id):
            return None
        return await self._database.read(partial(_get, scope=scope, name=conversation_id))

    async def update(self, scope: Scope, conversation_id: str, metadata: bytes) -> ConversationRow | None:
        if not plausible(conversation_id):
            return None
        return await self._database.write(partial(_update, scope=scope, name=conversation_id, metadata=metadata))

    async def delete(self, scope: Scope, conversation_id: str) -> bool:
        if not plausible(conversation_id):
            return False
        return await self._database.write(partial(_delete, scope=scope, name=conversation_id))

    async def checkpoint(self, scope: Scope, conversation_id: str) -> Checkpoint | None:
        if not plausible(conversation_id):
            return None
        return await self._database.read(partial(_end, scope=scope, name=conversation_id))

    async def append(self, scope: Scope, conversation_id: str, items: list[StoredItem]) -> bool:
        if not plausible(conversation_id):
            return False
        work = partial(_append, scope=scope, name=conversation_id, items=items)
        return await self._database.write(work, guarded=True)

    async def items(
        self, scope: Scope, conversation_id: str, *, after: str | None, limit: int, order: Order
    ) -> ItemPage | None:
        if not plausible(conversation_id):
            return None
        work = partial(_items, scope=scope, name=conversation_id, after=after, limit=limit, order=order)
        found = await self._database.read(work)
        return None if found is None else ItemPage(found[:limit], has_more=len(found) > limit)

    async def item(self, scope: Scope, conversation_id: str, item_id: str) -> StoredItem | None:
        if not plausible(conversation_id) or not plausible(item_id):
            return None
        return await self._database.read(partial(_item, scope=scope, name=conversation_id, item_id=item_id))

    async def delete_item(self, scope: Scope, conversation_id: str, item_id: str) -> bool:
        """Takes the item out of the conversation and of every history. A stored response that it is part of goes on
        showing it; when there is none, the item is removed."""
        if not plausible(conversation_id) or not plausible(item_id):
            return False
        return await self._database.write(partial(_delete_item, scope=scope, name=conversation_id, item_id=item_id))


def _create(connection: Connection, scope: Scope, row: ConversationRow, items: list[StoredItem]) -> None:
    """Guarded: nobody else knows the thread yet."""
    thread = threads.create(
        connection, scope, name=row.id, count=len(items), created_at=row.created_at, metadata=row.metadata
    )
    threads.refuse_known_ids(connection, thread, items)
    threads.put(connection, thread, 0, items)


def _get(connection: Connection, scope: Scope, name: str) -> ConversationRow | None:
    rows = connection.execute(
        "SELECT created_at, metadata FROM threads WHERE tenant = ? AND owner = ? AND name = ?",
        (scope.tenant, scope.owner, name),
    )
    return ConversationRow(id=name, created_at=rows[0][0], metadata=rows[0][1]) if rows else None


def _update(connection: Connection, scope: Scope, name: str, metadata: bytes) -> ConversationRow | None:
    rows = connection.execute(
        "UPDATE threads SET metadata = ? WHERE tenant = ? AND owner = ? AND name = ? RETURNING created_at",
        (metadata, scope.tenant, scope.owner, name),
    )
    return ConversationRow(id=name, created_at=rows[0][0], metadata=metadata) if rows else None


def _delete(connection: Connection, scope: Scope, name: str) -> bool:
    rows = connection.execute(
        "UPDATE threads SET name = NULL, metadata = ? WHERE tenant = ? AND owner = ? AND name = ? RETURNING key",
        (b"{}", scope.tenant, scope.owner, name),
    )
    if rows:
        threads.sweep(connection, scope, rows[0][0])
    return bool(rows)


def _end(connection: Connection, scope: Scope, name: str) -> Checkpoint | None:
    rows = connection.execute(
        "SELECT key, tip FROM threads WHERE tenant = ? AND owner = ? AND name = ?", (scope.tenant, scope.owner, name)
    )
    return Checkpoint(*rows[0]) if rows else None


def _append(connection: Connection, scope: Scope, name: str, items: list[StoredItem]) -> bool:
    """Guarded: whoever adds items to a thread writes to its row."""
    rows = connection.execute(
        "UPDATE threads SET tip = tip + ? WHERE tenant = ? AND owner = ? AND name = ? RETURNING key, tip",
        (len(items), scope.tenant, scope.owner, name),
    )
    if not rows:
        return False
    thread, tip = rows[0]
    threads.refuse_known_ids(connection, thread, items)
    threads.put(connection, thread, tip - len(items), items)
    return True


def _items(
    connection: Connection, scope: Scope, name: str, after: str | None, limit: int, order: Order
) -> list[StoredItem] | None:
    """Up to one more than `limit`, so that the caller sees whether there is more."""
    end = _end(connection, scope, name)
    if end is None:
        return None
    where, params = "", list[int]()
    if after is not None:
        cursor = _position(connection, end.thread, after) if plausible(after) else None
        if cursor is None:
            raise InvalidRequest("No item of the conversation has the id given as cursor.", param="after")
        where = f"AND i.pos {'>' if order == 'asc' else '<'} ?"
        params.append(cursor)
    rows = connection.execute(
        "SELECT i.id, i.kind, i.data FROM threads t JOIN items i ON i.thread = t.key"  # noqa: S608 -- only placeholders and fixed words
        f" WHERE t.key = ? AND t.tenant = ? AND t.owner = ? AND i.hidden = 0 {where}"
        f" ORDER BY i.pos {'ASC' if order == 'asc' else 'DESC'} LIMIT ?",
        (end.thread, scope.tenant, scope.owner, *params, limit + 1),
    )
    return [StoredItem(*row) for row in rows]


def _item(connection: Connection, scope: Scope, name: str, item_id: str) -> StoredItem | None:
    rows = connection.execute(
        "SELECT i.id, i.kind, i.data FROM threads t JOIN items i ON i.thread = t.key"
        " WHERE t.tenant = ? AND t.owner = ? AND t.name = ? AND i.id = ? AND i.hidden = 0",
        (scope.tenant, scope.owner, name, item_id),
    )
    return StoredItem(*rows[0]) if rows else None


def _delete_item(connection: Connection, scope: Scope, name: str, item_id: str) -> bool:
    end = _end(connection, scope, name)
    position = None if end is None else _position(connection, end.thread, item_id)
    if end is None or position is None:
        return False
    threads.hide(connection, end.thread, position)
    return True


def _position(connection: Connection, thread: int, item_id: str) -> int | None:
    rows = connection.execute("SELECT pos FROM items WHERE id = ? AND thread = ? AND hidden = 0", (item_id, thread))
    return int(rows[0][0]) if rows else None
