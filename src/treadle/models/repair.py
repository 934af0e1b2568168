"""Repairs of what weak models and lax servers send, in one place (bug cases 11, 12).

Fragments of a tool call are told apart by index, by id where indexes repeat, and by a name that starts a new call;
nothing is ever appended to "the latest call" on a guess while something else tells where it belongs.
"""

from __future__ import annotations

import re

import msgspec

from treadle.ports import CallFragment

_value = msgspec.json.Decoder(msgspec.Raw)
_MARKS = re.compile(r'\\.|["\[\]{}\\]', re.DOTALL)


class _Slot(msgspec.Struct):
    number: int
    id: str | None = None
    name: str | None = None
    arguments: list[str] = msgspec.field(default_factory=list)
    read: int = 0
    """How many of `arguments` the fields below know of; each is looked at once, however often the name comes again."""
    closed: bool = False
    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    never_whole: bool = False

    def is_whole(self) -> bool:
        """Whether the arguments so far are one JSON value and end with it."""
        if self.never_whole or not self.arguments:
            return False
        for text in self.arguments[self.read :]:
            self._follow(text)
        self.read = len(self.arguments)
        if self.depth or self.quoted or not self.closed:
            return False
        try:
            _value.decode("".join(self.arguments))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            # A value has ended here and it is none: nothing that follows can change that.
            self.never_whole = True
            return False
        return True

    def _follow(self, text: str) -> None:
        self.closed = text.rstrip().endswith(("}", "]", '"'))
        if self.escaped:
            text, self.escaped = text[1:], False
        for mark in _MARKS.findall(text):
            if mark == '"':
                self.quoted = not self.quoted
            elif self.quoted:
                self.escaped = mark == "\\"
            elif mark in ("{", "["):
                self.depth += 1
            elif mark in ("}", "]"):
                self.depth -= 1


class CallSlots:
    """Gives every fragment of one model turn the slot of the call it belongs to."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._by_id: dict[str, _Slot] = {}
        self._by_index: dict[int | None, _Slot] = {}
        self._named_now: set[int] = set()

    def next_delta(self) -> None:
        """Fragments from now on come in another delta; within one, a name never stands twice for the same call."""
        self._named_now.clear()

    def place(self, index: int | None, call_id: str | None, name: str | None, arguments: str) -> CallFragment:
        """`index`, `call_id` and `name` as the server sent them, null or empty included."""
        call_id, name = call_id or None, name or None
        slot = self._find(index, call_id, name)
        if call_id and slot.id is None:
            slot.id = call_id
        if call_id:
            self._by_id.setdefault(call_id, slot)
        if name:
            slot.name = slot.name or name
            self._named_now.add(slot.number)
        if arguments:
            slot.arguments.append(arguments)
        self._by_index[index] = slot
        return CallFragment(slot.number, call_id, name, arguments)

    def _find(self, index: int | None, call_id: str | None, name: str | None) -> _Slot:
        if call_id and call_id in self._by_id and self._by_id[call_id].number not in self._named_now:
            return self._by_id[call_id]
        slot = self._by_index.get(index)
        if slot is None and index is None and not call_id and not name and self._slots:
            return self._slots[-1]
        if slot is None or self._starts_anew(slot, call_id, name):
            slot = _Slot(len(self._slots))
            self._slots.append(slot)
        return slot

    def _starts_anew(self, slot: _Slot, call_id: str | None, name: str | None) -> bool:
        """A name where one is known: the next call, unless the server repeats the name with every fragment.

        Another id alone is none: some servers make up a new one for every fragment.
        """
        if not name or not slot.name:
            return False
        if name != slot.name or slot.number in self._named_now:
            return True
        return bool(call_id and slot.id and call_id != slot.id) or slot.is_whole()


_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_REPLACEMENT = rb"\ufffd"


class SurrogateMender:
    """Joins the halves of a character that a server escaped as UTF-16 and cut between two events.

    Only for events that could not be decoded. A half that finds no other half becomes U+FFFD, but for a first half at
    the very end of a text, which is dropped.
    """

    def __init__(self) -> None:
        self._high = b""
        """The escape of a first half that ended a string of the event before."""

    def mend(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at, high = 0, b""
        pending, self._high = self._high, b""
        for escape in _ESCAPE.finditer(data):
            code = int(escape[1], 16) if escape[1] else 0
            between = data[at : escape.start()]
            low = 0xDC00 <= code <= 0xDFFF
            if high:
                pieces.append(high if low and not between else self._lone(high, between))
            pieces.append(between)
            if low and not (high and not between):
                pieces.append(pending + escape[0] if pending else _REPLACEMENT)
                pending = b""
                high = b""
            elif 0xD800 <= code <= 0xDBFF:
                high = escape[0]
            else:
                pieces.append(escape[0])
                high = b""
            at = escape.end()
        rest = data[at:]
        if high:
            pieces.append(self._lone(high, rest))
        return b"".join([*pieces, rest])

    def _lone(self, high: bytes, following: bytes) -> bytes:
        """A first half at the end of its string may have its other half in the next event."""
        if following.startswith(b'"') and not self._high:
            self._high = high
            return b""
        return _REPLACEMENT
