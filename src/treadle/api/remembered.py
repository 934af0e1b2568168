"""What connections remember: turns that are not stored, for as long as the connection lasts (contract §9).

Stored turns are not remembered here: whether they still exist is always asked of the store, and their items come from
`engine.recent`. The histories of a chain share their items, but each counts with all its bytes, so the bound is kept.
"""

from __future__ import annotations

from collections import OrderedDict

from treadle.engine.recent import History
from treadle.engine.turn import Turn

MAX_TURNS = 16
"""Turns of one connection; those used longest ago go first."""
SHARE = 4
"""One connection may have this part of all bytes."""


class ConnectionMemory:
    """The turns that one connection can continue."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self._turns: OrderedDict[str, History] = OrderedDict()
        self.size = 0

    def recall(self, response_id: str) -> History | None:
        found = self._turns.get(response_id)
        if found is not None:
            self._turns.move_to_end(response_id)
            self._memories.used(self)
        return found

    def keep_turn(self, turn: Turn, added: int) -> None:
        """Remembers a turn that ended well and that the store alone could not continue. `added`: bytes of its items."""
        response = turn.response
        if response.status in ("completed", "incomplete") and (not response.store or turn.plan.behind_gap):
            self.keep(response.id, turn.history(added))

    def keep(self, response_id: str, history: History) -> None:
        """Remembers what a response is continued with, unless it is larger than all that one connection may have."""
        limit = self._memories.max_bytes // SHARE
        if history.size > limit:
            return
        self._turns[response_id] = history
        self._grow(history.size)
        while len(self._turns) > MAX_TURNS or self.size > limit:
            self.forget_oldest()
        self._memories.used(self)

    def forget(self, response_id: str | None) -> None:
        if response_id is not None and (found := self._turns.pop(response_id, None)) is not None:
            self._grow(-found.size)

    def forget_oldest(self) -> None:
        _, found = self._turns.popitem(last=False)
        self._grow(-found.size)

    def close(self) -> None:
        self._turns.clear()
        self._grow(-self.size)
        self._memories.closed(self)

    def _grow(self, size: int) -> None:
        self.size += size
        self._memories.size += size


class Memories:
    """The memories of all connections, bounded together: the connection used longest ago forgets first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._connections: OrderedDict[ConnectionMemory, None] = OrderedDict()

    def open(self) -> ConnectionMemory:
        return ConnectionMemory(self)

    def used(self, memory: ConnectionMemory) -> None:
        self._connections[memory] = None
        self._connections.move_to_end(memory)
        while self.size > self.max_bytes:
            oldest = next(iter(self._connections))
            if oldest.size:
                oldest.forget_oldest()
            else:
                del self._connections[oldest]

    def closed(self, memory: ConnectionMemory) -> None:
        self._connections.pop(memory, None)
