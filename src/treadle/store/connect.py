"""From the `store.url` setting to a database."""

from __future__ import annotations

from pathlib import Path

from treadle.store.db import Connection, Database
from treadle.store.ingestion import release_all
from treadle.store.responses import fail_interrupted
from treadle.store.sqlite import Sqlite


def connect(url: str) -> Database:
    """A database that is not started yet. `url`: a path, or `sqlite:///` and a path. ValueError for anything else."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Sqlite(Path(url), recover=_recover)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Sqlite(Path(rest[1:]), recover=_recover)
    raise ValueError(f"store.url: {scheme}:// is not supported; give a path or sqlite:///path")


def _recover(connection: Connection) -> None:
    """What a lost process was doing: its responses have failed, its files are taken up again."""
    fail_interrupted(connection)
    release_all(connection)
