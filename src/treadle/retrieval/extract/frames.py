"""What the server and its reading processes tell each other: messages in MessagePack behind their length."""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from treadle.ports import Chunk, ChunkRules

LENGTH = struct.Struct(">I")
MAX_FRAME = 8 * 1024 * 1024
"""Bytes. What a process sends beyond this is not read: the process is broken or was taken over."""
BATCH_CHUNKS = 64
BATCH_CHARACTERS = 256 * 1024
"""A message ends with the chunk that reaches this."""


class Bounds(msgspec.Struct, kw_only=True, frozen=True):
    """What one document may cost."""

    seconds: float = 120.0
    """Of work, not counting the time that its chunks wait to be taken."""
    memory_mb: int = 1024
    max_mb: int = 512
    """The file itself."""
    unpacked_mb: int = 512
    """What an archive (Office, EPUB) says that it holds."""
    pages: int = 10_000
    characters: int = 20_000_000
    """Of text; about five million tokens."""


class Order(msgspec.Struct, kw_only=True):
    """Read one document: into chunks by `rules`, or the first `limit` characters of its text."""

    path: str
    filename: str
    bounds: Bounds
    rules: ChunkRules | None = None
    limit: int = 0


class Ready(msgspec.Struct, tag="ready"):
    """The process has loaded what it needs."""


class Batch(msgspec.Struct, tag="batch"):
    chunks: list[Chunk]


class Piece(msgspec.Struct, tag="piece"):
    """A part of the text."""

    text: str


class Done(msgspec.Struct, tag="done"):
    """The document has been read. `memory_mb`: what the process holds now."""

    memory_mb: int = 0


class Fault(msgspec.Struct, tag="fault"):
    """The document cannot be read."""

    kind: Literal["unsupported", "unreadable", "invalid"]
    message: str
    detail: str = ""
    """For the log: where a reader failed in a way that nobody foresaw."""
    memory_mb: int = 0


Answer = Ready | Batch | Piece | Done | Fault


def packed(message: Order | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
