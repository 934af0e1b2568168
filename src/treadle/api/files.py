"""Files: uploading, reading, listing and deleting them (contract §12)."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec import UNSET

from treadle import ports
from treadle.errors import InvalidRequest, NotFound, ServerError, TooLarge
from treadle.ids import new_file_id
from treadle.ports import Blobs, FileRow, Files, Order
from treadle.scope import Scope
from treadle.wire.files import CreateFile, File, FileDeleted, FileList, clean_filename, media_type_of

log = logging.getLogger("treadle.files")

MAX_BYTES = 536_870_912
KEPT_SECONDS = 30 * 86_400
_PIECE = 262_144

Deleted = Callable[[Scope, str], Awaitable[None]]
"""Told of a file that is being deleted, by its id."""


class Upload:
    """A file on its way in: first the bytes, then what the form says of them, in whatever order they came."""

    def __init__(self, service: FileService, scope: Scope) -> None:
        self._service = service
        self._scope = scope
        self._id = new_file_id()
        self._filename: str | None = None
        self._size = 0
        self._stored = False
        """There are bytes under the id, and nobody has been told of the file."""

    async def receive(self, filename: str, content: AsyncIterator[bytes]) -> None:
        """Stores the bytes while they come. TooLarge beyond the limit; InvalidRequest for a second file."""
        if self._filename is not None:
            raise InvalidRequest("Send one file at a time: there is more than one 'file'.", param="file")
        self._filename = clean_filename(filename)
        self._size = await self._service.put(self._id, content)
        self._stored = True

    async def complete(self, wanted: CreateFile) -> File:
        """The file, which is there from now on. InvalidRequest if none came."""
        if self._filename is None:
            raise InvalidRequest("Missing required parameter: 'file'.", param="file", code="missing_required_parameter")
        seconds = wanted.expires_after.seconds if wanted.expires_after else None
        row = await self._service.add(self._scope, self._id, self._filename, self._size, wanted.purpose, seconds)
        self._stored = False
        return shown_file(row)

    async def discard(self) -> None:
        """Leaves nothing behind, unless the file was completed."""
        if self._stored:
            await self._service.undo(self._scope, self._id)


class FileService(ports.FileContents):
    """The use cases of `/v1/files`, and the files of a caller for whoever shows them to models."""

    def __init__(
        self,
        files: Files,
        blobs: Blobs,
        *,
        max_bytes: int = MAX_BYTES,
        kept_seconds: int = KEPT_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`max_bytes` of one file; `kept_seconds`: how long files live that the server makes of its own accord."""
        self.max_bytes = max_bytes
        self._files = files
        self._blobs = blobs
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._on_delete: list[Deleted] = []

    def on_delete(self, told: Deleted) -> None:
        """`told` is awaited before a file goes, by request or by expiry; if it raises, the file stays."""
        self._on_delete.append(told)

    @asynccontextmanager
    async def upload(self, scope: Scope) -> AsyncIterator[Upload]:
        """An upload that leaves nothing behind if it is not completed."""
        upload = Upload(self, scope)
        try:
            yield upload
        finally:
            await upload.discard()

    async def get(self, scope: Scope, file_id: str) -> File:
        return shown_file(await self._row(scope, file_id))

    async def list(self, scope: Scope, *, after: str | None, limit: int, order: Order, purpose: str | None) -> FileList:
        page = await self._files.page(scope, after=after, limit=limit, order=order, purpose=purpose)
        data = [shown_file(row) for row in page.files]
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        return FileList(data=data, first_id=first, last_id=last, has_more=page.has_more)

    async def delete(self, scope: Scope, file_id: str) -> FileDeleted:
        await self._row(scope, file_id)
        if not await self.remove(scope, file_id):
            raise missing_file(file_id)
        return FileDeleted(file_id)

    async def remove(self, scope: Scope, file_id: str) -> bool:
        """Takes a file, expired or not, out of everything: first what was made of it, which may fail, and at last the
        bytes, which nobody finds any more."""
        for told in self._on_delete:
            await told(scope, file_id)
        if not await self._files.delete(scope, file_id):
            return False
        await self._drop(file_id)
        return True

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, FileRow]:
        return await self._files.find(scope, ids)

    async def open(self, scope: Scope, file_id: str) -> tuple[FileRow, AsyncIterator[bytes]]:
        row = await self._row(scope, file_id)
        return row, self._blobs.read(file_id)

    async def keep(self, scope: Scope, filename: str, text: str, media_type: str = "text/plain") -> FileRow:
        file_id = new_file_id()
        size = await self.put(file_id, _encoded(text))
        try:
            name = clean_filename(filename)
            return await self.add(scope, file_id, name, size, "user_data", self._kept_seconds, media_type)
        except BaseException:
            await self.undo(scope, file_id)
            raise

    async def write(
        self,
        scope: Scope,
        file_id: str,
        filename: str,
        content: AsyncIterator[bytes],
        purpose: str,
        seconds: int | None,
    ) -> FileRow:
        """A file that the server makes, of any size. `seconds`: how long it lives; None for ever."""
        size = await self._blobs.put(file_id, content)
        try:
            return await self.add(scope, file_id, clean_filename(filename), size, purpose, seconds)
        except BaseException:
            await self.undo(scope, file_id)
            raise

    # ------------------------------------------------------------------------------- for uploads only

    async def put(self, file_id: str, content: AsyncIterator[bytes]) -> int:
        return await self._blobs.put(file_id, self._bounded(content))

    async def add(
        self,
        scope: Scope,
        file_id: str,
        filename: str,
        size: int,
        purpose: str,
        seconds: int | None,
        media_type: str = "",
    ) -> FileRow:
        now = int(self._clock())
        row = FileRow(
            id=file_id,
            filename=filename,
            purpose=purpose,
            bytes=size,
            created_at=now,
            media_type=media_type or media_type_of(filename),
            expires_at=None if seconds is None else now + seconds,
        )
        await self._files.add(scope, row)
        return row

    async def undo(self, scope: Scope, file_id: str) -> None:
        """Removes the bytes of a file that nobody was told of. Its row may be there already: who is cancelled while it
        is written does not stop that."""
        try:
            await self._files.delete(scope, file_id)
        except ServerError as fault:
            log.warning("an upload that broke off could not be taken back: %s", fault.message)
        else:
            await self._drop(file_id)

    async def _drop(self, file_id: str) -> None:
        """Removes bytes that no row tells of. If that fails, the sweep does it later."""
        try:
            await self._blobs.delete(file_id)
        except ServerError as fault:
            log.warning("the content of %s could not be removed: %s", file_id, fault.message)

    async def _row(self, scope: Scope, file_id: str) -> FileRow:
        row = (await self._files.find(scope, [file_id])).get(file_id)
        if row is None:
            raise missing_file(file_id)
        return row

    async def _bounded(self, content: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        size = 0
        async for piece in content:
            size += len(piece)
            if size > self.max_bytes:
                raise too_large(self.max_bytes)
            yield piece


def shown_file(row: FileRow) -> File:
    return File(
        id=row.id,
        bytes=row.bytes,
        created_at=row.created_at,
        expires_at=UNSET if row.expires_at is None else row.expires_at,
        filename=row.filename,
        purpose=row.purpose,
    )


def missing_file(file_id: str, param: str = "file_id") -> NotFound:
    return NotFound(f"File '{file_id[:128]}' not found.", param=param)


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The file is larger than {limit} bytes (files.max_bytes).", param="file", code="file_too_large")


async def _encoded(text: str) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE].encode("utf-8", "replace")
