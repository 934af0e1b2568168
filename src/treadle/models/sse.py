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
        self._parts: list[bytes] = []
        """The event so far, with LF as its line ends; joined once, and not at every read."""
        self._size = 0
        self._return = b""
        """A CR at the end of a read: what follows tells whether it is half of a CRLF."""
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
        if self._return or b"\r" in read:
            read = self._without_returns(read)
        parts = self._parts
        if b"\n\n" not in read and not (read.startswith(b"\n") and parts and parts[-1].endswith(b"\n")):
            if read:
                self._keep(read)
            return []
        if parts:
            read = b"".join((*parts, read))
            self._parts, self._size = [], 0
        *events, rest = read.split(b"\n\n")
        if rest:
            self._keep(rest)
        found: list[bytes] = []
        for event in events:
            data = event[5:].strip() if event.startswith(b"data:") and b"\n" not in event else _data(event)
            if data:
                found.append(data)
        return found

    def close(self) -> list[bytes]:
        """What an end of stream without a blank line leaves behind."""
        rest, self._parts = b"".join(self._parts), []
        return [data] if (data := _data(rest)) else []

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_EVENT:
            raise UpstreamBadStream("The model server sent an event that does not end.")

    def _without_returns(self, read: bytes) -> bytes:
        """`read` with LF for every line end."""
        read = self._return + read
        self._return = b"\r" if read.endswith(b"\r") else b""
        return read.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(event: bytes) -> bytes:
    """The joined `data` lines of an event; comments and other fields do not matter here.

    A bare JSON object is no event, but what some servers write when they fail inside a stream, so it is read too.
    """
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    if lines:
        return b"\n".join(lines).strip()
    bare = event.strip()
    return bare if bare.startswith(b"{") else b""
