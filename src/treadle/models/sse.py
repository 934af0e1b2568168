"""Bytes of a server-sent event stream to the data of its events; no text is decoded that is not needed.

Only CR, LF and CRLF end a line (WHATWG HTML, server-sent events); U+2028 and its like are ordinary text (bug case 9).
"""

from __future__ import annotations

from treadle.errors import UpstreamBadStream

MAX_EVENT = 16_777_216
"""Bytes of one event; a stream that sends more without ending it is not one we can follow."""
_MARK = b"\xef\xbb\xbf"


class EventSplitter:
    """Feed it network reads; it gives back the `data` of every event that is complete and has any."""

    def __init__(self) -> None:
        self._rest = b""
        self._parts: list[bytes] = []
        """Reads that ended no line, kept apart so that a large event is joined once and not at every read."""
        self._size = 0
        self._start: bytes | None = b""
        """The first bytes while they could still be a byte order mark; None once that is known."""

    def feed(self, read: bytes) -> list[bytes]:
        """Raises UpstreamBadStream when one event grows over MAX_EVENT bytes."""
        if self._start is not None:
            read = self._start + read
            if len(read) < len(_MARK) and _MARK.startswith(read):
                self._start = read
                return []
            self._start, read = None, read.removeprefix(_MARK)
        if b"\n" not in read and b"\r" not in read and not self._rest.endswith(b"\r"):
            self._parts.append(read)
            self._size += len(read)
            if self._size > MAX_EVENT:
                raise _endless()
            return []
        buffer = self._joined(read)
        if b"\r" in buffer:
            buffer = _without_returns(buffer)
        *events, self._rest = buffer.split(b"\n\n")
        self._size = len(self._rest)
        if self._size > MAX_EVENT:
            raise _endless()
        found: list[bytes] = []
        for event in events:
            data = event[5:].strip() if event.startswith(b"data:") and b"\n" not in event else _data(event)
            if data:
                found.append(data)
        return found

    def close(self) -> list[bytes]:
        """What an end of stream without a blank line leaves behind."""
        rest = self._joined(b"").replace(b"\r", b"\n")
        self._rest = b""
        return [data] if (data := _data(rest)) else []

    def _joined(self, read: bytes) -> bytes:
        if self._parts:
            read = b"".join((self._rest, *self._parts, read))
            self._parts = []
            return read
        return self._rest + read if self._rest else read


def _without_returns(buffer: bytes) -> bytes:
    """LF for every line end. A CR at the very end may be half of a CRLF, so it waits, as what follows tells."""
    held = buffer.endswith(b"\r")
    if held:
        buffer = buffer[:-1]
    buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return buffer + b"\r" if held else buffer


def _data(event: bytes) -> bytes:
    """The joined `data` lines of an event; comments and other fields do not matter here.

    A bare JSON object is no event, but what some servers write when they fail inside a stream, so it is read too.
    """
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    if lines:
        return b"\n".join(lines).strip()
    bare = event.strip()
    return bare if bare.startswith(b"{") else b""


def _endless() -> UpstreamBadStream:
    return UpstreamBadStream("The model server sent an event that does not end.")
