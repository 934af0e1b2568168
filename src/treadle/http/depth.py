"""How deep the JSON of a body nests: deeper than any client means, it would exhaust the stack of whoever reads it.

Checked once, where a body comes in. Parts of it are kept as bytes and decoded again elsewhere, from other depths of the
stack, so a limit that only the stack sets would let something be stored that cannot be read back.
"""

from __future__ import annotations

import re

MAX_DEPTH = 256

_LEVELS, _CROWDED = 32, 1_000_000
"""So many brackets below so many levels are an attack on our time, not a request."""

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def too_deep(body: bytes) -> bool:
    """Whether the JSON nests deeper than MAX_DEPTH. Most bodies have too few brackets for that and cost nothing."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    text = _STRINGS.sub(b"", body).translate(_BRACKETS, _OTHERS)
    for level in range(MAX_DEPTH):
        fewer = text.replace(b"[]", b"")  # takes away the innermost level
        if len(fewer) == len(text):
            break  # nothing left, or unbalanced, of which the decoder will speak
        text = fewer
        if level >= _LEVELS and len(text) > _CROWDED:
            return True
    else:
        return bool(text)
    return len(text) > MAX_DEPTH
