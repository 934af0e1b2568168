"""A file as the form that uploads it (RFC 7578), read while it is sent."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from typing import BinaryIO

from treadle.cli.channel import Body

_PIECE = 262_144
_PURPOSE = "assistants"


class Upload:
    """The first `size` bytes of an open file, under its name without folders. Once it is sent, `digest` is their
    SHA-256 in hex digits, and `fault` says whether they were not all there."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._hash = hashlib.sha256()
        self.fault: OSError | None = None
        mark = secrets.token_hex(16)
        self._head = (
            f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{_PURPOSE}\r\n'
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{_quoted(name)}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        self._tail = f"\r\n--{mark}--\r\n".encode()
        length = len(self._head) + self._size + len(self._tail)
        self.body = Body(f"multipart/form-data; boundary={mark}", length, self._parts)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    async def _parts(self) -> AsyncIterator[bytes]:
        yield self._head
        left = self._size
        while left:
            piece = await asyncio.to_thread(self._read, min(left, _PIECE))
            left -= len(piece)
            yield piece
        yield self._tail

    def _read(self, size: int) -> bytes:
        """The next bytes. Zeros if there are none: a request that was announced to be longer cannot end in order, and
        nobody will look at what was sent."""
        piece = b""
        if self.fault is None:
            try:
                piece = self._file.read(size)
            except OSError as error:
                self.fault = error
            else:
                self.fault = None if piece else OSError("it became shorter while it was read")
        self._hash.update(piece)
        return piece or bytes(size)


def digest_of(file: BinaryIO) -> str:
    """The SHA-256 of a whole file, in hex digits; the file is at its beginning again."""
    found = hashlib.sha256()
    while piece := file.read(_PIECE):
        found.update(piece)
    file.seek(0)
    return found.hexdigest()


def _quoted(name: str) -> str:
    """As browsers write names of files, and UTF-8 whatever the file system says."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
