"""Prefixed, time-sortable ids, and the check that a caller's id has a plausible shape."""

from __future__ import annotations

import os
import re
import time

_SHAPE = re.compile(r"[A-Za-z0-9_.:\-]{1,128}\Z")


def new_id(prefix: str) -> str:
    """An id such as `resp_019…`: 12 hex digits of milliseconds, then 20 random ones, so ids sort by age."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def new_conversation_id() -> str:
    """`conv_` and 48 hex digits, the length that OpenAI's and OGX's clients check for (contract §1.4)."""
    return f"conv_{time.time_ns() // 1_000_000:012x}{os.urandom(18).hex()}"


def new_file_id() -> str:
    """`file-` and 32 hex digits, as clients of files look for (contract §1.4); sorts by age too."""
    return f"file-{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def new_prompt_id() -> str:
    """`pmpt_` and 48 hex digits, as OGX's have."""
    return f"pmpt_{time.time_ns() // 1_000_000:012x}{os.urandom(18).hex()}"


def plausible(value: str) -> bool:
    """Whether `value` could be an id at all; anything else cannot exist and never reaches the store."""
    return _SHAPE.match(value) is not None
