"""Events as the bytes that clients are sent: frames of server-sent events, and the JSON inside of them."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.wire.base import encode_into
from treadle.wire.events import Event, name_of

DONE = b"data: [DONE]\n\n"
"""What ends a stream."""

_NAMES: dict[type, bytes] = {}
_END = b"\n\n"


def framed(batch: Iterable[Event]) -> bytes:
    """The frames of a batch: `event`, one `data` line, a blank line each (contract §7.1)."""
    buffer = bytearray()
    frame_into(batch, buffer)
    return bytes(buffer)


def frame_into(batch: Iterable[Event], buffer: bytearray) -> None:
    """Appends the frames of a batch."""
    for event in batch:
        kind = type(event)
        prefix = _NAMES.get(kind)
        if prefix is None:
            prefix = _NAMES[kind] = b"event: " + name_of(event).encode() + b"\ndata: "
        buffer += prefix
        append_json(event, buffer)
        buffer += _END


def without_first(frames: bytes, count: int) -> bytes:
    """What follows the first `count` frames. No frame has a blank line inside."""
    at = 0
    for _ in range(count):
        at = frames.index(_END, at) + len(_END)
    return frames[at:]


def append_json(event: Event, buffer: bytearray) -> None:
    """An event as clients get it, over whatever transport."""
    start = len(buffer)
    encode_into(event, buffer, -1)
    if buffer.find(b"\xe2\x80", start) >= 0 or buffer.find(b"\xc2\x85", start) >= 0:
        buffer[start:] = escaped(bytes(buffer[start:]))


def escaped(data: bytes) -> bytes:
    """Line separators as JSON escapes: some readers take the raw ones for line ends (bug case 9)."""
    data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return data.replace(b"\xc2\x85", b"\\u0085")
