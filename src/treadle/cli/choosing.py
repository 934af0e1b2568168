"""From what a user calls a vector store, its name or its id, to the store."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Sequence

from treadle.cli.printable import printable
from treadle.cli.stores import Refused, Store, Stores

_ID = "vs_"
_SHOWN, _LONG = 20, 60
_JUST_NOW, _PAUSES = 30, (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds."""


class NoSuchStore(Exception):
    """None, or more than one, is called so; the message says what there is."""


async def known(stores: Stores, called: str) -> Store:
    """The store. NoSuchStore if there is not exactly one."""
    found = await _by_id(stores, called)
    if found is not None:
        return found
    every = await stores.all()
    chosen = one_of(called, every)
    if chosen is None:
        raise NoSuchStore(_advice(called, every))
    return chosen


async def known_or_new(stores: Stores, called: str) -> tuple[Store, bool]:
    """The store, and whether it was made now. NoSuchStore for an id that is not there, and if several have the name."""
    found = await _by_id(stores, called)
    if found is not None:
        return found, False
    every = await _settled(stores, called)
    chosen = one_of(called, every)
    if chosen is not None:
        return chosen, False
    if called.startswith(_ID):
        raise NoSuchStore(_advice(called, every))
    made = await stores.create(called)
    # Somebody else may have had the same thought. The older store stays, and both will know it by that.
    same = [store for store in await stores.all() if store.name == called]
    oldest = min(same, key=lambda store: (store.created_at, store.id), default=made)
    if oldest.id != made.id:
        await stores.delete(made.id)
    return oldest, oldest.id == made.id


async def _settled(stores: Stores, called: str) -> list[Store]:
    """All stores. Where several were given the name just now, somebody is about to delete all but the oldest."""
    for pause in _PAUSES:
        every = await stores.all()
        made = [store.created_at for store in every if store.name == called]
        if len(made) < 2 or max(made) < time.time() - _JUST_NOW:
            return every
        await asyncio.sleep(pause)
    return await stores.all()


def one_of(called: str, every: Sequence[Store]) -> Store | None:
    """The store of this name. NoSuchStore if there are several."""
    same = [store for store in every if store.name == called]
    if len(same) > 1:
        ids = ", ".join(store.id for store in same)
        raise NoSuchStore(f"more than one vector store is called {printable(called)}; use an id instead: {ids}")
    return same[0] if same else None


async def _by_id(stores: Stores, called: str) -> Store | None:
    if not called.startswith(_ID):
        return None
    try:
        return await stores.get(called)
    except Refused as refused:
        if refused.status not in (400, 404):
            raise
        return None


def _advice(called: str, every: Sequence[Store]) -> str:
    what = "has the id" if called.startswith(_ID) else "is called"
    message = f"no vector store {what} {printable(called)}"
    names = sorted({store.name or store.id for store in every})
    if not names:
        return f"{message}; there is none at all"
    names = [f"{name[:_LONG]}…" if len(name) > _LONG else name for name in names]
    alike = difflib.get_close_matches(called, names, 1)
    if alike:
        return f"{message}; did you mean {printable(alike[0])}?"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{message}; there are {', '.join(map(printable, names[:_SHOWN]))}{more}"
