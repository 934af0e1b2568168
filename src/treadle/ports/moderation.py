"""Judging what people write to models, and what models write."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Verdict(msgspec.Struct):
    """What a moderator finds in a text: categories by name, and how sure it is of each (0..1)."""

    flagged: bool = False
    categories: dict[str, bool] = {}
    scores: dict[str, float] = {}
    model: str = ""
    """What judged, as it calls itself."""


class Moderator(Protocol):
    async def judge(self, text: str, model: str = "") -> Verdict:
        """`model` names what is to judge, where there is a choice. ModerationUnavailable if it cannot be judged."""
        ...
