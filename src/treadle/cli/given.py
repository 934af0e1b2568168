"""Values on the command line of `ingest` and `search`, checked while it is parsed."""

from __future__ import annotations

import argparse
import json
import math

Value = str | int | float | bool

PATH, SHA256 = "path", "sha256"
"""Attributes that `ingest` keeps itself."""

_KEY, _TEXT = 64, 512
_LARGEST = 2**63


def text(given: str) -> str:
    """Not empty, and UTF-8: what the API can be sent."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("is not UTF-8 text") from None
    if not given.strip():
        raise argparse.ArgumentTypeError("is empty")
    return given


def pair(given: str) -> tuple[str, Value]:
    """`key=value`. A value that is a number, `true` or `false` in JSON is one, and `"2026"` in quotes is text."""
    key, equals, rest = text(given).partition("=")
    key = key.strip()
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{given!r}: expected key=value")
    if len(key) > _KEY:
        raise argparse.ArgumentTypeError(f"{key!r}: a key has at most {_KEY} characters")
    found = _value(rest)
    if isinstance(found, str) and len(found) > _TEXT:
        raise argparse.ArgumentTypeError(f"{key!r}: a value has at most {_TEXT} characters")
    return key, found


def attribute(given: str) -> tuple[str, Value]:
    """A `pair` whose key is not one of our own."""
    key, value = pair(given)
    if key in (PATH, SHA256):
        raise argparse.ArgumentTypeError(f"{key!r} is kept by this command itself")
    return key, value


def condition(given: str) -> dict[str, object]:
    """A filter: a `pair`, which has to be equal, or JSON."""
    if not text(given).lstrip().startswith("{"):
        key, value = pair(given)
        return {"type": "eq", "key": key, "value": value}
    try:
        found: dict[str, object] = json.loads(given, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("holds half of a character (a lone surrogate)") from None
    except (ValueError, RecursionError) as fault:
        raise argparse.ArgumentTypeError(f"is not valid JSON: {fault}") from None
    return found


def _value(given: str) -> Value:
    try:
        found: object = json.loads(given, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return given
    if isinstance(found, str):
        return text(found) if found else found
    if isinstance(found, bool):
        return found
    if isinstance(found, int):
        return found if -_LARGEST <= found < _LARGEST else given
    return found if isinstance(found, float) and math.isfinite(found) else given


def _no_number(name: str) -> Value:
    """NaN and Infinity, which Python takes for JSON."""
    raise ValueError(name)
