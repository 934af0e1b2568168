"""What the row of a response says beside the response: how its successor's context is to be measured and loaded."""

from __future__ import annotations

import msgspec

from treadle.wire.base import encode


class Marks(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`context_tokens` are those of its last model call with the answer, as reported. `carried`: so many of its stored
    inputs are not its own, but what a compaction left of the history, at the front."""

    context_tokens: int = 0
    carried: int = 0


_marks = msgspec.json.Decoder(Marks)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def marked(data: bytes, marks: Marks) -> bytes:
    """The `data` of a response's row with the marks that are set."""
    added = _fields.decode(encode(marks))
    return encode({**_fields.decode(data), **added}) if added else data


def marks_of(data: bytes) -> Marks:
    return _marks.decode(data)
