"""Prompts and the bodies of their endpoints (contract §12). How a response names one is in `responses.py`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from treadle.wire.lists import Page

MAX_PROMPT = 262_144
"""Characters of one prompt."""
MAX_VERSION = 2**31 - 1

PromptText = Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT)]
VariableName = Annotated[str, Meta(min_length=1, max_length=64, extra_json_schema={"pattern": r"^\w+$"})]
Variables = Annotated[list[VariableName], Meta(max_length=100)]
Version = Annotated[int, Meta(ge=1, le=MAX_VERSION)]


class CreatePrompt(msgspec.Struct, kw_only=True):
    """`variables` are the names that may stand in the text, as `{{ name }}`."""

    prompt: PromptText
    variables: Variables | None = None


class UpdatePrompt(msgspec.Struct, kw_only=True):
    """`version` is the latest one, to which this is the next."""

    prompt: PromptText
    version: Version
    variables: Variables | None = None
    set_as_default: bool | None = True


class SetDefaultVersion(msgspec.Struct):
    version: Version


class Prompt(msgspec.Struct, kw_only=True):
    """One version of a prompt; `id` and `prompt_id` are the prompt's and the same."""

    id: str
    object: Literal["prompt"] = "prompt"
    created_at: int
    prompt_id: str
    prompt: str
    version: int
    variables: list[str]
    is_default: bool


class PromptDeleted(msgspec.Struct):
    id: str
    object: Literal["prompt.deleted"] = "prompt.deleted"
    deleted: bool = True


PromptList = Page[Prompt]
