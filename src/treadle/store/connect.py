"""From the `store.url` setting to a database."""

from __future__ import annotations

from pathlib import Path

from treadle.store.db import Database
from treadle.store.responses import fail_interrupted
from treadle.store.sqlite import Sqlite


def connect(url: str) -> Database:
    """A database that is not started yet. `url`: a path, or `sqlite:///` and a path. ValueError for anything else."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Sqlite(Path(url), recover=fail_interrupted)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Sqlite(Path(rest[1:]), recover=fail_interrupted)
    raise ValueError(f"store.url: {scheme}:// is not supported; give a path or sqlite:///path")
