"""The cache of recent histories: bounded, short-lived, never in the way."""

from __future__ import annotations

from msgspec import Raw

from treadle.engine.recent import LIFETIME, MIN_ITEMS, History, RecentHistories
from treadle.ports import Checkpoint
from treadle.wire.items import OpaqueItem


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _history(size: int = 10, items: int = MIN_ITEMS) -> History:
    return History([OpaqueItem("kind", f"i{n}", Raw(b"{}")) for n in range(items)], size)


def test_what_was_put_is_found_until_it_is_too_old() -> None:
    clock, kept = _Clock(), _history()
    recent = RecentHistories(clock=clock)
    recent.put(Checkpoint(1, 8), kept, instead_of=None)
    assert recent.get(Checkpoint(1, 8)) is kept
    assert recent.get(Checkpoint(1, 9)) is None
    clock.now = LIFETIME + 1
    assert recent.get(Checkpoint(1, 8)) is None


def test_a_chain_has_one_entry_however_long_it_grows() -> None:
    recent = RecentHistories(max_bytes=100)
    recent.put(Checkpoint(1, 8), _history(60), instead_of=None)
    recent.put(Checkpoint(1, 10), _history(70), instead_of=Checkpoint(1, 8))
    assert recent.get(Checkpoint(1, 8)) is None
    assert recent.get(Checkpoint(1, 10)) is not None


def test_the_entries_used_longest_ago_make_room() -> None:
    recent = RecentHistories(max_bytes=100)
    for thread in (1, 2):
        recent.put(Checkpoint(thread, 8), _history(50), instead_of=None)
    assert recent.get(Checkpoint(1, 8)) is not None
    recent.put(Checkpoint(3, 8), _history(50), instead_of=None)
    assert recent.get(Checkpoint(2, 8)) is None
    assert recent.get(Checkpoint(1, 8)) is not None
    assert recent.get(Checkpoint(3, 8)) is not None


def test_short_and_huge_histories_are_not_kept() -> None:
    recent = RecentHistories(max_bytes=100)
    recent.put(Checkpoint(1, 2), _history(items=MIN_ITEMS - 1), instead_of=None)
    recent.put(Checkpoint(2, 8), _history(101), instead_of=None)
    assert recent.get(Checkpoint(1, 2)) is None
    assert recent.get(Checkpoint(2, 8)) is None


def test_clearing_forgets_all() -> None:
    recent = RecentHistories(max_bytes=100)
    recent.put(Checkpoint(1, 8), _history(100), instead_of=None)
    recent.clear()
    assert recent.get(Checkpoint(1, 8)) is None
    recent.put(Checkpoint(2, 8), _history(100), instead_of=None)
    assert recent.get(Checkpoint(2, 8)) is not None
