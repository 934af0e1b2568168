"""What exactly is wrong with a body that cannot be read. Slow, and asked only after reading has failed."""

from __future__ import annotations

import json
from collections.abc import Iterator

from treadle.errors import InvalidRequest

MAX_SEARCHED = 4_194_304
"""Bytes of a body that are worth searching for the broken text; of a larger one only the kind of fault is said."""


def unreadable(body: bytes, reason: str) -> InvalidRequest:
    """The wire error for a body that is no JSON, with the path of a broken string where one is to blame."""
    if not body.strip():
        return InvalidRequest("The body is empty; it must be a JSON object.", code="invalid_json")
    try:
        body.decode()
        kind = "holds half of a surrogate pair, which is no character"
    except UnicodeDecodeError:
        kind = "is not valid UTF-8"
    path = _broken_string(body)
    if path is not None:
        place = f"'{path}'" if path else "The body"
        return InvalidRequest(f"{place} {kind}.", param=path or None, code="invalid_json")
    if kind.endswith("UTF-8"):
        return InvalidRequest(f"The body {kind}.", code="invalid_json")
    return InvalidRequest(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _broken_string(body: bytes) -> str | None:
    """The path of the first text that is no sequence of characters; empty for a bare string or a key at the top."""
    if len(body) > MAX_SEARCHED:
        return None
    try:
        value: object = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return next((path.lstrip(".") for path, text in _strings(value) if not _encodable(text)), None)


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Every text of a JSON value with its path, keys under the path of their object."""
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        path, found = pending.pop()
        if isinstance(found, str):
            yield path, found
        elif isinstance(found, list):
            pending += [(f"{path}[{index}]", entry) for index, entry in reversed(list(enumerate(found)))]
        elif isinstance(found, dict):
            yield from ((path, key) for key in found)
            pending += [(f"{path}.{key}", entry) for key, entry in reversed(found.items())]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
