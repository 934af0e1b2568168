"""From the `store.url` setting to a database."""

from __future__ import annotations

import asyncio
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.store.db import Connection, Database
from treadle.store.ingestion import release_all
from treadle.store.jobs import release_jobs
from treadle.store.migrate import is_postgres
from treadle.store.responses import fail_interrupted
from treadle.store.sqlite import Sqlite

if TYPE_CHECKING:
    from treadle.store.postgres import Postgres

__all__ = ["CONNECTIONS", "connect", "is_postgres", "look"]

CONNECTIONS = 8
"""To Postgres, at most, unless the settings say otherwise."""


def connect(url: str, *, connections: int = CONNECTIONS) -> Database:
    """A database that is not started yet. `url`: a path, `sqlite:///` and a path, or an address of Postgres, to which
    there will be that many connections. ValueError for anything else, and where the driver is missing."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Sqlite(Path(url), recover=_recover)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Sqlite(Path(rest[1:]), recover=_recover)
    if is_postgres(url):
        return _postgres(url, connections)
    raise ValueError(
        f"`store.url`: {scheme}:// is not supported; give a path, sqlite:///path or postgresql://host/database"
    )


async def look(url: str) -> str:
    """What is found at an address of Postgres, in words; nothing is changed there. StorageFault if it cannot be used,
    ValueError if it is no address or the driver is missing."""
    return await asyncio.to_thread(_postgres(url, CONNECTIONS).look)


def _postgres(url: str, connections: int) -> Postgres:
    if find_spec("psycopg") is None:
        raise ValueError("`store.url`: Postgres needs psycopg: pip install 'treadle[postgres]'")
    from treadle.store.postgres import Postgres  # the driver is an extra

    return Postgres(url, connections=connections, recover=_recover_expired)


def _recover(connection: Connection) -> None:
    """What a lost process was doing: its responses have failed, its files and jobs are taken up again."""
    fail_interrupted(connection)
    release_all(connection)
    release_jobs(connection)


def _recover_expired(connection: Connection) -> None:
    """The same on a database that other processes work on: only leases tell who is lost. Whoever looks for a file to
    index sees by its lease that it is free."""
    fail_interrupted(connection, before=int(time.time()))
