"""Settings of files: how large, how long, and where their bytes are."""

from __future__ import annotations

from typing import Annotated

import msgspec

Doc = msgspec.Meta


class Files(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Uploaded files, and those that the server writes."""

    max_bytes: Annotated[int, Doc(description="Largest file that can be uploaded, in bytes.", ge=1)] = 536870912
    kept_days: Annotated[
        int,
        Doc(
            description="How long a file lives that the server writes of its own accord, such as the whole of a tool "
            "result that was too long to show.",
            ge=1,
            le=3650,
        ),
    ] = 30
