"""Wires the jobs of a process: their rows, and the queue that wakes whoever does them."""

from __future__ import annotations

from treadle.jobs.local import LocalQueue
from treadle.ports import JobQueue, Jobs
from treadle.store.db import Database
from treadle.store.jobs import SqlJobs


def open_jobs(database: Database) -> tuple[Jobs, JobQueue]:
    """Kinds of jobs are handed to the queue before it is started; it stops before what its runners use."""
    jobs = SqlJobs(database)
    return jobs, LocalQueue(jobs)
