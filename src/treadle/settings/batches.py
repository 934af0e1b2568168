"""The settings of batches."""

from __future__ import annotations

from typing import Annotated

import msgspec

Doc = msgspec.Meta


class Batches(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Many requests from a file, answered off the request."""

    queued: Annotated[
        int, Doc(description="Batches that may wait to be begun; one more is refused with 429.", ge=1)
    ] = 100
    workers: Annotated[
        int,
        Doc(description="Batches that this process runs at the same time. 0: it leaves them to others.", ge=0, le=100),
    ] = 1
    concurrency: Annotated[int, Doc(description="Requests of one batch that run at the same time.", ge=1, le=1000)] = 8
    max_requests: Annotated[int, Doc(description="Requests of one batch at most.", ge=1)] = 50_000
