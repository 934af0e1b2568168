"""How likely a model held the tokens that it chose, and others in their place."""

from __future__ import annotations

import msgspec


class TokenAlternative(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] = []


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] = []
    top_logprobs: list[TokenAlternative] = []
