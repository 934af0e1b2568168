"""Waiting for files to be indexed, without asking the database again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

_Key = tuple[str, str]
"""Vector store and file."""


class Watch:
    """Files whose end somebody waits for."""

    def __init__(self, keys: Iterable[_Key]) -> None:
        self._left = set(keys)
        self._done = asyncio.Event()

    def forget_all_but(self, keys: Iterable[_Key]) -> None:
        self._left &= set(keys)
        self._check()

    def ended(self, key: _Key) -> None:
        self._left.discard(key)
        self._check()

    async def wait(self, seconds: float) -> None:
        """Returns when all have ended, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._done.wait()
        except TimeoutError:
            return

    def _check(self) -> None:
        if not self._left:
            self._done.set()


class Watches:
    """The files that somebody in this process waits for. It holds what running requests wait for, and no more."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, list[Watch]] = {}

    @contextmanager
    def over(self, store_id: str, files: Sequence[str]) -> Iterator[Watch]:
        """A watch that notices what ends from now on."""
        keys = {(store_id, file) for file in files}
        watch = Watch(keys)
        for key in keys:
            self._by_key.setdefault(key, []).append(watch)
        try:
            yield watch
        finally:
            for key in keys:
                self._by_key[key].remove(watch)
                if not self._by_key[key]:
                    del self._by_key[key]

    def ended(self, store_id: str, file: str) -> None:
        key = (store_id, file)
        for watch in self._by_key.get(key, ()):
            watch.ended(key)
