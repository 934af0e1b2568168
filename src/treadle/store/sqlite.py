"""The SQLite engine: opening a file, its settings, its schema. SQLite's own SQL is here and in `sqlite_workers.py`."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from treadle.errors import StorageFault
from treadle.store import migrate
from treadle.store.db import Connection
from treadle.store.lock import FileLock
from treadle.store.sqlite_workers import BUSY_MILLISECONDS, Readers, SqliteConnection, Writer, fault

T = TypeVar("T")

PAGE_BYTES = 1024
"""Most rows are items of one to a few KB: with small pages a row that does not fit spills into pages that it fills,
where 4 KB pages stay up to a third empty. Measured: 1.7 bytes on disk per byte of chat text against 2.4, and a settled
turn costs a fifth less, because each page it touches is written to the log whole."""

LOG_PAGES = 4096
"""Pages in the write-ahead log before a commit folds it back. (An idle writer does it earlier.)"""

READERS = 2
"""More would contend for the interpreter lock; one would let a slow disk read hold up all others."""

OLDEST_SQLITE = (3, 35, 0)
"""The first release that knows RETURNING."""


class Sqlite:
    """A `db.Database` in one file. Several may be open on it, in one process or in several.

    `recover` runs at start, in a transaction, if no other process has the file: what is marked as running then
    belongs to nobody.
    """

    def __init__(self, path: Path, *, recover: Callable[[Connection], None] | None = None) -> None:
        self._path = path
        self._recover = recover
        self._lock = FileLock(path.with_name(path.name + ".lock"))
        self._writer: Writer | None = None
        self._readers: Readers | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def read(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        if self._readers is None:
            raise StorageFault("The database is not open.")
        return self._readers.submit(work)

    def write(self, work: Callable[[Connection], T], *, guarded: bool = False) -> Awaitable[T]:
        del guarded  # one write at a time needs no guards
        if self._writer is None:
            raise StorageFault("The database is not open.")
        return self._writer.submit(work)

    def _start(self) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise StorageFault(f"SQLite {sqlite3.sqlite_version} is too old; 3.35 is the oldest that works.")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # before SQLite makes it readable for all
            self._lock.take()
            self._prepare()
            self._lock.share()
            self._writer = Writer("writer", [SqliteConnection(self._open())])
            self._readers = Readers("reader", [SqliteConnection(self._open_for_reading()) for _ in range(READERS)])
        except BaseException as error:
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise fault(error) from error
            if isinstance(error, OSError):
                raise StorageFault(f"The database file cannot be opened: {error.strerror}.") from error
            raise
        self._writer.start()
        self._readers.start()

    def _prepare(self) -> None:
        """Write-ahead logging, the newest schema, and what a lost process left behind."""
        raw = self._open()
        try:
            connection = SqliteConnection(raw)
            _use_write_ahead_log(connection)
            if migrate.needed(_revision(connection)):
                migrate.migrate_in_child(f"sqlite:///{self._path.absolute()}")
                if migrate.needed(_revision(connection)):
                    raise StorageFault("The database schema could not be brought up to date.")
            if self._recover is not None and self._lock.alone:
                connection.execute("BEGIN IMMEDIATE")
                self._recover(connection)
                connection.execute("COMMIT")
        finally:
            raw.close()

    def _open_for_reading(self) -> sqlite3.Connection:
        raw = self._open()
        raw.execute("PRAGMA query_only = ON")
        return raw

    def _open(self) -> sqlite3.Connection:
        raw = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, cached_statements=256)
        for pragma in (
            f"busy_timeout = {BUSY_MILLISECONDS}",
            f"page_size = {PAGE_BYTES}",  # counts for a new file only
            f"wal_autocheckpoint = {LOG_PAGES}",
            "synchronous = FULL",
            "foreign_keys = ON",
            "secure_delete = ON",  # what is deleted is not left readable in the file
        ):
            raw.execute(f"PRAGMA {pragma}")
        return raw

    def _close(self) -> None:
        for workers in (self._writer, self._readers):
            if workers is not None:
                workers.close()
        self._lock.release()


def _use_write_ahead_log(connection: SqliteConnection) -> None:
    """Switching fails at once, busy timeout or not, while another process switches: so try again for a while."""
    deadline = time.monotonic() + BUSY_MILLISECONDS / 1000
    while True:
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise StorageFault("The database's file system does not allow write-ahead logging (shared memory).")
        return


def _revision(connection: SqliteConnection) -> str | None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"):
        return None
    rows = connection.execute("SELECT version_num FROM alembic_version")
    return str(rows[0][0]) if rows else None
