"""Reads documents in processes apart: spools the bytes, keeps a few processes alive, passes on what they find."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import IO, Self

from treadle.errors import UnreadableFile
from treadle.ports import Chunk, ChunkRules
from treadle.retrieval.extract.frames import Answer, Batch, Bounds, Order, Piece
from treadle.retrieval.extract.process import ReadingProcess

_WRITE = 1024 * 1024
"""Bytes that are gathered before they are written."""
_MAX_DOCUMENTS = 100
"""A process is replaced after so many, so that what parsers leak does not add up."""
_MAX_MEMORY_MB = 400
"""A process that holds more than this between two documents is replaced."""
_SUFFIX = 12
"""Characters of a file extension, at most."""


class DocumentReader:
    """An Extractor. Belongs to one event loop; processes start when they are needed.

    `processes`: how many documents are cut into chunks at a time; whole texts, which requests wait for, are read in a
    further one. `idle_seconds`: how long a process without work is kept. `folder`: where documents are put while they
    are read (None: the system's place for temporary files).
    """

    def __init__(
        self,
        *,
        bounds: Bounds | None = None,
        processes: int = 2,
        idle_seconds: float = 60.0,
        folder: Path | None = None,
    ) -> None:
        self._bounds = bounds or Bounds()
        self._folder = folder
        self._spool: Path | None = None
        self._chunking = _Pool(processes, idle_seconds)
        self._showing = _Pool(1, idle_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all processes, also those at work, and removes what they were reading."""
        await self._chunking.close()
        await self._showing.close()
        spool, self._spool = self._spool, None
        if spool is not None:
            await asyncio.to_thread(shutil.rmtree, spool, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there."""
        return self._chunking.pids + self._showing.pids

    async def chunks(
        self, source: AsyncIterator[bytes], filename: str, rules: ChunkRules
    ) -> AsyncGenerator[list[Chunk]]:
        """See Extractor. InvalidRequest for rules that nothing can be cut by."""
        async with aclosing(self._answers(self._chunking, source, filename, rules, 0)) as answers:
            async for answer in answers:
                if isinstance(answer, Batch):
                    yield answer.chunks

    async def text(self, source: AsyncIterator[bytes], filename: str, limit: int) -> str:
        """See Extractor."""
        async with aclosing(self._answers(self._showing, source, filename, None, limit)) as answers:
            return "".join([answer.text async for answer in answers if isinstance(answer, Piece)])

    async def _answers(
        self, pool: _Pool, source: AsyncIterator[bytes], filename: str, rules: ChunkRules | None, limit: int
    ) -> AsyncGenerator[Answer]:
        path = await self._spooled(source)
        try:
            order = Order(path=str(path), filename=filename, bounds=self._bounds, rules=rules, limit=limit)
            async with pool.borrow(path.parent) as process, aclosing(process.answers(order)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            path.unlink(missing_ok=True)

    async def _spooled(self, source: AsyncIterator[bytes]) -> Path:
        """A file with the bytes, which only we may read. UnreadableFile if there are too many."""
        if self._spool is None:
            self._spool = await asyncio.to_thread(_private_folder, self._folder)
        file, path = await asyncio.to_thread(_private_file, self._spool)
        try:
            await _write(source, file, self._bounds)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            file.close()
            if isinstance(source, AsyncGenerator):
                await source.aclose()
        return path


class _Pool:
    """Processes, at most `limit`, of which each is lent to one document at a time."""

    def __init__(self, limit: int, idle_seconds: float) -> None:
        self._free = asyncio.Semaphore(limit)
        self._idle_seconds = idle_seconds
        self._idle: dict[ReadingProcess, asyncio.TimerHandle] = {}
        self._busy: set[ReadingProcess] = set()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in [*self._idle, *self._busy]]

    @asynccontextmanager
    async def borrow(self, folder: Path) -> AsyncIterator[ReadingProcess]:
        """A process for one document. One that did not come to its end is killed."""
        async with self._free:
            process = self._waiting() or await ReadingProcess.start(folder)
            self._busy.add(process)
            try:
                yield process
            finally:
                self._busy.discard(process)
                self._give_back(process)

    def _waiting(self) -> ReadingProcess | None:
        while self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
            if process.is_idle:
                return process
            self._end(process)
        return None

    def _give_back(self, process: ReadingProcess) -> None:
        worn = process.served >= _MAX_DOCUMENTS or process.memory_mb > _MAX_MEMORY_MB
        if worn or not process.is_idle:
            self._end(process)
            return
        timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._retire, process)
        self._idle[process] = timer

    def _retire(self, process: ReadingProcess) -> None:
        del self._idle[process]
        self._end(process)

    def _end(self, process: ReadingProcess) -> None:
        process.kill()
        task = asyncio.get_running_loop().create_task(process.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for timer in self._idle.values():
            timer.cancel()
        for process in [*self._idle, *self._busy]:
            self._end(process)
        self._idle.clear()
        await asyncio.gather(*self._ending)


def _private_folder(parent: Path | None) -> Path:
    return Path(tempfile.mkdtemp(prefix="treadle-documents-", dir=parent))


def _private_file(folder: Path) -> tuple[IO[bytes], Path]:
    descriptor, name = tempfile.mkstemp(dir=folder)
    return open(descriptor, "wb", buffering=0), Path(name)  # noqa: PTH123 -- a descriptor, closed by the caller


async def _write(source: AsyncIterator[bytes], file: IO[bytes], bounds: Bounds) -> None:
    size = 0
    pending = bytearray()
    async for part in source:
        size += len(part)
        if size > bounds.max_mb << 20:
            raise UnreadableFile(f"The document is larger than allowed ({bounds.max_mb} MB).")
        pending += part
        if len(pending) >= _WRITE:
            await asyncio.to_thread(file.write, bytes(pending))
            pending.clear()
    if pending:
        await asyncio.to_thread(file.write, bytes(pending))
