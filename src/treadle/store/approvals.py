"""Answered approval requests: the primary key lets each be used once, whichever process asks.

The key holds the scope too, so that nobody who has come to know a request's id can use it up for its owner.
"""

from __future__ import annotations

import time
from functools import partial

from treadle import ports
from treadle.scope import Scope
from treadle.store.db import Connection, Database
from treadle.wire.base import encode


class SqlApprovals(ports.Approvals):
    """The Approvals port over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, scope: Scope, request_id: str) -> bool:
        return await self._database.write(partial(_claim, scope=scope, request_id=request_id))


def _claim(connection: Connection, scope: Scope, request_id: str) -> bool:
    key = encode([scope.tenant, scope.owner, request_id]).decode()
    written = connection.change(
        "INSERT INTO approvals (request, tenant, owner, answered_at) SELECT ?, ?, ?, ? "
        # Rows from before the key held the scope.
        "WHERE NOT EXISTS (SELECT 1 FROM approvals WHERE request = ? AND tenant = ? AND owner = ?) "
        "ON CONFLICT (request) DO NOTHING",
        (key, scope.tenant, scope.owner, int(time.time()), request_id, scope.tenant, scope.owner),
    )
    return written == 1
