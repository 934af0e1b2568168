"""Ports to durable work: jobs as rows, what wakes those who do them, and the logs of what background responses said.

A row of `Jobs` is the truth; a `JobQueue` only sees to it that somebody looks. What kinds of jobs there are is the
business of whoever gives the queue a `JobRunner` for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from treadle.scope import Scope

Ending = Literal["cancelled", "stopping", "lost"]
"""Why a job is to end early: its owner wants it to, the process stops, or somebody else has it by now."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """Work to be done. `id` is that of what it is about; no two jobs have the same. `payload` is whatever its runner
    needs, sealed where it holds secrets; it is erased with the row. `delay`: seconds before it may begin."""

    id: str
    kind: str
    payload: bytes = b""
    delay: float = 0.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job under a claim. `scope` is who it is done for, as they were when it was put."""

    id: str
    kind: str
    scope: Scope
    created_at: int
    """Milliseconds since 1970."""
    attempts: int
    """Claims so far, this one included; those that were given back do not count."""
    acted: bool
    """Something that must not happen twice may have happened already."""
    cancelled: bool
    """Its owner does not want it done any more."""
    claim: str
    payload: bytes


class JobEnd(msgspec.Struct, frozen=True):
    """The end of a job, in the same transaction as what it did. `claim` None: of one that nobody works on; with
    `forced`, of any, and whoever works on it finds its claim lost."""

    id: str
    claim: str | None = None
    forced: bool = False


class EventChunk(msgspec.Struct, frozen=True):
    """Some events of a response as the bytes that clients are sent: frames that each end with a blank line. `first`
    and `last` are sequence numbers, both inclusive, without gaps."""

    first: int
    last: int
    data: bytes


class LogState(msgspec.Struct, frozen=True):
    """`last`: the last number of the log, None if there is none. `ended`: the response has its outcome, and the log all
    that it will ever hold."""

    last: int | None
    ended: bool


class Jobs(Protocol):
    """The rows. StorageFault when the database cannot be reached; ClaimLost where the caller's claim has ended, by its
    lease (Unix seconds) and somebody else's claim, or because the job has gone."""

    async def put(self, scope: Scope, job: NewJob, *, most: int | None = None) -> None:
        """QueueFull if as many as `most` of its kind are waiting already. A job that is there already stays."""
        ...

    async def waiting(self) -> dict[str, int]:
        """How many jobs nobody works on yet, of any scope, by kind. For operators only."""
        ...

    async def claim(
        self, kind: str, claim: str, lease_until: int, limit: int, *, job_id: str | None = None
    ) -> list[Job]:
        """Up to `limit` jobs of any scope that are due and that nobody works on, those due longest first; or that one
        alone."""
        ...

    async def renew(self, jobs: Sequence[Job], lease_until: int) -> dict[str, bool]:
        """Keeps claims. Those that still are one, each with whether it is to be cancelled; what is missing is lost."""
        ...

    async def note_acted(self, scope: Scope, job: Job) -> None:
        """Durable when it returns. ClaimLost."""
        ...

    async def release(self, scope: Scope, job: Job, *, delay: float = 0.0, counted: bool = True) -> None:
        """Gives it back, to be done after `delay` seconds; `counted`: as an attempt. Nothing if the claim is lost."""
        ...

    async def finish(self, scope: Scope, job: Job) -> None:
        """Erases it. Nothing if the claim is lost."""
        ...

    async def cancel(self, scope: Scope, job_id: str) -> bool | None:
        """Notes that it is to be cancelled. Whether somebody works on it; None if there is no such job."""
        ...


class EventLog(Protocol):
    """What streamed background responses have said so far. It goes with the response, or after some time."""

    async def append(self, entries: Sequence[tuple[Job, EventChunk]]) -> frozenset[str]:
        """Adds to several logs in one transaction. Gives the ids whose claim is lost; nothing was written for them."""
        ...

    async def read(self, scope: Scope, response_id: str, after: int, limit: int) -> list[EventChunk]:
        """Up to `limit` chunks, in order, from the one on that holds the number behind `after`."""
        ...

    async def state(self, scope: Scope, response_id: str) -> LogState | None:
        """None if there is no such response."""
        ...

    async def expire(self, before: int) -> None:
        """Removes the logs of all responses that were made before that Unix second and have ended."""
        ...


class Work(Protocol):
    """A job that is being done, as its runner sees it."""

    job: Job
    ending: Ending | None
    """Set just before the runner's task is cancelled."""
    gone: bool
    """Set by a runner that has ended the job in its own transaction (JobEnd)."""

    async def note_acted(self) -> None:
        """Says that the job must not be run again from its start. Durable when it returns. ClaimLost."""
        ...


class TryLater(Exception):
    """Raised by a runner: the job is to be done again after so many seconds."""

    def __init__(self, seconds: float, *, counted: bool = True) -> None:
        super().__init__(seconds)
        self.seconds = seconds
        self.counted = counted


class JobRunner(Protocol):
    """Does the jobs of one kind.

    When it returns, the job is finished and its row erased. TryLater gives it back for a while, as do a StorageFault
    and any other exception, which are logged. When it is cancelled, it is given back at once, uncounted, if the process
    is stopping; and finished if it was to be cancelled.
    """

    async def __call__(self, work: Work) -> None: ...


class JobQueue(Protocol):
    """Wakes workers, of this process or of others."""

    def handle(self, kind: str, runner: JobRunner, *, workers: int) -> None:
        """Says who does jobs of a kind here, and how many at a time; before `start`. 0: others do them."""
        ...

    async def put(self, job: NewJob) -> None:
        """Tells workers of a row that is there. Never raises: rows that nobody was told of are found by looking."""
        ...

    async def cancel(self, job_id: str) -> None:
        """Ends work on a job that is marked as cancelled. Returns once that is done, where it is done in this process
        and does not take too long."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Gives back what is being done, or lets it end."""
        ...
