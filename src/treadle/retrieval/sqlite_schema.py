"""The index file: opening it, its settings and its tables.

A chunk is a row in three tables under one id, so that loading vectors reads no text and loading rows reads neither.
The words of all collections are in one full-text table, each word with its collection's number before it: a search
touches the postings of its own collection only, however many others there are. (A table for each collection would be
dropped faster, but with 3,000 of them opening the file takes 450 ms, and so does every connection's next statement
after one more was made.) Only the table's postings are used: it is contentless, and weights are computed from postings
within one collection, exactly.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from treadle.errors import StorageFault
from treadle.retrieval import words
from treadle.retrieval.sqlite_threads import BUSY_MILLISECONDS, Connection

REVISION = 100 * words.VERSION + 1
"""Of tables and words together, kept in `user_version`."""

PAGE_BYTES = 16_384
"""Vectors are blobs of 1.5 to 12 KB that are read one after the other. Pages this large hold them without waste."""

LOG_PAGES = 2048
"""Pages in the write-ahead log before a commit folds it back. (An idle writer does it earlier.)"""

CACHE_KB = 8192
"""Pages that each connection keeps."""

OLDEST_SQLITE = (3, 35, 0)
"""The first release that knows RETURNING."""

_TABLES = """
CREATE TABLE collections (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    store TEXT NOT NULL,
    dimensions INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 0, -- grows with every change of what can be found
    UNIQUE (tenant, store)
);
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL,
    name TEXT, -- NULL: removed, and waiting to be cleared away
    published INTEGER NOT NULL DEFAULT 0, -- the collection's version that it came with; 0: not yet, or removed
    UNIQUE (collection, name)
);
CREATE INDEX published_files ON files (collection, published) WHERE published > 0;
CREATE INDEX removed_files ON files (number) WHERE name IS NULL;
CREATE TABLE chunks (
    file INTEGER NOT NULL,
    number INTEGER NOT NULL,
    id INTEGER NOT NULL,
    words INTEGER NOT NULL,
    bytes INTEGER NOT NULL, -- of text and vector
    PRIMARY KEY (file, number)
) WITHOUT ROWID;
CREATE TABLE texts (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL, page INTEGER, section TEXT);
CREATE TABLE vectors (id INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE VIRTUAL TABLE terms USING fts5 (words, content = '', columnsize = 0, tokenize = 'ascii');
CREATE VIRTUAL TABLE postings USING fts5vocab (terms, 'instance');
CREATE VIRTUAL TABLE frequencies USING fts5vocab (terms, 'row');
"""


def prepare(path: Path) -> None:
    """Makes the file and its tables if they are not there. StorageFault if it cannot be used."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StorageFault(f"SQLite {sqlite3.sqlite_version} is too old; 3.35 is the oldest that works.")
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # before SQLite makes it readable for all
    connection = open_connection(path)
    try:
        _use_write_ahead_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        ((revision,),) = connection.execute("PRAGMA user_version").fetchall()
        if revision == 0:
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {REVISION}")
        elif revision != REVISION:
            raise StorageFault(
                f"The index file has revision {revision}; this version of Treadle knows revision {REVISION}."
            )
        connection.execute("COMMIT")
    finally:
        connection.close()


def open_connection(path: Path) -> Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    for pragma in (
        f"busy_timeout = {BUSY_MILLISECONDS}",
        f"page_size = {PAGE_BYTES}",  # counts for a new file only
        f"cache_size = -{CACHE_KB}",
        f"wal_autocheckpoint = {LOG_PAGES}",
        "synchronous = FULL",
        "secure_delete = ON",  # what is removed is not left readable in the file
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def open_for_reading(path: Path) -> Connection:
    connection = open_connection(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _use_write_ahead_log(connection: Connection) -> None:
    """Switching fails at once, busy timeout or not, while another process switches: so try again for a while."""
    deadline = time.monotonic() + BUSY_MILLISECONDS / 1000
    while True:
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise StorageFault("The index's file system does not allow write-ahead logging (shared memory).")
        return
