"""What a webhook tells: that something has come to an end (OpenAI's webhooks). It never holds what was said."""

from __future__ import annotations

from typing import Literal

import msgspec

EventType = Literal[
    "response.completed",
    "response.failed",
    "response.incomplete",
    "response.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]


class WebhookSubject(msgspec.Struct):
    """What has ended, to be fetched by whoever is told."""

    id: str


class WebhookEvent(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["event"] = "event"
    created_at: int
    type: EventType
    data: WebhookSubject
