"""Pages of rows that are ordered by age and then id, by cursors that are ids of such rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.errors import InvalidRequest
from treadle.ids import plausible
from treadle.ports import Order
from treadle.store.db import Row, Value

Place = tuple[int, str]
"""Creation time and id."""


def page(
    select: Callable[[str, Sequence[Value]], list[Row]],
    place: Callable[[str], Place | None],
    columns: tuple[str, str],
    *,
    after: str | None,
    before: str | None,
    limit: int,
    order: Order,
) -> tuple[list[Row], bool]:
    """Up to `limit` rows between the cursors, and whether there are more of them.

    `select` runs a query to which the given end of its WHERE clause, with parameters, is added. `place` finds a
    cursor's row, whether it is in the list or not. With `before` alone the page is the one that ends there.
    InvalidRequest for a cursor that leads nowhere.
    """
    backward = before is not None and after is None
    rising = (order == "asc") != backward
    where, params = "", list[Value]()
    for cursor, name, beyond in ((after, "after", order == "asc"), (before, "before", order == "desc")):
        if cursor is not None:
            found = place(cursor) if plausible(cursor) else None
            if found is None:
                raise InvalidRequest("Nothing in this list has the id given as cursor.", param=name)
            where += f" AND ({columns[0]}, {columns[1]}) {'>' if beyond else '<'} (?, ?)"
            params += found
    direction = "ASC" if rising else "DESC"
    where += f" ORDER BY {columns[0]} {direction}, {columns[1]} {direction} LIMIT ?"
    rows = select(where, (*params, limit + 1))
    chosen = rows[:limit]
    return (chosen[::-1] if backward else chosen), len(rows) > limit
