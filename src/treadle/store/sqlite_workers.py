"""The threads on which SQLite runs: a writer that commits in groups, and readers.

One commit for everything that was waiting makes full durability nearly free under load (one sync per group, not per
write), and a single writer means that no write of this process ever finds the database locked by another.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from queue import Empty

from treadle.errors import StorageFault
from treadle.store.db import Row, Value
from treadle.store.workers import Job, Workers, deliver

log = logging.getLogger(__name__)

GROUP = 128
"""Writes per commit at most, so that the first of a long queue does not wait for the last."""

IDLE_SECONDS = 1.0
"""How long the writer is idle before it folds the write-ahead log back into the file."""

BUSY_MILLISECONDS = 30_000
"""How long a transaction waits for one of another process."""


class SqliteConnection:
    """A `db.Connection` over one sqlite3 connection. For one thread at a time."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self._cursor = raw.cursor()

    def execute(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        return self._cursor.execute(sql, params).fetchall()

    def change(self, sql: str, params: Sequence[Value] = ()) -> int:
        return self._cursor.execute(sql, params).rowcount

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        self._cursor.executemany(sql, rows)

    def guard(self, table: str, column: str, where: str, params: Sequence[Value] = ()) -> bool:
        del column  # there is one writer at a time
        return bool(self.execute(f"SELECT 1 FROM {table} WHERE {where}", params))  # noqa: S608 -- fixed words


def fault(error: sqlite3.Error) -> StorageFault:
    """What callers may know about `error`: its kind, and neither SQL nor data."""
    name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
    known = {
        "SQLITE_BUSY": "The database is busy.",
        "SQLITE_FULL": "The database's disk is full.",
        "SQLITE_READONLY": "The database cannot be written.",
        "SQLITE_CORRUPT": "The database file is damaged.",
        "SQLITE_NOTADB": "The database file is not a database.",
    }
    result = StorageFault(known.get(name, f"The database failed ({name})."))
    result.__cause__ = error
    return result


def _failure(error: BaseException) -> BaseException:
    """What the waiter gets to see."""
    return fault(error) if isinstance(error, sqlite3.Error) else error


class SqliteWorkers(Workers[SqliteConnection]):
    def release(self, connection: SqliteConnection) -> None:
        connection.raw.close()


class Readers(SqliteWorkers):
    """Each piece of work sees one snapshot."""

    def serve(self, connection: SqliteConnection) -> None:
        while (job := self._queue.get()) is not None:
            try:
                connection.execute("BEGIN")
                job.value = job.work(connection)
                connection.execute("COMMIT")
            except BaseException as error:  # noqa: BLE001 -- it belongs to the waiter, and the thread must go on
                job.fail(_failure(error))
                if connection.raw.in_transaction:
                    connection.execute("ROLLBACK")
            deliver([job])


class Writer(SqliteWorkers):
    """Takes all that waits, runs each piece in its own savepoint, commits once, and only then tells the waiters."""

    def serve(self, connection: SqliteConnection) -> None:
        dirty, ended = False, False
        while not ended:
            try:
                first = self._queue.get(timeout=IDLE_SECONDS if dirty else None)
            except Empty:
                dirty = not _fold_log(connection)
                continue
            jobs, ended = self._drain(first)
            if jobs:
                _run_group(connection, jobs)
                deliver(jobs)
                dirty = True

    def _drain(self, first: Job | None) -> tuple[list[Job], bool]:
        jobs: list[Job] = []
        job = first
        try:
            while job is not None:
                jobs.append(job)
                if len(jobs) == GROUP:
                    return jobs, False
                job = self._queue.get_nowait()
        except Empty:
            return jobs, False
        return jobs, True


def _run_group(connection: SqliteConnection, jobs: list[Job]) -> None:
    """Runs `jobs` in one transaction. Any fault of the transaction itself is the fault of every one of them."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job in jobs:
            _run_one(connection, job)
        connection.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001 -- it belongs to the waiters, and the thread must go on
        for job in jobs:
            job.fail(_failure(error))
        if connection.raw.in_transaction:
            connection.execute("ROLLBACK")


def _run_one(connection: SqliteConnection, job: Job) -> None:
    connection.execute("SAVEPOINT one")
    try:
        job.value = job.work(connection)
    except BaseException as error:
        # Some faults (disk full, out of memory) end the whole transaction: then the whole group has failed.
        if not connection.raw.in_transaction:
            raise
        job.fail(_failure(error))
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")


def _fold_log(connection: SqliteConnection) -> bool:
    """Moves the log into the file and empties it; gives whether that worked. Readers and other processes may be in
    the way: then a later idle moment does it."""
    try:
        connection.execute("PRAGMA busy_timeout = 20")
        ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return not busy
    except sqlite3.Error as error:
        log.warning("the write-ahead log could not be folded: %r", error)
        return True
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
