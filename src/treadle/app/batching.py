"""Composition of what is told and done at the end of requests: batches and webhooks, as jobs."""

from __future__ import annotations

from typing import get_args
from urllib.parse import urlsplit

from treadle.api.batch_answers import LineAnswers
from treadle.api.batch_run import BatchRules, BatchRun
from treadle.api.batches import KIND as BATCH
from treadle.api.batches import BatchService
from treadle.api.webhooks import KIND as WEBHOOK
from treadle.api.webhooks import NoWebhooks, Telling, Webhooks
from treadle.app.files import FileStorage
from treadle.app.outside import open_guard
from treadle.backends.webhooks import WebhookEndpoint
from treadle.errors import InvalidRequest
from treadle.http.endpoints import Endpoint
from treadle.http.routes.batches import BatchRoutes
from treadle.ports import JobQueue, Jobs
from treadle.settings import Settings
from treadle.store.batches import SqlBatches
from treadle.store.db import Database
from treadle.wire.webhooks import EventType

_TELLERS = 4
"""Webhooks that are sent at the same time."""


class Notifying:
    """The webhook of the settings, if there is one."""

    def __init__(self, settings: Settings, jobs: Jobs, queue: JobQueue) -> None:
        """InvalidRequest for settings that cannot be followed."""
        given = settings.webhooks
        self._endpoint: WebhookEndpoint | None = None
        self.webhooks: Telling = NoWebhooks()
        if not given.url:
            return
        parts = urlsplit(given.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest("webhooks.url: give an address that begins with https:// or http://")
        if not given.secret:
            raise InvalidRequest("webhooks.secret: webhooks are signed, so they need a key: whsec_ and base64")
        # The operator has named this host, so it needs no entry in `outgoing.allow`.
        guard = open_guard([*settings.outgoing.allow, parts.hostname])
        try:
            endpoint = WebhookEndpoint(given.url, given.secret, guard, timeout_seconds=given.timeout_seconds)
        except ValueError as error:
            raise InvalidRequest(f"webhooks.secret: {error}") from None
        webhooks = Webhooks(jobs, queue, endpoint, events=given.events or get_args(EventType), attempts=given.attempts)
        queue.handle(WEBHOOK, webhooks, workers=_TELLERS)
        self._endpoint, self.webhooks = endpoint, webhooks

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()


class Batching:
    """Batches. `queue` runs them once it is started."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        queue: JobQueue,
        files: FileStorage,
        answers: LineAnswers,
        webhooks: Telling,
    ) -> None:
        given = settings.batches
        batches = SqlBatches(database)
        rules = BatchRules(
            max_requests=given.max_requests,
            max_line_bytes=settings.server.max_body_bytes,
            concurrency=given.concurrency,
        )
        queue.handle(BATCH, BatchRun(batches, files.service, answers, rules, webhooks), workers=given.workers)
        self._service = BatchService(batches, queue, most=given.queued)

    def endpoints(self, max_body: int) -> list[Endpoint]:
        return BatchRoutes(self._service, max_body).endpoints()
