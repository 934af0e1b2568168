"""Jobs: who is to do what for whom, until it is done.

Claiming is done for nobody in particular; what it hands out says for whom. A claim may be kept only as long as no other
has been given: whatever a worker writes is conditional on its claim.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from treadle import ports
from treadle.errors import ClaimLost, QueueFull
from treadle.ids import plausible
from treadle.ports import Job, JobEnd, NewJob
from treadle.scope import Principal, Scope
from treadle.store.db import Connection, Database, Row

_attributes = msgspec.json.Decoder(dict[str, tuple[str, ...]])

_COLUMNS = "id, kind, tenant, owner, attributes, created_at, attempts, acted, cancelled, claim, payload"
_FREE = "(lease IS NULL OR lease < ?)"
_MINE = "WHERE id = ? AND claim = ? AND tenant = ? AND owner = ?"


class SqlJobs(ports.Jobs):
    """The `Jobs` port over a `Database`. `clock` gives Unix seconds; leases and delays are measured by it."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def put(self, scope: Scope, job: NewJob, *, most: int | None = None) -> None:
        now = self._milliseconds()
        await self._database.write(partial(put, scope=scope, job=job, now=now, most=most), guarded=True)

    async def waiting(self) -> dict[str, int]:
        return await self._database.read(_waiting)

    async def claim(
        self, kind: str, claim: str, lease_until: int, limit: int, *, job_id: str | None = None
    ) -> list[Job]:
        now = self._milliseconds()
        # Looking first spares the database a write transaction each time a worker finds nothing.
        if limit < 1 or not await self._database.read(partial(_due, kind=kind, now=now, limit=1, job_id=job_id)):
            return []
        work = partial(_claim, kind=kind, now=now, claim=claim, lease=lease_until, limit=limit, job_id=job_id)
        return await self._database.write(work, guarded=True)

    async def renew(self, jobs: Sequence[Job], lease_until: int) -> dict[str, bool]:
        return await self._database.write(partial(_renew, jobs=jobs, lease=lease_until), guarded=True)

    async def note_acted(self, scope: Scope, job: Job) -> None:
        await self._database.write(partial(_note_acted, scope=scope, job=job), guarded=True)

    async def release(self, scope: Scope, job: Job, *, delay: float = 0.0, counted: bool = True) -> None:
        due = self._milliseconds() + int(delay * 1000) if delay > 0 else None
        await self._database.write(partial(_release, scope=scope, job=job, due=due, counted=counted), guarded=True)

    async def finish(self, scope: Scope, job: Job) -> None:
        await self._database.write(partial(_finish, scope=scope, job=job), guarded=True)

    async def cancel(self, scope: Scope, job_id: str) -> bool | None:
        if not plausible(job_id):
            return None
        work = partial(_cancel, scope=scope, job_id=job_id, now=int(self._clock()))
        return await self._database.write(work, guarded=True)

    def _milliseconds(self) -> int:
        return int(self._clock() * 1000)


def _waiting(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT kind, COUNT(*) FROM jobs WHERE lease IS NULL GROUP BY kind"))


def release_jobs(connection: Connection) -> None:
    """Ends all claims. Only for a process that has the database to itself."""
    connection.change("UPDATE jobs SET lease = NULL, claim = NULL WHERE lease IS NOT NULL")


def put(connection: Connection, scope: Scope, job: NewJob, now: int, most: int | None = None) -> None:
    """Writes the row, as part of a transaction. `now` in milliseconds. QueueFull.

    Guarded, though the number of waiting jobs is not: several who put at once may go over the bound by as many.
    """
    if most is not None:
        ((waiting,),) = connection.execute("SELECT COUNT(*) FROM jobs WHERE kind = ? AND lease IS NULL", (job.kind,))
        if waiting >= most:
            raise QueueFull(f"{waiting} jobs of this kind are waiting already, which is the most that may.")
    connection.change(
        "INSERT INTO jobs (id, kind, tenant, owner, attributes, created_at, due_at, attempts, cancelled, acted,"
        " payload) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?) ON CONFLICT (id) DO NOTHING",
        (
            job.id,
            job.kind,
            scope.tenant,
            scope.owner,
            msgspec.json.encode(scope.principal.attributes).decode(),
            now,
            now + int(job.delay * 1000),
            job.payload,
        ),
    )


def end(connection: Connection, scope: Scope, job: JobEnd, now: int) -> None:
    """Erases the row, as part of the transaction that writes what the job did. `now` in seconds. ClaimLost."""
    sql = "DELETE FROM jobs WHERE id = ? AND tenant = ? AND owner = ?"
    key = (job.id, scope.tenant, scope.owner)
    if job.claim is not None:
        gone = connection.change(f"{sql} AND claim = ?", (*key, job.claim))
    elif job.forced:
        gone = connection.change(sql, key)
    else:
        gone = connection.change(f"{sql} AND {_FREE}", (*key, now))
    if not gone:
        raise ClaimLost(job.id)


def holds(connection: Connection, job: Job) -> bool:
    """Whether the claim stands; it then does until the transaction ends."""
    return connection.guard("jobs", "claim", "id = ? AND claim = ?", (job.id, job.claim))


def _due(connection: Connection, kind: str, now: int, limit: int, job_id: str | None) -> list[Row]:
    where, params = ("", ()) if job_id is None else (" AND id = ?", (job_id,))
    return connection.execute(
        f"SELECT id FROM jobs WHERE kind = ? AND due_at <= ? AND {_FREE}{where} ORDER BY due_at, id LIMIT ?",  # noqa: S608 -- only placeholders and fixed words
        (kind, now, now // 1000, *params, limit),
    )


def _claim(
    connection: Connection, kind: str, now: int, claim: str, lease: int, limit: int, job_id: str | None
) -> list[Job]:
    found: list[Job] = []
    for (due,) in _due(connection, kind, now, limit, job_id):
        rows = connection.execute(
            f"UPDATE jobs SET lease = ?, claim = ?, attempts = attempts + 1 WHERE id = ? AND {_FREE}"  # noqa: S608 -- only placeholders and fixed words
            f" RETURNING {_COLUMNS}",
            (lease, claim, due, now // 1000),
        )
        found += map(_job, rows)
        # What a client asks about is the response, not the job.
        connection.change("UPDATE responses SET status = 'in_progress' WHERE id = ? AND status = 'queued'", (due,))
    return found


def _renew(connection: Connection, jobs: Sequence[Job], lease: int) -> dict[str, bool]:
    kept: dict[str, bool] = {}
    for job in jobs:
        rows = connection.execute(
            "UPDATE jobs SET lease = ? WHERE id = ? AND claim = ? RETURNING cancelled", (lease, job.id, job.claim)
        )
        kept.update((job.id, bool(cancelled)) for (cancelled,) in rows)
    return kept


def _note_acted(connection: Connection, scope: Scope, job: Job) -> None:
    if not connection.change(f"UPDATE jobs SET acted = 1 {_MINE}", _mine(scope, job)):  # noqa: S608 -- only fixed words
        raise ClaimLost(job.id)


def _release(connection: Connection, scope: Scope, job: Job, due: int | None, counted: bool) -> None:
    """Without `due` it keeps its place among those that wait."""
    place, values = ("", ()) if due is None else (", due_at = ?", (due,))
    released = connection.change(
        f"UPDATE jobs SET lease = NULL, claim = NULL, attempts = attempts - ?{place} {_MINE}",  # noqa: S608 -- only fixed words
        (0 if counted else 1, *values, *_mine(scope, job)),
    )
    if released:
        connection.change("UPDATE responses SET status = 'queued' WHERE id = ? AND status = 'in_progress'", (job.id,))


def _finish(connection: Connection, scope: Scope, job: Job) -> None:
    connection.change(f"DELETE FROM jobs {_MINE}", _mine(scope, job))  # noqa: S608 -- only fixed words


def _cancel(connection: Connection, scope: Scope, job_id: str, now: int) -> bool | None:
    rows = connection.execute(
        "UPDATE jobs SET cancelled = 1 WHERE id = ? AND tenant = ? AND owner = ? RETURNING lease",
        (job_id, scope.tenant, scope.owner),
    )
    return None if not rows else rows[0][0] is not None and rows[0][0] >= now


def _mine(scope: Scope, job: Job) -> tuple[str, ...]:
    return (job.id, job.claim, scope.tenant, scope.owner)


def _job(row: Row) -> Job:
    job_id, kind, tenant, owner, attributes, created_at, attempts, acted, cancelled, claim, payload = row
    return Job(
        id=job_id,
        kind=kind,
        scope=Scope(tenant, Principal(owner, _attributes.decode(attributes))),
        created_at=created_at,
        attempts=attempts,
        acted=bool(acted),
        cancelled=bool(cancelled),
        claim=claim,
        payload=bytes(payload),
    )
