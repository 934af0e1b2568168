"""Cursors over a list that is already in memory (contract §1.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from treadle.api.includes import shown
from treadle.errors import InvalidRequest
from treadle.ports import Order, StoredItem
from treadle.wire.lists import ItemList


def item_page(
    items: Sequence[StoredItem],
    *,
    after: str | None,
    before: str | None,
    limit: int,
    order: Order,
    include: Collection[str],
) -> ItemList:
    """A page of `items` (oldest first as given). InvalidRequest for a cursor that is not among them."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = _position(ordered, after, "after") + 1 if after else 0
    end = _position(ordered, before, "before") if before else len(ordered)
    chosen = ordered[start:end][:limit]
    return list_of(chosen, include, has_more=start + len(chosen) < end)


def list_of(items: Sequence[StoredItem], include: Collection[str], *, has_more: bool) -> ItemList:
    first, last = (items[0].id, items[-1].id) if items else ("", "")
    return ItemList(data=[shown(item, include) for item in items], first_id=first, last_id=last, has_more=has_more)


def _position(items: list[StoredItem], cursor: str, param: str) -> int:
    for index, item in enumerate(items):
        if item.id == cursor:
            return index
    raise InvalidRequest(f"No item '{cursor[:128]}' here to page from.", param=param)
