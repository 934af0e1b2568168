"""Brings a database to the newest schema: `python -m treadle.store.migrate URL`.

The server runs this as a child process, so that it never imports SQLAlchemy or Alembic itself: that would cost
0.6 s at every start and tens of MB for good.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.errors import StorageFault
from treadle.store.db import HEAD, REVISIONS

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger(__name__)

SECONDS = 300
"""How long a migration may take, waiting for another process's one included."""

_LOCK = 7_239_014
"""Names the lock that processes take in Postgres while they migrate."""


def migrate(url: str) -> None:
    """Upgrades the database at `url` (`sqlite:///path`, or an address of Postgres) to HEAD, in one transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    engine = postgres_engine(url) if is_postgres(url) else _sqlite_engine(url.removeprefix("sqlite:///"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def postgres_engine(url: str) -> sa.Engine:
    """Its transactions have our tables to themselves, in a schema of their own."""
    import sqlalchemy as sa
    from sqlalchemy import event
    from sqlalchemy.dialects.postgresql.base import PGTypeCompiler

    from treadle.store.postgres_connection import SCHEMA, Address

    class Types(PGTypeCompiler):
        def visit_TEXT(self, type_: sa.Text, **_: object) -> str:  # noqa: N802 -- SQLAlchemy's name
            """Bytes give the order, as in SQLite: cheaper, and no update of the system can break an index."""
            return 'TEXT COLLATE "C"'

    address = Address(url)

    def connect() -> object:
        raw = address.connect()
        raw.execute(f"SET search_path = {SCHEMA}".encode())
        raw.autocommit = False
        return raw

    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        if connection.exec_driver_sql(f"SELECT to_regnamespace('{SCHEMA}')").scalar() is None:
            connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")

    engine = sa.create_engine("postgresql+psycopg://", creator=connect, poolclass=sa.NullPool)
    engine.dialect.type_compiler_instance = Types(engine.dialect)
    event.listen(engine, "begin", begun)
    return engine


def _sqlite_engine(path: str) -> sa.Engine:
    """The driver leaves transactions alone, and ours begin by waiting for any other writer."""
    import sqlite3

    import sqlalchemy as sa
    from sqlalchemy import event

    def connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {SECONDS * 1000}")

    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    # A path is taken as it is: it may hold characters that mean something in a URL.
    engine = sa.create_engine(sa.URL.create("sqlite", database=path), poolclass=sa.NullPool)
    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine


def needed(revision: str | None) -> bool:
    """Whether a database at `revision` has to be migrated. StorageFault if this code is too old for it."""
    if revision is not None and revision not in REVISIONS:
        raise StorageFault(
            f"The database has schema revision {revision!r}, which this version of Treadle does not know"
            f" (newest known: {HEAD!r}). It was written by a newer version; use that one."
        )
    return revision != HEAD


def migrate_in_child(url: str) -> None:
    """Runs `migrate` in a child process. StorageFault if it fails; what it printed is on the cause."""
    # The child must find the same packages, however this process came to find them. The URL goes through the pipe
    # because it may hold a password, and arguments are visible to every user of the machine.
    code = f"import sys; sys.path[:] = {sys.path!r}; from treadle.store.migrate import main; main()"
    try:
        subprocess.run(  # noqa: S603 -- our own code in our own interpreter
            [sys.executable, "-c", code], input=url, text=True, capture_output=True, timeout=SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raised = re.findall(r"^[\w.]+\.\w+: .+$", error.stderr, re.MULTILINE)
        log.error("the migration failed: %s", raised[-1] if raised else error.stderr)  # noqa: TRY400 -- the trace is not ours
        raise StorageFault("The database schema could not be brought up to date.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageFault("The database schema could not be brought up to date.") from error


def main() -> None:
    migrate(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read().strip())


if __name__ == "__main__":
    main()
