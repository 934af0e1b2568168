"""Reads documents in processes apart: spools the bytes, lends a process, passes on what it finds."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Self

from treadle.errors import StorageFault, UnreadableFile
from treadle.ports import Chunk, ChunkRules
from treadle.retrieval.extract.frames import Batch, Bounds, Order, Piece
from treadle.retrieval.extract.pool import ProcessPool

__all__ = ["Bounds", "DocumentReader"]

_WRITE = 1024 * 1024
"""Bytes that are gathered before they are written."""


class DocumentReader:
    """An Extractor. Belongs to one event loop; processes start when they are needed.

    `processes`: how many documents are cut into chunks at a time. Whole texts, which requests wait for, are read in as
    many others, so that they do not queue behind files that are being indexed. `idle_seconds`: how long a process
    without work is kept. `folder`: where documents are put while they are read (None: the system's place for temporary
    files); StorageFault if they cannot be.
    """

    def __init__(
        self,
        bounds: Bounds | None = None,
        *,
        processes: int = 2,
        idle_seconds: float = 60.0,
        folder: Path | None = None,
    ) -> None:
        self._bounds = bounds or Bounds()
        self._place = folder
        self._folder: Path | None = None
        self._cutting = ProcessPool(processes, idle_seconds)
        self._showing = ProcessPool(processes, idle_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all processes, also those at work, and removes what they were reading."""
        await self._cutting.close()
        await self._showing.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there."""
        return self._cutting.pids + self._showing.pids

    async def chunks(
        self, source: AsyncIterator[bytes], filename: str, rules: ChunkRules
    ) -> AsyncGenerator[list[Chunk]]:
        """See Extractor. InvalidRequest for rules that nothing can be cut by."""
        async with aclosing(self._answers(self._cutting, source, filename, rules=rules)) as answers:
            async for answer in answers:
                if isinstance(answer, Batch):
                    yield answer.chunks

    async def text(self, source: AsyncIterator[bytes], filename: str, limit: int) -> str:
        """See Extractor."""
        if limit < 1:
            return ""
        async with aclosing(self._answers(self._showing, source, filename, limit=limit)) as answers:
            return "".join([answer.text async for answer in answers if isinstance(answer, Piece)])

    async def _answers(
        self,
        pool: ProcessPool,
        source: AsyncIterator[bytes],
        filename: str,
        *,
        rules: ChunkRules | None = None,
        limit: int = 0,
    ) -> AsyncGenerator[Batch | Piece]:
        folder = self._private_folder()
        # Comes up while the bytes are written, and from then on sees to it that none of them survive us.
        pool.warm_up(folder)
        async with self._spooled(source, folder) as path:
            order = Order(path=str(path), filename=filename, bounds=self._bounds, rules=rules, limit=limit)
            async with pool.borrow(folder) as process, aclosing(process.answers(order)) as answers:
                async for answer in answers:
                    yield answer

    @asynccontextmanager
    async def _spooled(self, source: AsyncIterator[bytes], folder: Path) -> AsyncIterator[Path]:
        """The bytes in a file that only we may read, for as long as it is needed."""
        path = _private_file(folder)
        try:
            try:
                await _write(source, path, self._bounds)
            finally:
                if isinstance(source, AsyncGenerator):
                    await source.aclose()
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _private_folder(self) -> Path:
        # Not in a thread, nor is the file in it: what a thread makes for a caller that was cancelled stays for ever.
        if self._folder is None:
            with _storing():
                self._folder = Path(tempfile.mkdtemp(prefix="treadle-documents-", dir=self._place))
        return self._folder


def _private_file(folder: Path) -> Path:
    with _storing():
        descriptor, name = tempfile.mkstemp(dir=folder)
        os.close(descriptor)
    return Path(name)


async def _write(source: AsyncIterator[bytes], path: Path, bounds: Bounds) -> None:
    """UnreadableFile if there are too many bytes."""
    size = 0
    pending = bytearray()
    async for part in source:
        size += len(part)
        if size > bounds.max_mb << 20:
            raise UnreadableFile(f"The document is larger than allowed ({bounds.max_mb} MB).")
        pending += part
        if len(pending) >= _WRITE:
            await asyncio.to_thread(_append, path, bytes(pending))
            pending.clear()
    if pending:
        await asyncio.to_thread(_append, path, bytes(pending))


def _append(path: Path, data: bytes) -> None:
    # Opened anew, because a thread goes on when its caller is cancelled; never created, because it may be gone by then.
    with _storing(), path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(data)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise StorageFault(f"A document cannot be put where it is read ({fault.strerror}).") from fault
