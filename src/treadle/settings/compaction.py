"""Settings of token counts and of what happens to histories that grow too long. The names are OGX's."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from treadle.wire.templates import SUMMARIZATION_PROMPT, SUMMARY_PREFIX

Doc = msgspec.Meta


class Compaction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Long conversations: how tokens are counted, and when and how a history becomes a summary."""

    summarization_prompt: Annotated[
        str, Doc(description="How a model is asked to summarise a history for whoever goes on with it.")
    ] = SUMMARIZATION_PROMPT
    summary_prefix: Annotated[str, Doc(description="What stands before a summary when a model is shown it.")] = (
        SUMMARY_PREFIX
    )
    summarization_model: Annotated[
        str, Doc(description="Model that writes summaries. Empty: the one that the conversation is with.")
    ] = ""
    default_compact_threshold: Annotated[
        int,
        Doc(
            description="A context of more tokens is summarised before the model is asked, also for requests without "
            "`context_management`. 0: only where a request wants it.",
            ge=0,
        ),
    ] = 0
    tokenizer_encoding: Annotated[
        Literal["", "o200k_base", "cl100k_base"],
        Doc(description="Encoding by which tokens are counted. Empty: the one that fits the model."),
    ] = ""
    model_tokenizer_mappings: Annotated[
        dict[str, Literal["o200k_base", "cl100k_base"]],
        Doc(description="Beginnings of model names and the encodings that fit them best, beside those that are known."),
    ] = {}
