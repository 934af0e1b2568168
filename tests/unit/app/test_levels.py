"""Queues are counted for those who watch, and for nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import cast

import pytest

from treadle.app.levels import Levels
from treadle.ports import UNWATCHED, NewJob, Observer
from treadle.ports.observe import Unwatched
from treadle.scope import LOCAL
from treadle.store.connect import connect
from treadle.store.jobs import SqlJobs
from treadle.tools.mcp.pool import McpPool


class Watching(Unwatched):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.read: dict[str, Callable[[], Mapping[str, int]]] = {}

    def level(self, name: str, what: str, read: Callable[[], Mapping[str, int]]) -> None:
        self.read[name] = read


class Pool:
    open_sessions = 3


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[SqlJobs]:
    database = connect(str(tmp_path / "jobs.sqlite3"))
    await database.start()
    yield SqlJobs(database)
    await database.close()


async def test_queues_are_counted_by_kind_and_empty_ones_are_told(jobs: SqlJobs) -> None:
    levels, watching = Levels(jobs), Watching()
    levels.begin(cast("Observer", watching), lambda: 2, cast("McpPool", Pool()))
    for name in ("a", "b"):
        await jobs.put(LOCAL, NewJob(id=name, kind="response", payload=b"{}"))
    await levels.look()
    assert {name: dict(read()) for name, read in watching.read.items()} == {
        "treadle.responses.running": {"": 2},
        "treadle.mcp.sessions": {"": 3},
        "treadle.jobs.waiting": {"response": 2},
    }
    claimed = await jobs.claim("response", "me", 2**40, 5)
    assert len(claimed) == 2
    await levels.look()
    assert watching.read["treadle.jobs.waiting"]() == {"response": 0}


async def test_nothing_is_counted_for_nobody(jobs: SqlJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = Levels(jobs)
    levels.begin(UNWATCHED, lambda: 0, cast("McpPool", Pool()))
    monkeypatch.delattr(SqlJobs, "waiting")
    await levels.look()
