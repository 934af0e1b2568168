"""Brings a database to the newest schema: `python -m treadle.store.migrate URL`.

The server runs this as a child process, so that it never imports SQLAlchemy or Alembic itself: that would cost
0.6 s at every start and tens of MB for good.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from treadle.errors import StorageFault
from treadle.store.db import HEAD, REVISIONS

SECONDS = 300
"""How long a migration may take, waiting for another process's one included."""


def migrate(url: str) -> None:
    """Upgrades the database at `url` (`sqlite:///path`, or any URL of SQLAlchemy) to HEAD, in one transaction."""
    import sqlalchemy as sa
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    path = url.removeprefix("sqlite:///")
    # A path is taken as it is: it may hold characters that mean something in a URL.
    engine = sa.create_engine(url if path == url else sa.URL.create("sqlite", database=path), poolclass=sa.NullPool)
    if engine.dialect.name == "sqlite":
        _take_the_write_lock_first(engine)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7239014)"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _take_the_write_lock_first(engine: object) -> None:
    """Makes the driver leave transactions alone, and ours begin by waiting for any other writer."""
    import sqlite3

    from sqlalchemy import Connection, event

    def connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {SECONDS * 1000}")

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)


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
        raise StorageFault("The database schema could not be brought up to date.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageFault("The database schema could not be brought up to date.") from error


def main() -> None:
    migrate(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read().strip())


if __name__ == "__main__":
    main()
