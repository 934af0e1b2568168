"""Wires the jobs of a process: their rows, and the queue that wakes whoever does them."""

from __future__ import annotations

from importlib.util import find_spec

from treadle.jobs.local import LocalQueue
from treadle.ports import JobQueue, Jobs
from treadle.settings import Settings
from treadle.store.connect import is_postgres
from treadle.store.db import Database
from treadle.store.jobs import SqlJobs

_SCHEMA = "treadle"


def shared(settings: Settings) -> bool:
    """Whether other processes may do the jobs of this one."""
    return is_postgres(settings.store.url)


def open_jobs(settings: Settings, database: Database) -> tuple[Jobs, JobQueue]:
    """Kinds of jobs are handed to the queue before it is started; it stops before what its runners use. ValueError for
    settings by which nobody would do them, and where the engine is missing."""
    jobs = SqlJobs(database)
    if not shared(settings):
        if settings.background.workers == 0:
            raise ValueError("`background.workers`: 0 leaves the work to other processes, and needs Postgres")
        return jobs, LocalQueue(jobs)
    if find_spec("pgqueuer") is None:
        raise ValueError("`store.url`: Postgres needs pgqueuer: pip install 'treadle[postgres]'")
    from treadle.jobs.pgqueuer import PgQueue  # the engine is an extra

    return jobs, PgQueue(jobs, settings.store.url, _SCHEMA)
