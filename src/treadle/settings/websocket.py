"""Settings of WebSocket connections: how long, and how much at a time."""

from __future__ import annotations

from typing import Annotated

import msgspec

Doc = msgspec.Meta


class WebSocket(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Responses over WebSocket."""

    max_seconds: Annotated[
        float, Doc(description="How long a connection lasts; a response that runs then is still finished.", gt=0)
    ] = 3600.0
    max_waiting: Annotated[
        int, Doc(description="Requests of one connection that may wait for those before them.", ge=0, le=1000)
    ] = 16
    max_streams: Annotated[
        int,
        Doc(description="Streams (`stream_id`) of one connection that are answered at the same time.", ge=1, le=100),
    ] = 8
    memory_bytes: Annotated[
        int,
        Doc(
            description="JSON bytes of unstored conversations that all connections together remember; one connection "
            "may have a quarter of them.",
            ge=0,
        ),
    ] = 268435456
