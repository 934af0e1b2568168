"""Threads: append-only lists of items, which branch without copying.

A branch has positions of its own from the point where it left its parent, and names the ranges it inherits. So the
history before a position is one query over (thread, range) pairs ordered by position, however often it branched.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.errors import ConversationLocked, InvalidRequest, NotFound, PreviousNotFound
from treadle.ports import Checkpoint, StoredItem
from treadle.scope import Scope
from treadle.store.db import Connection

Range = tuple[int, int, int]
"""Thread, first position, position after the last."""

_ranges = msgspec.json.Decoder(list[Range])

BATCH = 500
"""Parameters or ranges in one statement."""


def create(
    connection: Connection,
    scope: Scope,
    *,
    name: str | None = None,
    root: int | None = None,
    segments: Sequence[Range] = (),
    base: int = 0,
    count: int,
    created_at: int,
    metadata: bytes = b"{}",
) -> int:
    """A new thread with room for `count` items from `base` on; gives its key."""
    ((key,),) = connection.execute(
        "INSERT INTO threads (tenant, owner, name, root, base, tip, created_at, segments, metadata)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING key",
        (
            scope.tenant,
            scope.owner,
            name,
            root,
            base,
            base + count,
            created_at,
            msgspec.json.encode(segments).decode(),
            metadata,
        ),
    )
    return int(key)


def extend(connection: Connection, scope: Scope, base: Checkpoint, count: int, created_at: int) -> int:
    """Room for `count` items after `base`: in its thread if that is unnamed and ends there, else in a new branch.
    Gives the thread's key. PreviousNotFound if the thread has gone."""
    claimed = connection.change(
        "UPDATE threads SET tip = ? WHERE key = ? AND tenant = ? AND owner = ? AND tip = ? AND name IS NULL",
        (base.pos + count, base.thread, scope.tenant, scope.owner, base.pos),
    )
    if claimed:
        return base.thread
    found = connection.execute(
        "SELECT root, base, segments FROM threads WHERE key = ? AND tenant = ? AND owner = ?",
        (base.thread, scope.tenant, scope.owner),
    )
    if not found:
        raise PreviousNotFound(
            "The response to continue from was deleted in the meantime.", param="previous_response_id"
        )
    root, low, segments = found[0]
    return create(
        connection,
        scope,
        root=base.thread if root is None else root,
        segments=path(_ranges.decode(segments), low, base),
        base=base.pos,
        count=count,
        created_at=created_at,
    )


def extend_conversation(connection: Connection, scope: Scope, base: Checkpoint, count: int) -> None:
    """Room for `count` items after `base` in its conversation. ConversationLocked if that does not end there any
    more, NotFound if it was deleted."""
    claimed = connection.change(
        "UPDATE threads SET tip = ? WHERE key = ? AND tenant = ? AND owner = ? AND tip = ? AND name IS NOT NULL",
        (base.pos + count, base.thread, scope.tenant, scope.owner, base.pos),
    )
    if claimed:
        return
    named = connection.execute(
        "SELECT 1 FROM threads WHERE key = ? AND tenant = ? AND owner = ? AND name IS NOT NULL",
        (base.thread, scope.tenant, scope.owner),
    )
    if not named:
        raise NotFound("The conversation was deleted in the meantime.", param="conversation")
    raise ConversationLocked("Another turn has written to the conversation in the meantime.", param="conversation")


def put(connection: Connection, thread: int, pos: int, items: Sequence[StoredItem]) -> None:
    """Writes items from `pos` on, where room was made before."""
    connection.executemany(
        "INSERT INTO items (thread, pos, id, kind, data) VALUES (?, ?, ?, ?, ?)",
        [(thread, pos + n, item.id, item.kind, item.data) for n, item in enumerate(items)],
    )


def refuse_known_ids(connection: Connection, thread: int, items: Sequence[StoredItem]) -> None:
    """InvalidRequest if an id occurs twice in `items`, or is in `thread` already: cursors would be ambiguous."""
    ids = [item.id for item in items]
    known = len(set(ids)) < len(ids)
    for some in batches(ids):
        known = known or bool(
            connection.execute(
                f"SELECT 1 FROM items WHERE id IN ({marks(some)}) AND thread = ? AND hidden = 0 LIMIT 1",  # noqa: S608 -- placeholders
                (*some, thread),
            )
        )
    if known:
        raise InvalidRequest("Item already in conversation.", param="items")


def path(segments: Sequence[Range], base: int, end: Checkpoint) -> list[Range]:
    """The ranges that make up the history before `end`, whose thread inherits `segments` and begins at `base`."""
    ranges = [(thread, low, min(high, end.pos)) for thread, low, high in (*segments, (end.thread, base, end.pos))]
    return [found for found in ranges if found[1] < found[2]]


def history(connection: Connection, scope: Scope, end: Checkpoint) -> list[StoredItem]:
    """All visible items before `end`, in order; none if the thread is not in this scope."""
    found = connection.execute(
        "SELECT base, segments FROM threads WHERE key = ? AND tenant = ? AND owner = ?",
        (end.thread, scope.tenant, scope.owner),
    )
    if not found:
        return []
    base, segments = found[0]
    items: list[StoredItem] = []
    # Paths of more than BATCH branchings are cut, because statements have limits; ranges are in order anyway.
    ranges = path(_ranges.decode(segments), base, end)
    for n in range(0, len(ranges), BATCH):
        items += _range_items(connection, scope, ranges[n : n + BATCH])
    return items


def _range_items(connection: Connection, scope: Scope, ranges: Sequence[Range]) -> list[StoredItem]:
    # CROSS JOIN fixes the order of the loops in SQLite, whose planner would otherwise have to guess; elsewhere it is
    # an ordinary join.
    rows = connection.execute(
        f"WITH r (thread, low, high) AS (VALUES {', '.join(['(?, ?, ?)'] * len(ranges))})"  # noqa: S608 -- only placeholders and fixed words
        " SELECT i.id, i.kind, i.data FROM r CROSS JOIN threads t CROSS JOIN items i"
        " WHERE t.key = r.thread AND t.tenant = ? AND t.owner = ?"
        " AND i.thread = t.key AND i.pos >= r.low AND i.pos < r.high AND i.hidden = 0 ORDER BY i.pos",
        (*(value for found in ranges for value in found), scope.tenant, scope.owner),
    )
    return [StoredItem(*row) for row in rows]


def sweep(connection: Connection, scope: Scope, thread: int) -> None:
    """Removes what nothing needs any more in `thread` and all its relatives, after a response or a name has gone.

    A live response needs everything before its end, on its own thread and on those it inherits from; a conversation
    needs all of its thread. Ranges always begin where their thread begins, so what is needed of a thread is a prefix.
    """
    ((family,),) = connection.execute(
        "SELECT COALESCE(root, key) FROM threads WHERE key = ? AND tenant = ? AND owner = ?",
        (thread, scope.tenant, scope.owner),
    )
    relatives = connection.execute(
        "SELECT key, name, base, tip, segments FROM threads WHERE (key = ? OR root = ?) AND tenant = ? AND owner = ?",
        (family, family, scope.tenant, scope.owner),
    )
    live: dict[int, int] = dict(
        connection.execute(
            "SELECT r.thread, MAX(r.end_pos) FROM threads t JOIN responses r ON r.thread = t.key"
            " WHERE (t.key = ? OR t.root = ?) AND t.tenant = ? AND t.owner = ? GROUP BY r.thread",
            (family, family, scope.tenant, scope.owner),
        )
    )
    needed: dict[int, int] = {}
    for key, name, _, tip, segments in relatives:
        if name is None and key not in live:
            continue
        own = (key, 0, tip if name is not None else live[key])
        for ancestor, _, high in (*_ranges.decode(segments), own):
            needed[ancestor] = max(high, needed.get(ancestor, 0))
    for key, _, base, tip, _ in relatives:
        if needed.get(key, base) < tip:
            connection.execute("DELETE FROM items WHERE thread = ? AND pos >= ?", (key, needed.get(key, base)))
    gone = [(key,) for key, *_ in relatives if key not in needed]
    connection.executemany("DELETE FROM threads WHERE key = ?", gone)
    _drop_hidden(connection, thread)


def _drop_hidden(connection: Connection, thread: int) -> None:
    """Items taken out of a conversation stay only inside responses that are still there."""
    connection.execute(
        "DELETE FROM items WHERE thread = ? AND hidden = 1 AND NOT EXISTS (SELECT 1 FROM responses r"
        " WHERE r.thread = items.thread AND r.start_pos <= items.pos AND r.end_pos > items.pos)",
        (thread,),
    )


def hide(connection: Connection, thread: int, pos: int) -> None:
    """Takes an item out of its thread; a live response that spans it goes on showing it."""
    connection.execute("UPDATE items SET hidden = 1 WHERE thread = ? AND pos = ?", (thread, pos))
    _drop_hidden(connection, thread)


def batches(values: Sequence[str]) -> list[Sequence[str]]:
    return [values[n : n + BATCH] for n in range(0, len(values), BATCH)]


def marks(values: Sequence[str]) -> str:
    """Placeholders for an IN list."""
    return ", ".join("?" * len(values))
