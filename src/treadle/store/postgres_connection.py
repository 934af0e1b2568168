"""A connection to Postgres: where it leads, how it is set up, and transactions on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

import psycopg
from psycopg import RawCursor, errors, pq
from psycopg.adapt import Buffer, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import StrBinaryDumper

from treadle.errors import StorageFault
from treadle.store.db import Row, Value

SCHEMA = "treadle"
"""Where our tables are, apart from those of other programs and of the index of chunks."""

_DEFAULTS: dict[str, str | int] = {
    "application_name": "treadle",
    "connect_timeout": 5,
    # A peer that has vanished without a word is noticed within half a minute, as long as a thread waits for it.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""What the address may say otherwise. Seconds; the last one milliseconds."""

_SETUP = (
    f"SET search_path = {SCHEMA}; SET lock_timeout = '10s'; SET statement_timeout = '60s';"
    # A process that is stopped in the middle must not hold up the others for longer than this.
    " SET idle_in_transaction_session_timeout = '30s'"
).encode()

_STATEMENTS = 1024
"""Translated statements that are remembered; there are some for each length of a list."""

_PREPARED = 200
"""Statements that each connection keeps prepared."""


class Address:
    """What `store.url` says about a Postgres. ValueError if it is no such address; the text never shows it, because
    there may be a password in it."""

    def __init__(self, url: str) -> None:
        try:
            self.parameters = {**_DEFAULTS, **conninfo_to_dict(url), "client_encoding": "utf8"}
        except psycopg.Error:
            raise ValueError(
                "`store.url`: not an address that Postgres knows: postgresql://user:password@host:port/database,"
                " with %-codes for special characters"
            ) from None

    def __str__(self) -> str:
        """Host, port and database."""
        given = self.parameters
        host = given.get("host") or given.get("hostaddr")
        port = f":{given['port']}" if given.get("port") else ""
        name = f"/{given['dbname']}" if given.get("dbname") else ""
        return f"Postgres at {host}{port}{name}" if host else f"Postgres{name}"

    def connect(self) -> psycopg.Connection[Row]:
        """psycopg.Error if that fails."""
        return psycopg.connect(
            **self.parameters,  # type: ignore[arg-type]  # connection parameters, and none of psycopg's own
            autocommit=True,
        )


class PostgresConnection:
    """A `db.Connection` over one of psycopg's. For one thread at a time."""

    def __init__(self, address: Address) -> None:
        self._raw = address.connect()
        self._raw.prepared_max = _PREPARED
        adapters = self._raw.adapters
        # One type for each kind of value: otherwise every size of number would make a statement of its own.
        for kind in (int, bool):
            adapters.register_dumper(kind, Int8BinaryDumper)
        adapters.register_dumper(str, StrBinaryDumper)
        adapters.register_loader("numeric", _NumberLoader)  # sums
        self._cursor = RawCursor(self._raw)
        self.command(_SETUP)

    @property
    def lost(self) -> bool:
        return self._raw.closed

    def close(self) -> None:
        self._raw.close()

    def execute(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        cursor = self._cursor.execute(translated(sql), _storable(params), binary=True)
        return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

    def change(self, sql: str, params: Sequence[Value] = ()) -> int:
        return self._cursor.execute(translated(sql), _storable(params)).rowcount

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        given = list(rows)
        if len(given) == 1:  # a pipeline would cost more than it saves
            self.change(sql, given[0])
        else:
            self._cursor.executemany(translated(sql), map(_storable, given))

    def guard(self, table: str, column: str, where: str, params: Sequence[Value] = ()) -> bool:
        return self.change(f"UPDATE {table} SET {column} = {column} WHERE {where}", params) > 0  # noqa: S608 -- fixed words

    def begin(self, manner: bytes) -> None:
        self.command(manner)
        self._cursor = RawCursor(self._raw)  # the one before would keep all that it has read last

    def command(self, sql: bytes) -> bytes:
        """Runs statements without parameters, past the driver's cursor, which costs half of them. Gives the last
        one's tag."""
        result = self._raw.pgconn.exec_(sql)
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)
        return result.command_status or b""

    def commit(self) -> None:
        """psycopg.Error when the database has refused, so that nothing is stored; StorageFault when it cannot be
        known."""
        try:
            tag = self.command(b"COMMIT")
        except psycopg.Error as error:
            if not self.lost:
                raise
            raise StorageFault(
                "The connection to the database was lost while it was storing; whether it did is not known."
            ) from error
        if tag != b"COMMIT":  # the transaction was broken, and the work has not let it be known
            raise StorageFault("The database has undone the work.")

    def roll_back(self) -> None:
        """A connection on which that fails is closed."""
        with suppress(psycopg.Error):
            self.command(b"ROLLBACK")
        if self._raw.info.transaction_status != pq.TransactionStatus.IDLE:
            self._raw.close()


def _storable(params: Sequence[Value]) -> list[Value]:
    """Postgres knows no text with the character NUL."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value for value in params]


class _NumberLoader(Loader):
    """Numbers as SQLite gives them: whole ones as int."""

    format = pq.Format.BINARY

    def load(self, data: Buffer) -> int | float:
        number = NumericBinaryLoader(self.oid, self.connection).load(data)
        whole = int(number)
        return whole if whole == number else float(number)


_PLACES = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\?""")


@lru_cache(_STATEMENTS)
def translated(sql: str) -> bytes:
    """The statement with `$1`, `$2`, … for its `?`, but for those inside quotes."""
    number = 0

    def place(found: re.Match[str]) -> str:
        nonlocal number
        if found[0] != "?":
            return found[0]
        number += 1
        return f"${number}"

    return _PLACES.sub(place, sql).encode()
