"""Searches of vector stores, watched: the PassageSearch port around another one."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.ports import Observer, PassageQuery, Passages, PassageSearch
from treadle.scope import Scope


class WatchedPassages:
    """Every search is told to the observer; what is asked and found goes by unread."""

    def __init__(self, search: PassageSearch, observer: Observer) -> None:
        self._search = search
        self._observer = observer

    async def check(self, scope: Scope, stores: Sequence[str], param: str) -> None:
        await self._search.check(scope, stores, param)

    async def passages(self, scope: Scope, query: PassageQuery) -> Passages:
        with self._observer.search(query.stores) as watch:
            given = await self._search.passages(scope, query)
            watch.found(len(given.found), broken=len(given.broken))
        return given
