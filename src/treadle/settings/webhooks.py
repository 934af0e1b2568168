"""The settings of webhooks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from treadle.wire.webhooks import EventType

Doc = msgspec.Meta


class Webhooks(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Who is told when background responses and batches end."""

    url: Annotated[
        str,
        Doc(description="Address that is told, by a signed POST, when a background response or a batch ends."),
    ] = ""
    secret: Annotated[
        str,
        Doc(
            description="Key that webhooks are signed with: whsec_ and base64, as OpenAI's clients take it.",
            extra={"secret": True},
        ),
    ] = ""
    events: Annotated[list[EventType], Doc(description="What is told. Empty: everything.")] = []
    attempts: Annotated[
        int,
        Doc(
            description="How often a webhook is tried, with growing pauses of up to an hour, until it is answered.",
            ge=1,
            le=100,
        ),
    ] = 12
    timeout_seconds: Annotated[float, Doc(description="How long the other side may take to answer.", gt=0, le=300)] = (
        15.0
    )
