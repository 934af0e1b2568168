"""A worker's link to Postgres: transactions that run again after a conflict, on a connection that is made anew when it
was lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import psycopg

from treadle.errors import StorageFault
from treadle.store.db import Connection
from treadle.store.postgres_connection import Address, PostgresConnection
from treadle.store.workers import Job

READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITING = b"BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"
GUARDED = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE"

CONFLICT_SECONDS = 10.0
"""How long a piece of work is run again and again because others were faster."""

RECONNECT_SECONDS = 2.0
"""How long work that finds the database away waits for it: it may be starting again."""

_CONFLICTS = {"40001", "40P01"}  # serialisation failure, deadlock
_OVERTAKEN = {"23503", "23505"}  # what a check did not see yet: under serialisable isolation a conflict too
_FORGOTTEN = {"26000"}  # a prepared statement
_MOST_PAUSE = 0.1

_KNOWN = {
    "40001": "The database is busy.",
    "40P01": "The database is busy.",
    "55P03": "The database is busy.",
    "57014": "The database took too long.",
    "53100": "The database's disk is full.",
    "53300": "The database takes no further connections.",
    "25006": "The database cannot be written.",
}


def fault(error: psycopg.Error) -> StorageFault:
    """What callers may know about `error`: its kind, and neither SQL nor data."""
    return StorageFault(_KNOWN.get(error.sqlstate or "", f"The database failed ({error.sqlstate or _kind(error)})."))


def _kind(error: psycopg.Error) -> str:
    return type(error).__name__


class Outage:
    """When any link last found the database away."""

    def __init__(self) -> None:
        self.seen = float("-inf")


class Link:
    """Runs jobs, one at a time, on a connection of its own. Links of one pool share what they know of an outage."""

    def __init__(self, address: Address, outage: Outage) -> None:
        self._address = address
        self._outage = outage
        self._connection: PostgresConnection | None = None

    def run(self, job: Job) -> object:
        """What the job's work gives. Raises what it raises; faults of the database as StorageFault."""
        until = time.monotonic() + CONFLICT_SECONDS
        tries = 0
        while True:
            connection = self._connected(job.asked)
            try:
                return _transaction(connection, job.work, job.manner)
            except psycopg.Error as error:
                # Whatever it was, nothing of the work is stored.
                gone = connection.lost or error.sqlstate in _FORGOTTEN
                if gone:
                    self.close()
                tries += 1
                again = (
                    time.monotonic() < until
                    if error.sqlstate in _CONFLICTS
                    else tries < 3 and (gone or error.sqlstate in _OVERTAKEN)
                )
                if not again:
                    raise fault(error) from error
            time.sleep(random.uniform(0, min(_MOST_PAUSE, 0.001 * 2.0**tries)))  # noqa: S311 -- spreads rivals out

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, asked: float) -> PostgresConnection:
        """The connection, made if there is none. StorageFault if it cannot be made, or could not be made just now by
        anybody: a long queue must not wait for one time-out after the other."""
        while self._connection is None:
            if self._outage.seen > asked + RECONNECT_SECONDS:
                raise StorageFault("The database cannot be reached.")
            try:
                self._connection = PostgresConnection(self._address)
            except psycopg.Error as error:
                self._outage.seen = time.monotonic()
                if self._outage.seen > asked + RECONNECT_SECONDS:
                    raise StorageFault("The database cannot be reached.") from error
                time.sleep(_MOST_PAUSE)
        return self._connection


def _transaction(connection: PostgresConnection, work: Callable[[Connection], object], manner: bytes) -> object:
    """psycopg.Error only if nothing was stored."""
    connection.begin(manner)
    try:
        value = work(connection)
    except BaseException:
        connection.roll_back()
        raise
    connection.commit()
    return value
