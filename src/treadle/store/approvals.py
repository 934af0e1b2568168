"""Answered approval requests: the primary key lets each be used once, whichever process asks."""

from __future__ import annotations

import time
from functools import partial

from treadle import ports
from treadle.scope import Scope
from treadle.store.db import Connection, Database


class SqlApprovals(ports.Approvals):
    """The Approvals port over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, scope: Scope, request_id: str) -> bool:
        return await self._database.write(partial(_claim, scope=scope, request_id=request_id))


def _claim(connection: Connection, scope: Scope, request_id: str) -> bool:
    written = connection.change(
        "INSERT INTO approvals (request, tenant, owner, answered_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (request) DO NOTHING",
        (request_id, scope.tenant, scope.owner, int(time.time())),
    )
    return written == 1
