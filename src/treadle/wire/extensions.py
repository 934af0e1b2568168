"""Our fields apart from the standard's, so that the standard can grow without collision (architecture §11, rule 14)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class CreateExtensions(msgspec.Struct, kw_only=True):
    """Request fields that OpenAI does not know; sent through `extra_body`. Names are OGX's where it has them."""

    max_infer_iters: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Model calls the loop may make before the response ends `incomplete`."""
    guardrails: (
        bool | Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=16)] | None
    ) = None
    """Judge input and output, and block what is flagged. A list names the moderation models that judge."""
    tokenizer_encoding: Annotated[str, Meta(max_length=64)] | None = None
    """The encoding by which tokens are counted, instead of the one that fits the model."""


RetrieveFirst = Literal["auto", "always", "never"]
"""Whether the server searches with the user's question before it asks the model. `auto`: for models that cannot call
tools."""


class FileSearchExtensions(msgspec.Struct, kw_only=True):
    """Fields of a `file_search` declaration that OpenAI does not know."""

    retrieve_first: RetrieveFirst | None = None
    """None: as the setting `file_search.retrieve_first` says."""
