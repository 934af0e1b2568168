"""A cache of the histories of recent chains, so that a long chain's next turn need not read it all again.

Items before a checkpoint never change, so an entry can only be too old in one way: an item was taken out of a
conversation that the chain branched from. Our own process clears the cache then; for others an entry lives LIFETIME.
Conversations themselves are not cached. Whether a response exists and whose it is, is always asked of the store.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from treadle.ports import Checkpoint
from treadle.wire.items import Item

MAX_BYTES = 33_554_432
"""JSON bytes of all cached items together; the entries used longest ago go first."""
MIN_ITEMS = 8
"""Shorter histories are read faster than they are worth keeping."""
LIFETIME = 60.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class History:
    """The items before a checkpoint, and the size of their JSON."""

    items: list[Item]
    size: int


class RecentHistories:
    """The cache, by checkpoint. One per process."""

    def __init__(self, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[Checkpoint, tuple[float, History]] = OrderedDict()
        self._bytes = 0

    def get(self, checkpoint: Checkpoint) -> History | None:
        found = self._entries.get(checkpoint)
        if found is None:
            return None
        if self._clock() > found[0]:
            self._drop(checkpoint)
            return None
        self._entries.move_to_end(checkpoint)
        return found[1]

    def put(self, checkpoint: Checkpoint, history: History, *, instead_of: Checkpoint | None) -> None:
        """Keeps `history`; the entry of the checkpoint that it continues goes, as the same items would count twice."""
        if instead_of is not None:
            self._drop(instead_of)
        self._drop(checkpoint)
        if len(history.items) < MIN_ITEMS or history.size > self._max_bytes:
            return
        self._entries[checkpoint] = (self._clock() + LIFETIME, history)
        self._bytes += history.size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _drop(self, checkpoint: Checkpoint) -> None:
        if (found := self._entries.pop(checkpoint, None)) is not None:
            self._bytes -= found[1].size
