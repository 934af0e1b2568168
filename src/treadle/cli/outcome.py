"""What came of a run of `ingest`, for people and for scripts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from treadle.cli.indexing import Kind, Outcome
from treadle.cli.printable import printable
from treadle.cli.stores import Store
from treadle.cli.walk import Walk

_COUNTED: tuple[Kind, ...] = ("indexed", "replaced", "unchanged", "failed")
_SHOWN = 5


class Skipped(msgspec.Struct, frozen=True):
    count: int
    reason: str


class Result:
    """Filled while the run goes on."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._begun = time.monotonic()
        self.outcomes = [
            Outcome(path=fault.path, status="failed", code="unreadable", message=fault.reason) for fault in walk.faults
        ]
        self.store: Store | None = None
        self.underway: Sequence[str] = ()
        """Keys of documents that the server has and was not done with."""
        self.interrupted = False
        self.stopped = False
        """By a fault that was not one document's."""

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        return 1 if self.stopped or self._count("failed") else 0

    def lines(self) -> Iterator[str]:
        if self.store is None:
            if not self.stopped and not self.interrupted:
                yield "There is nothing to index."
        else:
            counts = ", ".join(f"{count} {kind}" for kind in _COUNTED if (count := self._count(kind))) or "nothing done"
            seconds = time.monotonic() - self._begun
            yield f"{_shown(self.store)}: {counts} ({seconds:.1f} s)"
            if self.underway:
                yield f"{len(self.underway)} begun: the server, or the next run, finishes them"
            if left := self._left():
                yield f"{left} not looked at: run the same command again to go on"
        if skipped := self.skipped():
            reasons = ", ".join(f"{one.count} {one.reason}" for one in skipped)
            yield f"skipped {sum(one.count for one in skipped)}: {reasons}"

    def as_json(self) -> str:
        found: dict[str, object] = {
            "store": None if self.store is None else {"id": self.store.id, "name": self.store.name},
            "indexed": self._count("indexed"),
            "replaced": self._count("replaced"),
            "unchanged": self._count("unchanged"),
            "failed": self._count("failed"),
            "skipped": sum(one.count for one in self.skipped()),
            "underway": len(self.underway),
            "left": self._left(),
            "interrupted": self.interrupted,
            "stopped": self.stopped,
            "files": self.outcomes,
            "skips": self.skipped(),
        }
        return msgspec.json.encode(found).decode()

    def skipped(self) -> list[Skipped]:
        """Reasons, the most frequent first; several that a server gave may be put together."""
        found = [Skipped(count, reason) for reason, count in self._walk.skipped.items()]
        if endings := self._walk.endings:
            names = ", ".join(ending for ending, _ in endings.most_common(_SHOWN))
            more = ", …" if len(endings) > _SHOWN else ""
            found.append(Skipped(endings.total(), f"of kinds that are not read ({names}{more})"))
        reasons = Counter(one.message for one in self.outcomes if one.status == "skipped")
        shown = reasons.most_common(_SHOWN)
        found += [Skipped(count, f"refused ({printable(reason)})") for reason, count in shown]
        if rest := reasons.total() - sum(count for _, count in shown):
            found.append(Skipped(rest, "refused for other reasons"))
        return sorted(found, key=lambda one: -one.count)

    def _count(self, kind: Kind) -> int:
        return sum(one.status == kind for one in self.outcomes)

    def _left(self) -> int:
        looked_at = len(self.outcomes) - len(self._walk.faults) + len(self.underway)
        return len(self._walk.documents) - looked_at


def _shown(store: Store) -> str:
    return f"{printable(store.name)} ({store.id})" if store.name else store.id
