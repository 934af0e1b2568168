"""Blobs as files in a folder of this machine.

A blob is written under another name into `incoming` and gets its own when all of it is on the disk. A lock on the file
tells that somebody is still writing; the system drops it with the process, so what is not locked there is left over.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import ParamSpec, TypeVar

from treadle import ports
from treadle.errors import NotFound, StorageFault

if sys.platform != "win32":
    import fcntl

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
"""Disk operations at the same time; they wait for the disk and not for each other."""

WRITE, READ = 1_048_576, 262_144
"""Bytes that are written and read at a time: a way into a thread and back costs as much as copying some 100 KB."""

_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_INCOMING = "incoming"
_ABANDONED_SECONDS = 3600
"""Where files cannot be locked: the age of an unfinished one from which on nobody is believed to write it."""
_LISTED = 500


class LocalBlobs(ports.Blobs):
    """The `Blobs` port over a folder, which is made when something is first stored. Close it when the app stops."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="treadle-blobs")

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> int:
        writing = _Writing(self._folder / _INCOMING, self._place(key))
        try:
            await self._run(writing.begin)
            waiting: list[bytes] = []
            size = 0
            async for part in parts:
                waiting.append(part)
                size += len(part)
                if size >= WRITE:
                    await self._run(writing.write, waiting)
                    waiting, size = [], 0
            return await self._run(writing.finish, waiting)
        except BaseException:
            await self._run(writing.discard)
            raise

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        left = sys.maxsize if end is None else end - start
        reading = _Reading(self._place(key))
        try:
            await self._run(reading.begin, start)
            while left > 0 and (piece := await self._run(reading.read, min(READ, left))):
                left -= len(piece)
                yield piece
        finally:
            reading.end()

    async def delete(self, key: str) -> None:
        await self._run(_remove, self._place(key))

    async def stored(self, before: float) -> AsyncIterator[list[str]]:
        await self._run(_clear, self._folder / _INCOMING)
        for shard in await self._run(_shards, self._folder):
            keys = await self._run(_older, shard, before)
            for start in range(0, len(keys), _LISTED):
                yield keys[start : start + _LISTED]

    def _place(self, key: str) -> Path:
        if not _KEY.match(key):
            raise ValueError(f"{key!r} is no key of a blob")
        return self._folder / blake2b(key.encode(), digest_size=1).hexdigest() / key

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread. A caller that is cancelled waits for the end all the same: nothing may happen to a file while
        something else is happening to it."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        fault = future.exception()
        if cancelled is not None:
            raise cancelled
        if isinstance(fault, OSError):
            raise StorageFault(f"The file could not be stored or read: {fault.strerror}.") from fault
        return future.result()


class _Writing:
    """A blob in the making. Its methods run in threads, one at a time."""

    def __init__(self, folder: Path, place: Path) -> None:
        self._folder = folder
        self._place = place
        self._path = folder
        self._file = -1
        self._placed = False
        self._size = 0

    def begin(self) -> None:
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the mode is that of the last one only
        self._folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            path = self._folder / f"{self._place.name}.{os.urandom(6).hex()}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._path = path
            _lock(self._file)
            # Between the two, somebody who clears up may have taken it for abandoned.
            if path.exists():
                return
            self._close()

    def write(self, parts: list[bytes]) -> None:
        view = memoryview(b"".join(parts))
        self._size += len(view)
        while view:
            view = view[os.write(self._file, view) :]

    def finish(self, parts: list[bytes]) -> int:
        """Writes the last parts, and gives the size of all once they are safe on the disk, under their own name."""
        self.write(parts)
        os.fsync(self._file)
        shard = self._place.parent
        if not shard.exists():
            shard.mkdir(mode=0o700, exist_ok=True)
            _sync(shard.parent)
        self._path.rename(self._place)
        self._placed = True
        _sync(shard)
        self._close()
        return self._size

    def discard(self) -> None:
        if self._path != self._folder:
            (self._place if self._placed else self._path).unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class _Reading:
    """A blob that is being read. Its methods run in threads, one at a time."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._file = -1

    def begin(self, start: int) -> None:
        try:
            self._file = os.open(self._place, os.O_RDONLY)
        except FileNotFoundError:
            raise NotFound("The content of this file is not there any more.") from None
        os.lseek(self._file, start, os.SEEK_SET)

    def read(self, size: int) -> bytes:
        return os.read(self._file, size)

    def end(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _remove(place: Path) -> None:
    place.unlink(missing_ok=True)


def _shards(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if len(entry.name) == 2)
    except FileNotFoundError:
        return []


def _older(shard: Path, before: float) -> list[str]:
    return [name for name, changed in _entries(shard) if changed < before]


def _entries(folder: Path) -> Iterator[tuple[str, float]]:
    """Names and times of change. What goes away meanwhile is left out."""
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat().st_mtime


def _clear(incoming: Path) -> None:
    """Removes what nobody is writing any more."""
    for name, changed in list(_entries(incoming)):
        path = incoming / name
        with suppress(FileNotFoundError):
            if sys.platform == "win32":
                if changed < time.time() - _ABANDONED_SECONDS:
                    path.unlink()
                continue
            file = os.open(path, os.O_WRONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                pass
            finally:
                os.close(file)


def _lock(file: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX)


def _sync(folder: Path) -> None:
    """A new name is safe once its folder is."""
    if sys.platform != "win32":
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
