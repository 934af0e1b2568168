"""Settings of responses that are made in the background."""

from __future__ import annotations

from typing import Annotated

import msgspec

Doc = msgspec.Meta


class Background(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Responses that are made in the background."""

    queued: Annotated[
        int, Doc(description="Background responses that may wait for a worker; more are refused with 429.", ge=1)
    ] = 100
    workers: Annotated[
        int,
        Doc(
            description="Background responses that this process makes at the same time. 0, on Postgres only: "
            "`treadle worker` makes them elsewhere.",
            ge=0,
            le=1000,
        ),
    ] = 10
    timeout_seconds: Annotated[
        float, Doc(description="A background response that is not done by then has failed.", gt=0, le=86400)
    ] = 300.0
    events_hours: Annotated[
        float,
        Doc(description="How long the events of a streamed background response can be read again, in hours.", gt=0),
    ] = 24.0
