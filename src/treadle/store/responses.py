"""Responses: rows that name a span of a thread, written in one transaction when a turn settles.

While a response runs, its row has a lease and keeps its inputs to itself; no thread holds anything of it yet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from treadle import ports
from treadle.errors import ConversationLocked, InvalidRequest, NotFound, PreviousNotFound, StorageFault
from treadle.ids import plausible
from treadle.ports import (
    Checkpoint,
    EventChunk,
    NewJob,
    Order,
    ResponsePage,
    ResponseRow,
    SettledTurn,
    StoredItem,
    StoredResponse,
)
from treadle.scope import Scope
from treadle.store import event_log, jobs, threads
from treadle.store.db import Connection, Database

LOST = {"code": "server_error", "message": "The server stopped while it was working on this response."}
"""The `error` of a response whose process went away."""

JOB_LEASE = 1 << 62
"""The lease of a response that a job makes: the job is what has one."""

_data = msgspec.json.Decoder(dict[str, msgspec.Raw])
_inputs = msgspec.msgpack.Decoder(list[StoredItem])


class SqlResponses(ports.Responses):
    """The `Responses` port over a `Database`. `clock` gives Unix seconds; leases are measured by it."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def settle(self, scope: Scope, turn: SettledTurn) -> Checkpoint:
        return await self._database.write(partial(_settle, scope=scope, turn=turn, now=self._clock()), guarded=True)

    async def begin(self, scope: Scope, row: ResponseRow, inputs: list[StoredItem], lease_until: int) -> None:
        await self._database.write(partial(_begin, scope=scope, row=row, inputs=inputs, lease=lease_until))

    async def queue(
        self,
        scope: Scope,
        row: ResponseRow,
        inputs: list[StoredItem],
        job: NewJob,
        *,
        most: int,
        events: EventChunk | None = None,
    ) -> None:
        work = partial(
            _queue, scope=scope, row=row, inputs=inputs, job=job, most=most, events=events, now=self._clock()
        )
        await self._database.write(work, guarded=True)

    async def holder(self, scope: Scope, conversation_id: str) -> str | None:
        work = partial(_holder, scope=scope, conversation=conversation_id, now=self._clock())
        return await self._database.read(work)

    async def renew(self, scope: Scope, ids: Sequence[str], lease_until: int) -> None:
        await self._database.write(partial(_renew, scope=scope, ids=[*filter(plausible, ids)], lease=lease_until))

    async def abandon(self, scope: Scope, response_id: str) -> None:
        if plausible(response_id):
            await self._database.write(partial(_abandon, scope=scope, response_id=response_id))

    async def get(self, scope: Scope, response_id: str) -> StoredResponse | None:
        if not plausible(response_id):
            return None
        found = await self._database.read(partial(_find, scope=scope, where="r.id = ?", params=(response_id,)))
        return self._shown(found[0]) if found else None

    async def page(
        self, scope: Scope, *, after: str | None, limit: int, order: Order, model: str | None
    ) -> ResponsePage:
        if after is not None and not plausible(after):
            raise _unknown_cursor()
        work = partial(_page, scope=scope, after=after, limit=limit, order=order, model=model)
        found = await self._database.read(work)
        return ResponsePage([self._shown(response) for response in found[:limit]], has_more=len(found) > limit)

    async def delete(self, scope: Scope, response_id: str) -> bool:
        return plausible(response_id) and await self._database.write(
            partial(_delete, scope=scope, response_id=response_id)
        )

    async def checkpoint(self, scope: Scope, response_id: str) -> tuple[ResponseRow, Checkpoint] | None:
        """InvalidRequest (`param="previous_response_id"`) for a response that has not been settled: it has no end."""
        if not plausible(response_id):
            return None
        found = await self._database.read(
            partial(_find_rows, scope=scope, where="r.id = ?", params=(response_id,), tail="")
        )
        if not found:
            return None
        span = found[0]
        row = self._current(span)
        if span.thread is None:
            raise InvalidRequest(
                f"Previous response '{response_id}' is {row.status} and cannot be continued.",
                param="previous_response_id",
            )
        return row, Checkpoint(span.thread, span.end)

    async def history(self, scope: Scope, checkpoint: Checkpoint) -> list[StoredItem]:
        return await self._database.read(partial(threads.history, scope=scope, end=checkpoint))

    async def find_items(self, scope: Scope, ids: Sequence[str]) -> dict[str, StoredItem]:
        wanted = [*filter(plausible, ids)]
        return await self._database.read(partial(_find_items, scope=scope, ids=wanted)) if wanted else {}

    def _current(self, span: _Span) -> ResponseRow:
        if span.lease is not None and span.lease < self._clock():
            span.row.status = "failed"
            span.row.data = _with_error(span.row.data)
        return span.row

    def _shown(self, found: _Found) -> StoredResponse:
        return StoredResponse(self._current(found.span), found.inputs, found.outputs)


def fail_interrupted(connection: Connection, *, before: int = 1 << 62) -> None:
    """Marks everything as failed that still counts as running and whose lease ended before that Unix second: all of it
    by default, which is only for a process that has the database to itself."""
    before = min(before, JOB_LEASE)
    connection.execute("DELETE FROM responses WHERE lease < ? AND deleted = 1", (before,))
    rows = connection.execute("SELECT data, id FROM responses WHERE lease < ?", (before,))
    connection.executemany(
        "UPDATE responses SET status = 'failed', lease = NULL, data = ? WHERE id = ?",
        [(_with_error(data), response_id) for data, response_id in rows],
    )


# ---------------------------------------------------------------------------------------------- writing


def _settle(connection: Connection, scope: Scope, turn: SettledTurn, now: float) -> Checkpoint:
    """Guarded: by the row of the thread that it extends, or by what it branches off from."""
    row, base = turn.row, turn.base
    if turn.job is not None:
        jobs.end(connection, scope, turn.job, int(now))
    items = [*turn.inputs, *turn.outputs]
    if base is None:
        thread, start = threads.create(connection, scope, count=len(items), created_at=row.created_at), 0
    elif turn.append_to_conversation:
        threads.extend_conversation(connection, scope, base, len(items))
        threads.refuse_known_ids(connection, base.thread, items)
        thread, start = base.thread, base.pos
    else:
        if row.previous is not None:
            _require(connection, scope, row.previous)
        else:  # a turn of a conversation that is kept outside of it
            connection.guard("threads", "tip", "key = ?", (base.thread,))
        thread = threads.extend(connection, scope, base, len(items), row.created_at)
        start = base.pos
    threads.put(connection, thread, start, items)
    end = start + len(items)
    _write_settled(connection, scope, row, (thread, start, start + len(turn.inputs), end))
    if turn.events is not None:
        event_log.put(connection, row.id, turn.events)
    for job in turn.jobs:
        jobs.put(connection, scope, job, int(now * 1000))
    return Checkpoint(thread, end)


def _queue(
    connection: Connection,
    scope: Scope,
    row: ResponseRow,
    inputs: list[StoredItem],
    job: NewJob,
    most: int,
    events: EventChunk | None,
    now: float,
) -> None:
    if row.conversation is not None:
        # Two who look at once must not both find it free: guarded by the row of the thread.
        named = "name = ? AND tenant = ? AND owner = ?"
        connection.guard("threads", "tip", named, (row.conversation, scope.tenant, scope.owner))
        if _holder(connection, scope, row.conversation, now) is not None:
            raise ConversationLocked(
                f"Another response is being made in conversation '{row.conversation}'. Try again when it is done.",
                param="conversation",
            )
    jobs.put(connection, scope, job, int(now * 1000), most)
    _begin(connection, scope, row, inputs, JOB_LEASE)
    if events is not None:
        event_log.put(connection, row.id, events)


def _holder(connection: Connection, scope: Scope, conversation: str, now: float) -> str | None:
    rows = connection.execute(
        "SELECT id FROM responses WHERE lease >= ? AND conversation = ? AND tenant = ? AND owner = ? AND deleted = 0"
        " LIMIT 1",
        (math.ceil(now), conversation, scope.tenant, scope.owner),
    )
    return rows[0][0] if rows else None


def _require(connection: Connection, scope: Scope, previous: str) -> None:
    """Without its predecessor a turn's history may have holes, so it must not be stored as if it were whole. As long as
    that is there, all that comes before it is."""
    if not connection.guard(
        "responses",
        "deleted",
        "id = ? AND tenant = ? AND owner = ? AND deleted = 0",
        (previous, scope.tenant, scope.owner),
    ):
        raise PreviousNotFound(
            f"Previous response with id '{previous}' was deleted in the meantime.", param="previous_response_id"
        )


def _write_settled(connection: Connection, scope: Scope, row: ResponseRow, span: tuple[int, int, int, int]) -> None:
    written = connection.change(
        "INSERT INTO responses (id, tenant, owner, created_at, completed_at, status, model, previous, conversation,"
        " thread, start_pos, input_end, end_pos, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, completed_at = excluded.completed_at,"
        " status = excluded.status, model = excluded.model, previous = excluded.previous,"
        " conversation = excluded.conversation, thread = excluded.thread, start_pos = excluded.start_pos,"
        " input_end = excluded.input_end, end_pos = excluded.end_pos, data = excluded.data, lease = NULL, inputs = NULL"
        " WHERE responses.tenant = excluded.tenant AND responses.owner = excluded.owner"
        " AND responses.lease IS NOT NULL AND responses.deleted = 0",
        (
            row.id,
            scope.tenant,
            scope.owner,
            row.created_at,
            row.completed_at,
            row.status,
            row.model,
            row.previous,
            row.conversation,
            *span,
            row.data,
        ),
    )
    if not written:
        _refuse(connection, scope, row.id)


def _begin(connection: Connection, scope: Scope, row: ResponseRow, inputs: list[StoredItem], lease: int) -> None:
    written = connection.change(
        "INSERT INTO responses (id, tenant, owner, created_at, status, model, previous, conversation, lease, data,"
        " inputs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET status = excluded.status, model = excluded.model, lease = excluded.lease,"
        " data = excluded.data, inputs = excluded.inputs"
        " WHERE responses.tenant = excluded.tenant AND responses.owner = excluded.owner"
        " AND responses.lease IS NOT NULL AND responses.deleted = 0",
        (
            row.id,
            scope.tenant,
            scope.owner,
            row.created_at,
            row.status,
            row.model,
            row.previous,
            row.conversation,
            lease,
            row.data,
            msgspec.msgpack.encode(inputs),
        ),
    )
    if not written:
        _refuse(connection, scope, row.id)


def _refuse(connection: Connection, scope: Scope, response_id: str) -> None:
    """Says why a row could not be written."""
    if connection.execute(
        "SELECT 1 FROM responses WHERE id = ? AND tenant = ? AND owner = ? AND deleted = 1",
        (response_id, scope.tenant, scope.owner),
    ):
        raise NotFound(f"Response '{response_id}' was deleted in the meantime.")
    raise StorageFault(f"Response '{response_id}' is settled already.", code="response_already_settled")


def _renew(connection: Connection, scope: Scope, ids: Sequence[str], lease: int) -> None:
    for some in threads.batches(ids):
        connection.change(
            f"UPDATE responses SET lease = ? WHERE id IN ({threads.marks(some)}) AND tenant = ? AND owner = ?"  # noqa: S608 -- only placeholders and fixed words
            " AND lease IS NOT NULL AND deleted = 0",
            (lease, *some, scope.tenant, scope.owner),
        )


def _abandon(connection: Connection, scope: Scope, response_id: str) -> None:
    connection.change(
        "DELETE FROM responses WHERE id = ? AND tenant = ? AND owner = ? AND lease IS NOT NULL",
        (response_id, scope.tenant, scope.owner),
    )


def _delete(connection: Connection, scope: Scope, response_id: str) -> bool:
    running = connection.change(
        # An empty row stays until the turn ends, so that settling cannot bring the response back.
        "UPDATE responses SET deleted = 1, model = '', previous = NULL, conversation = NULL, data = ?, inputs = NULL"
        " WHERE id = ? AND tenant = ? AND owner = ? AND lease IS NOT NULL AND deleted = 0",
        (b"{}", response_id, scope.tenant, scope.owner),
    )
    if running:
        return True
    found = connection.execute(
        "DELETE FROM responses WHERE id = ? AND tenant = ? AND owner = ? AND deleted = 0 RETURNING thread",
        (response_id, scope.tenant, scope.owner),
    )
    if found:
        event_log.remove(connection, response_id)
    if found and found[0][0] is not None:
        threads.sweep(connection, scope, found[0][0])
    return bool(found)


# ---------------------------------------------------------------------------------------------- reading


class _Span(NamedTuple):
    """A response row as stored, and where its items are."""

    row: ResponseRow
    lease: int | None
    thread: int | None
    start: int
    input_end: int
    end: int
    inputs: bytes | None


class _Found(NamedTuple):
    span: _Span
    inputs: list[StoredItem]
    outputs: list[StoredItem]


def _find_rows(connection: Connection, scope: Scope, where: str, params: Sequence[str | int], tail: str) -> list[_Span]:
    rows = connection.execute(
        "SELECT r.id, r.status, r.model, r.created_at, r.completed_at, r.previous, r.conversation, r.data,"  # noqa: S608 -- only placeholders and fixed words
        " r.lease, r.thread, r.start_pos, r.input_end, r.end_pos, r.inputs FROM responses r"
        f" WHERE r.tenant = ? AND r.owner = ? AND r.deleted = 0 AND {where} {tail}",
        (scope.tenant, scope.owner, *params),
    )
    return [
        _Span(
            ResponseRow(
                id=response_id,
                status=status,
                model=model,
                created_at=created_at,
                completed_at=completed_at,
                previous=previous,
                conversation=conversation,
                data=data,
            ),
            *place,
        )
        for response_id, status, model, created_at, completed_at, previous, conversation, data, *place in rows
    ]


def _find(
    connection: Connection, scope: Scope, where: str, params: Sequence[str | int], tail: str = ""
) -> list[_Found]:
    """Responses with their items: two statements, however many responses."""
    spans = _find_rows(connection, scope, where, params, tail)
    found = {
        span.row.id: _Found(span, [] if span.inputs is None else _inputs.decode(span.inputs), []) for span in spans
    }
    for some in threads.batches([span.row.id for span in spans if span.thread is not None]):
        rows = connection.execute(
            "SELECT r.id, i.pos, i.id, i.kind, i.data FROM responses r JOIN items i ON i.thread = r.thread"  # noqa: S608 -- only placeholders and fixed words
            f" AND i.pos >= r.start_pos AND i.pos < r.end_pos WHERE r.id IN ({threads.marks(some)})"
            " AND r.tenant = ? AND r.owner = ? ORDER BY r.id, i.pos",
            (*some, scope.tenant, scope.owner),
        )
        for response_id, pos, item_id, kind, data in rows:
            span, inputs, outputs = found[response_id]
            (inputs if pos < span.input_end else outputs).append(StoredItem(item_id, kind, data))
    return list(found.values())


def _page(
    connection: Connection, scope: Scope, after: str | None, limit: int, order: Order, model: str | None
) -> list[_Found]:
    """Up to one more than `limit`, so that the caller sees whether there is more."""
    where, params = "1 = 1", list[str | int]()
    if after is not None:
        cursor = _find_rows(connection, scope, "r.id = ?", (after,), "")
        if not cursor:
            raise _unknown_cursor()
        where = f"(r.created_at, r.id) {'>' if order == 'asc' else '<'} (?, ?)"
        params += (cursor[0].row.created_at, after)
    if model is not None:
        where += " AND r.model = ?"
        params.append(model)
    direction = "ASC" if order == "asc" else "DESC"
    tail = f"ORDER BY r.created_at {direction}, r.id {direction} LIMIT ?"
    return _find(connection, scope, where, (*params, limit + 1), tail)


def _find_items(connection: Connection, scope: Scope, ids: Sequence[str]) -> dict[str, StoredItem]:
    """Of several items with one id, the newest."""
    found: dict[str, StoredItem] = {}
    for some in threads.batches(ids):
        rows = connection.execute(
            "SELECT i.id, i.kind, i.data FROM items i JOIN threads t ON t.key = i.thread"  # noqa: S608 -- only placeholders and fixed words
            f" WHERE i.id IN ({threads.marks(some)}) AND i.hidden = 0 AND t.tenant = ? AND t.owner = ?"
            " ORDER BY i.thread, i.pos",
            (*some, scope.tenant, scope.owner),
        )
        found.update((row[0], StoredItem(*row)) for row in rows)
    return found


def _with_error(data: bytes) -> bytes:
    return msgspec.json.encode({**_data.decode(data), "error": LOST})


def _unknown_cursor() -> InvalidRequest:
    return InvalidRequest("No response has the id given as cursor.", param="after")
