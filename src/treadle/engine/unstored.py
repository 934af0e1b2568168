"""Responses behind a gap: what came before them was made with `store: false` and is known to its connection only.

Nothing of such a past is written down, so a stored response that continues it can be read, but not continued by anyone
who does not remember the past. Its row says so; a history with a hole would be worse than none.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from treadle.engine.recent import History
from treadle.wire.base import encode

Recall = Callable[[str], History | None]
"""The history up to and with the response of an id, if whoever asks remembers it."""


class _Row(msgspec.Struct):
    gap_before: bool = False


_row = msgspec.json.Decoder(_Row)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRUE = msgspec.Raw(b"true")


def behind_gap(data: bytes) -> bytes:
    """The `data` of a response's row, marked."""
    return encode({**_fields.decode(data), "gap_before": _TRUE})


def is_behind_gap(data: bytes) -> bool:
    return _row.decode(data).gap_before
