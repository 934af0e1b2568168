"""Which vector stores a caller may use now, and what is said about those that it may not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.errors import InvalidRequest, NotFound
from treadle.ports import StatusCounts, VectorStoreRow, VectorStores
from treadle.scope import Scope
from treadle.wire.vector_stores import FileCounts


async def usable_stores(
    stores: VectorStores, scope: Scope, ids: Sequence[str], now: float, param: str = "vector_store_id"
) -> list[VectorStoreRow]:
    """The stores, in order. NotFound, naming `param`, for one that the caller does not have; InvalidRequest for an
    expired one."""
    found = await stores.find(scope, ids)
    rows = []
    for store_id in ids:
        row = found.get(store_id)
        if row is None:
            raise missing_store(store_id, param)
        if row.expired(now):
            raise InvalidRequest(
                f"Vector store '{store_id}' has expired. Updating it, for example its 'expires_after', brings it back.",
                param=param,
                code="vector_store_expired",
            )
        rows.append(row)
    return rows


async def usable_store(stores: VectorStores, scope: Scope, store_id: str, now: float) -> VectorStoreRow:
    """One of them."""
    return (await usable_stores(stores, scope, [store_id], now))[0]


async def known_store(stores: VectorStores, scope: Scope, store_id: str) -> VectorStoreRow:
    """The store, expired or not. NotFound if the caller does not have it."""
    row = (await stores.find(scope, [store_id])).get(store_id)
    if row is None:
        raise missing_store(store_id)
    return row


def missing_store(store_id: str, param: str = "vector_store_id") -> NotFound:
    return NotFound(f"Vector store '{store_id[:128]}' not found.", param=param)


def shown_counts(counts: StatusCounts) -> FileCounts:
    return FileCounts(**msgspec.structs.asdict(counts), total=counts.total)
