"""The Postgres engine: starting on a database that other processes may use too, a pool of links, what dead ones left.

Postgres' own SQL is here and in `postgres_*.py`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg

from treadle.errors import StorageFault
from treadle.store import migrate
from treadle.store.db import Connection
from treadle.store.postgres_connection import SCHEMA, Address, PostgresConnection
from treadle.store.postgres_link import GUARDED, READING, WRITING, Link, Outage, fault
from treadle.store.workers import Job, Workers, deliver

T = TypeVar("T")

log = logging.getLogger(__name__)

OLDEST = 14
"""The oldest major release of Postgres that is supported."""

RECOVER_SECONDS = 20.0
"""How often each process looks for what dead ones have left."""

_REASON = re.compile(r"^.*(?:FATAL:|failed:)\s+(.+)$", re.MULTILINE)


class Pool(Workers[Link]):
    """Each piece of work is a transaction of its own."""

    def serve(self, connection: Link) -> None:
        while (job := self._queue.get()) is not None:
            _run(connection, job)
            deliver([job])

    def release(self, connection: Link) -> None:
        connection.close()


def _run(link: Link, job: Job) -> None:
    try:
        job.value = link.run(job)
    except BaseException as error:  # noqa: BLE001 -- it belongs to the waiter, and the thread must go on
        job.fail(error)


class Postgres:
    """A `db.Database` in Postgres, at most `connections` at a time. Any number of processes may be open on it.

    `recover` runs at start and then every RECOVER_SECONDS, as a transaction: leases tell it what nobody works on.
    ValueError if `url` is no address of a Postgres.
    """

    def __init__(self, url: str, *, connections: int = 8, recover: Callable[[Connection], None] | None = None) -> None:
        self._url = url
        self._address = Address(url)
        self._connections = connections
        self._recover = recover
        self._pool: Pool | None = None
        self._recovery: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._prepare)
        outage = Outage()
        self._pool = Pool("postgres", [Link(self._address, outage) for _ in range(self._connections)])
        self._pool.start()
        if self._recover is not None:
            try:
                await self.write(self._recover)
            except BaseException:
                await self.close()
                raise
            self._recovery = asyncio.create_task(self._keep_recovering(self._recover), name="treadle-recovery")

    async def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
        if self._pool is not None:
            await asyncio.to_thread(self._pool.close)

    def read(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        return self._opened().submit(work, READING)

    def write(self, work: Callable[[Connection], T], *, guarded: bool = False) -> Awaitable[T]:
        return self._opened().submit(work, GUARDED if guarded else WRITING)

    def look(self) -> str:
        """What is there, in words. StorageFault if it cannot be used."""
        found = revision(self._address)
        if found is None:
            return f"{self._address} can be used; it is still empty"
        later = ", and the server will bring it up to date" if migrate.needed(found) else ""
        return f"{self._address} can be used; its schema is at revision {found}{later}"

    def _opened(self) -> Pool:
        if self._pool is None:
            raise StorageFault("The database is not open.")
        return self._pool

    def _prepare(self) -> None:
        """The newest schema."""
        if migrate.needed(revision(self._address)):
            migrate.migrate_in_child(self._url)
            if migrate.needed(revision(self._address)):
                raise StorageFault("The database schema could not be brought up to date.")

    async def _keep_recovering(self, recover: Callable[[Connection], None]) -> None:
        while True:
            await asyncio.sleep(RECOVER_SECONDS)
            try:
                await self.write(recover)
            except StorageFault as failure:
                log.warning("what lost processes have left could not be looked for: %s", failure.message)
            except Exception:
                log.exception("looking for what lost processes have left failed in a way that it should not")


def revision(address: Address) -> str | None:
    """The revision of the schema; None if there is none yet, but can be. StorageFault, with the reason in words, if
    the database cannot be used."""
    try:
        connection = PostgresConnection(address)
    except psycopg.Error as error:
        found = _REASON.findall(str(error))
        reason = found[-1] if found else str(error).partition("\n")[0]
        raise StorageFault(f"`store.url`: {address} cannot be used: {reason}") from error
    try:
        _check(connection, address)
        return _revision(connection)
    except psycopg.Error as error:
        raise fault(error) from error
    finally:
        connection.close()


def _check(connection: PostgresConnection, address: Address) -> None:
    ((release, encoding, exists, may_make),) = connection.execute(
        "SELECT current_setting('server_version_num')::bigint / 10000, current_setting('server_encoding'),"
        " to_regnamespace(?) IS NOT NULL, has_database_privilege(current_database(), 'CREATE')",
        (SCHEMA,),
    )
    why = ""
    if release < OLDEST:
        why = f"it is Postgres {release}, and {OLDEST} is the oldest that works"
    elif encoding != "UTF8":
        why = f"its encoding is {encoding}, and UTF8 is needed"
    elif not exists and not may_make:
        why = f"it has no schema `{SCHEMA}`, and the role may not make one"
    if why:
        raise StorageFault(f"`store.url`: {address} cannot be used: {why}.")


def _revision(connection: PostgresConnection) -> str | None:
    if connection.execute("SELECT to_regclass('alembic_version')::text") == [(None,)]:
        return None
    rows = connection.execute("SELECT version_num FROM alembic_version")
    return str(rows[0][0]) if rows else None
