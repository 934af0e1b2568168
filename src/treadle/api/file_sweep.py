"""Removing what nobody can reach any more: expired files, and bytes whose row was never written."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from treadle.api.files import FileService
from treadle.errors import ServerError
from treadle.ports import Blobs, Files

log = logging.getLogger("treadle.files")

SWEEP_SECONDS = 300.0
ORPHAN_SECONDS = 3600.0
"""Age from which on bytes without a row count as left over. An upload in progress may have its bytes and no row yet;
what it still sends then is a small form, which has to arrive much sooner. Such bytes are looked for as often as that:
it takes a list of all there are."""

_BATCH = 500


class FileSweep:
    """Sweeps at the start and every SWEEP_SECONDS. `start` and `stop` belong to one event loop."""

    def __init__(
        self,
        service: FileService,
        files: Files,
        blobs: Blobs,
        *,
        orphan_seconds: float = ORPHAN_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._files = files
        self._blobs = blobs
        self._orphan_seconds = orphan_seconds
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._listed = -math.inf

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="treadle-file-sweep")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def sweep(self) -> None:
        await self._expired()
        if self._clock() - self._listed >= self._orphan_seconds:
            await self._orphans()
            self._listed = self._clock()

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
            except ServerError as fault:
                log.warning("old files could not be removed: %s", fault.message)
            except Exception:
                log.exception("removing old files failed in a way that it should not")
            await asyncio.sleep(SWEEP_SECONDS)

    async def _expired(self) -> None:
        kept: set[str] = set()
        while True:
            found = [one for one in await self._files.expired(_BATCH + len(kept)) if one[1] not in kept]
            if not found:
                return
            for scope, file_id in found:
                try:
                    await self._service.remove(scope, file_id)
                except ServerError as fault:
                    # One that a broken index holds on to must not keep the others.
                    log.warning("the expired file %s could not be removed: %s", file_id, fault.message)
                    kept.add(file_id)

    async def _orphans(self) -> None:
        async for keys in self._blobs.stored(self._clock() - self._orphan_seconds):
            known = await self._files.known(keys)
            for key in keys:
                if key not in known:
                    log.info("removing the bytes of %s, an upload that broke off", key)
                    await self._blobs.delete(key)
