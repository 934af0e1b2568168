"""`moderation` on requests and responses, in OpenAI's newest form (contract §3)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class SidePolicy(msgspec.Struct):
    mode: Literal["score", "block"] = "score"


class ModerationPolicy(msgspec.Struct):
    input: SidePolicy | None = None
    output: SidePolicy | None = None


class ModerationOptions(msgspec.Struct):
    """What is judged by which model. Without a policy, verdicts are told and nothing is blocked."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    policy: ModerationPolicy | None = None


class ModerationResult(msgspec.Struct, tag_field="type", tag="moderation_result", kw_only=True):
    categories: dict[str, bool]
    category_applied_input_types: dict[str, list[str]]
    category_scores: dict[str, float]
    flagged: bool
    model: str


class ModerationError(msgspec.Struct, tag_field="type", tag="error"):
    code: str
    message: str


class ModerationOutcome(msgspec.Struct):
    """The verdicts on all input together, and on all output."""

    input: ModerationResult | ModerationError
    output: ModerationResult | ModerationError
