"""Telling the configured webhook that something has ended: a job for each, tried until it is answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from treadle.errors import UpstreamFault
from treadle.ports import JobQueue, Jobs, NewJob, TryLater, Work
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.responses import Response
from treadle.wire.webhooks import EventType, WebhookEvent, WebhookSubject

log = logging.getLogger("treadle.webhooks")

KIND = "webhook"
_RESPONSES: dict[str, EventType] = {
    "completed": "response.completed",
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.cancelled",
}
_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 3600.0


class Sender(Protocol):
    async def send(self, event_id: str, body: bytes) -> None:
        """Tells it once. UpstreamFault unless it was taken."""
        ...


class Webhooks:
    """Makes the jobs, and is their runner."""

    def __init__(
        self,
        jobs: Jobs,
        queue: JobQueue,
        sender: Sender,
        *,
        events: Collection[EventType],
        attempts: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`events` are those that are told; `attempts`: how often one is tried."""
        self._jobs = jobs
        self._queue = queue
        self._sender = sender
        self._events = frozenset(events)
        self._attempts = attempts
        self._clock = clock

    async def tell(self, scope: Scope, kind: EventType, subject: str) -> None:
        """Makes sure that it will be told. To say it again makes no difference as long as it is not delivered.
        StorageFault if it cannot be noted."""
        for job in self._due(kind, subject):
            await self._jobs.put(scope, job)
            await self._queue.put(job)

    def of_response(self, _scope: Scope, response: Response) -> Sequence[NewJob]:
        """What is to be put in the transaction that writes the outcome of a response."""
        kind = _RESPONSES.get(response.status)
        return () if kind is None else self._due(kind, response.id)

    def _due(self, kind: EventType, subject: str) -> Sequence[NewJob]:
        if kind not in self._events:
            return ()
        event = WebhookEvent(
            id=f"evt_{subject}", created_at=int(self._clock()), type=kind, data=WebhookSubject(subject)
        )
        return (NewJob(id=event.id, kind=KIND, payload=encode(event)),)

    async def __call__(self, work: Work) -> None:
        """One try. TryLater if it was not taken, until that has happened often enough."""
        job = work.job
        try:
            await self._sender.send(job.id, job.payload)
        except UpstreamFault as fault:
            if job.attempts >= self._attempts:
                log.warning("%s is given up after %d tries: %s", job.id, job.attempts, fault.message)
                return
            log.warning("%s: %s", job.id, fault.message)
            raise TryLater(min(_FIRST_SECONDS * 3 ** (job.attempts - 1), _LONGEST_SECONDS)) from None


class NoWebhooks:
    """Nobody is to be told."""

    def of_response(self, _scope: Scope, _response: Response) -> Sequence[NewJob]:
        return ()

    async def tell(self, scope: Scope, kind: EventType, subject: str) -> None:
        pass


class Telling(Protocol):
    """What Webhooks and NoWebhooks have in common."""

    async def tell(self, scope: Scope, kind: EventType, subject: str) -> None: ...

    def of_response(self, _scope: Scope, _response: Response) -> Sequence[NewJob]: ...
