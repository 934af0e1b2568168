"""Our fields apart from the standard's, so that the standard can grow without collision (architecture §11, rule 14)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class CreateExtensions(msgspec.Struct, kw_only=True):
    """Request fields that OpenAI does not know; sent through `extra_body`. Names are OGX's where it has them."""

    max_infer_iters: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Model calls the loop may make before the response ends `incomplete`."""
