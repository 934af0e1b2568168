"""Repairs of what weak models and lax servers send, in one place (bug cases 11, 12).

Fragments of a tool call are told apart by index, by id where indexes repeat, and by a name that starts a new call;
nothing is ever appended to "the latest call" on a guess.
"""

from __future__ import annotations

import msgspec

from treadle.ports import CallFragment

_value = msgspec.json.Decoder(msgspec.Raw)


class _Slot(msgspec.Struct):
    number: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class CallSlots:
    """Gives every fragment of one model turn the slot of the call it belongs to."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._by_id: dict[str, _Slot] = {}
        self._by_index: dict[int | None, _Slot] = {}

    def place(self, index: int | None, call_id: str | None, name: str | None, arguments: str) -> CallFragment:
        """`index`, `call_id` and `name` as the server sent them, null or empty included."""
        call_id, name = call_id or None, name or None
        slot = self._find(index, call_id, name)
        if call_id and slot.id is None:
            slot.id = call_id
            self._by_id[call_id] = slot
        slot.name = slot.name or name
        slot.arguments += arguments
        self._by_index[index] = slot
        return CallFragment(slot.number, call_id, name, arguments)

    def _find(self, index: int | None, call_id: str | None, name: str | None) -> _Slot:
        if call_id and call_id in self._by_id:
            return self._by_id[call_id]
        slot = self._by_index.get(index)
        if slot is None and index is None and not call_id and not name and self._slots:
            return self._slots[-1]
        if slot is None or (call_id and slot.id and slot.id != call_id) or self._starts_anew(slot, name):
            slot = _Slot(len(self._slots))
            self._slots.append(slot)
        return slot

    def _starts_anew(self, slot: _Slot, name: str | None) -> bool:
        """A name where one is known: the next call, unless the server repeats the name with every fragment."""
        if not name or not slot.name:
            return False
        return name != slot.name or _is_whole(slot.arguments)


def _is_whole(arguments: str) -> bool:
    try:
        _value.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
