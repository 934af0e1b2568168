"""The completed files of vector stores with their attributes, kept in memory, and which of them pass a filter."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from treadle.ports import SearchableFile, VectorStoreRow, VectorStores
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.retrieval import Attributes, Filter

MAX_FILES = 200_000
"""Files of all listings that are kept, about 150 MB with full attributes."""

MAX_FILTERS = 64
"""Filters per store whose result is kept."""

_MANY = 2000
"""Files from which on a filter is evaluated in a thread, so that the event loop goes on."""

Predicate = Callable[[Attributes], bool]


class Listing:
    """The files of one version of a store."""

    def __init__(self, version: int, files: list[SearchableFile]) -> None:
        self.version = version
        self.files = {file.file: file for file in files}
        self._passed: OrderedDict[bytes, frozenset[str]] = OrderedDict()

    async def passing(self, wanted: Filter, predicate: Predicate) -> frozenset[str]:
        """The files that `predicate`, made from `wanted`, lets through. Asked again, it gives the very same set."""
        key = encode(wanted)
        found = self._passed.get(key)
        if found is None:
            many = len(self.files) > _MANY
            found = await asyncio.to_thread(self._evaluate, predicate) if many else self._evaluate(predicate)
            self._passed[key] = found
            if len(self._passed) > MAX_FILTERS:
                self._passed.popitem(last=False)
        else:
            self._passed.move_to_end(key)
        return found

    def _evaluate(self, predicate: Predicate) -> frozenset[str]:
        return frozenset(name for name, file in self.files.items() if predicate(file.attributes))


class Listings:
    """The listings that were used last."""

    def __init__(self, stores: VectorStores, *, max_files: int = MAX_FILES) -> None:
        self._stores = stores
        self._max = max_files
        self._kept: OrderedDict[str, Listing] = OrderedDict()

    async def of(self, scope: Scope, row: VectorStoreRow) -> Listing:
        """The listing of a store that the scope was given, not older than `row`."""
        found = self._kept.get(row.id)
        if found is None or found.version < row.version:
            # Read after the row, it may already be newer than the version says; then it is read once more than needed.
            found = Listing(row.version, await self._stores.searchable(scope, row.id))
            self._kept[row.id] = found
        self._kept.move_to_end(row.id)
        while len(self._kept) > 1 and sum(len(kept.files) for kept in self._kept.values()) > self._max:
            self._kept.popitem(last=False)
        return found
