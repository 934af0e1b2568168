"""Prompts and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from treadle import ports
from treadle.errors import InvalidRequest
from treadle.ids import plausible
from treadle.ports.prompts import PromptPage, PromptRow
from treadle.ports.store import Order
from treadle.scope import Scope
from treadle.store import cursors
from treadle.store.db import Connection, Database, Row, Value


class _Data(msgspec.Struct, omit_defaults=True):
    """What is stored of a version."""

    text: str
    created_at: int
    variables: list[str] = []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Data).decode


class SqlPrompts(ports.Prompts):
    """The `Prompts` port over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, scope: Scope, row: PromptRow) -> None:
        await self._database.write(partial(_create, scope=scope, row=row))

    async def get(self, scope: Scope, prompt_id: str, version: int | None) -> PromptRow | None:
        if not plausible(prompt_id):
            return None
        return await self._database.read(partial(_get, scope=scope, prompt_id=prompt_id, version=version))

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order) -> PromptPage:
        return await self._database.read(partial(_page, scope=scope, after=after, limit=limit, order=order))

    async def versions(
        self, scope: Scope, prompt_id: str, *, after: int | None, limit: int, order: Order
    ) -> PromptPage | None:
        if not plausible(prompt_id):
            return None
        work = partial(_versions, scope=scope, prompt_id=prompt_id, after=after, limit=limit, order=order)
        return await self._database.read(work)

    async def update(self, scope: Scope, row: PromptRow) -> PromptRow | None:
        if not plausible(row.id):
            return None
        return await self._database.write(partial(_update, scope=scope, row=row))

    async def choose(self, scope: Scope, prompt_id: str, version: int) -> PromptRow | None:
        if not plausible(prompt_id):
            return None
        return await self._database.write(partial(_choose, scope=scope, prompt_id=prompt_id, version=version))

    async def delete(self, scope: Scope, prompt_id: str) -> bool:
        if not plausible(prompt_id):
            return False
        return await self._database.write(partial(_delete, scope=scope, prompt_id=prompt_id))


def _row(row: Row) -> PromptRow:
    prompt_id, _, version, chosen, data = row
    kept = _decode(bytes(data))
    return PromptRow(
        id=prompt_id,
        version=version,
        created_at=kept.created_at,
        text=kept.text,
        variables=kept.variables,
        is_default=version == chosen,
    )


def _select(connection: Connection, scope: Scope, where: str, params: Sequence[Value]) -> list[Row]:
    return connection.execute(
        "SELECT p.id, p.created_at, v.version, p.chosen, v.data FROM prompts p"  # noqa: S608 -- only placeholders and fixed words
        f" JOIN prompt_versions v ON v.prompt = p.id WHERE p.tenant = ? AND p.owner = ?{where}",
        (scope.tenant, scope.owner, *params),
    )


def _create(connection: Connection, scope: Scope, row: PromptRow) -> None:
    connection.change(
        "INSERT INTO prompts (id, tenant, owner, created_at, latest, chosen) VALUES (?, ?, ?, ?, ?, ?)",
        (row.id, scope.tenant, scope.owner, row.created_at, row.version, row.version),
    )
    _add(connection, row)


def _add(connection: Connection, row: PromptRow) -> None:
    connection.change(
        "INSERT INTO prompt_versions (prompt, version, data) VALUES (?, ?, ?)",
        (row.id, row.version, _encode(_Data(row.text, row.created_at, row.variables))),
    )


def _get(connection: Connection, scope: Scope, prompt_id: str, version: int | None) -> PromptRow | None:
    wanted = " AND v.version = p.chosen" if version is None else " AND v.version = ?"
    found = _select(connection, scope, " AND p.id = ?" + wanted, (prompt_id, *([] if version is None else [version])))
    return _row(found[0]) if found else None


def _page(connection: Connection, scope: Scope, after: str | None, limit: int, order: Order) -> PromptPage:
    def select(where: str, params: Sequence[Value]) -> list[Row]:
        return _select(connection, scope, " AND v.version = p.chosen" + where, params)

    def place(cursor: str) -> cursors.Place | None:
        found = select(" AND p.id = ?", (cursor,))
        return (found[0][1], found[0][0]) if found else None

    columns = ("p.created_at", "p.id")
    rows, more = cursors.page(select, place, columns, after=after, before=None, limit=limit, order=order)
    return PromptPage([_row(row) for row in rows], more)


def _versions(
    connection: Connection, scope: Scope, prompt_id: str, after: int | None, limit: int, order: Order
) -> PromptPage | None:
    if _get(connection, scope, prompt_id, None) is None:
        return None
    rising = order == "asc"
    beyond = "" if after is None else f" AND v.version {'>' if rising else '<'} ?"
    rows = _select(
        connection,
        scope,
        f" AND p.id = ?{beyond} ORDER BY v.version {'ASC' if rising else 'DESC'} LIMIT ?",
        (prompt_id, *([] if after is None else [after]), limit + 1),
    )
    return PromptPage([_row(row) for row in rows[:limit]], len(rows) > limit)


def _update(connection: Connection, scope: Scope, row: PromptRow) -> PromptRow | None:
    known = connection.execute(
        "SELECT latest, chosen FROM prompts WHERE id = ? AND tenant = ? AND owner = ?",
        (row.id, scope.tenant, scope.owner),
    )
    if not known:
        return None
    latest, chosen = known[0]
    if row.version != latest:
        raise InvalidRequest(
            f"'version' must be the latest version of the prompt, which is {latest}.",
            param="version",
            code="stale_version",
        )
    added = msgspec.structs.replace(row, version=latest + 1)
    connection.change(
        "UPDATE prompts SET latest = ?, chosen = ? WHERE id = ? AND tenant = ? AND owner = ?",
        (added.version, added.version if row.is_default else chosen, row.id, scope.tenant, scope.owner),
    )
    _add(connection, added)
    return added


def _choose(connection: Connection, scope: Scope, prompt_id: str, version: int) -> PromptRow | None:
    if _get(connection, scope, prompt_id, version) is None:
        return None
    connection.change(
        "UPDATE prompts SET chosen = ? WHERE id = ? AND tenant = ? AND owner = ?",
        (version, prompt_id, scope.tenant, scope.owner),
    )
    return _get(connection, scope, prompt_id, version)


def _delete(connection: Connection, scope: Scope, prompt_id: str) -> bool:
    params = (prompt_id, scope.tenant, scope.owner)
    connection.change(
        "DELETE FROM prompt_versions WHERE prompt IN"
        " (SELECT id FROM prompts WHERE id = ? AND tenant = ? AND owner = ?)",
        params,
    )
    return connection.change("DELETE FROM prompts WHERE id = ? AND tenant = ? AND owner = ?", params) > 0
