"""Bytes of a server-sent event stream to the data of its events; no text is decoded that is not needed.

Only CR, LF and CRLF end a line (WHATWG HTML, server-sent events); U+2028 and its like are ordinary text (bug case 9).
"""

from __future__ import annotations

from treadle.errors import UpstreamBadStream

MAX_EVENT = 16_777_216
"""Bytes of one event; a stream that sends more without ending it is not one we can follow."""


class EventSplitter:
    """Feed it network reads; it gives back the `data` of every event that is complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._first = True

    def feed(self, read: bytes) -> list[bytes]:
        """Raises UpstreamBadStream when one event grows over MAX_EVENT bytes."""
        if self._first:
            self._first = False
            read = read.removeprefix(b"\xef\xbb\xbf")
        buffer = self._rest + read if self._rest else read
        if b"\r" in buffer:
            buffer = self._without_returns(buffer)
        *events, self._rest = buffer.split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise UpstreamBadStream("The model server sent an event that does not end.")
        found: list[bytes] = []
        for event in events:
            if event.startswith(b"data:") and b"\n" not in event:
                found.append(event[5:].strip())
            elif data := _data(event):
                found.append(data)
        return found

    def close(self) -> list[bytes]:
        """What an end of stream without a blank line leaves behind."""
        rest, self._rest = self._rest.replace(b"\r", b"\n"), b""
        return [data] if (data := _data(rest)) else []

    def _without_returns(self, buffer: bytes) -> bytes:
        """LF for every line end. A CR at the very end may be half of a CRLF, so it waits, as what follows tells."""
        held = buffer.endswith(b"\r")
        if held:
            buffer = buffer[:-1]
        buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return buffer + b"\r" if held else buffer


def _data(event: bytes) -> bytes:
    """The joined `data` lines of an event; comments and other fields do not matter here."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip()
