"""A document on disk, and the way from its bytes to blocks: detect the type, read, clean, bound."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from treadle.errors import UnreadableFile
from treadle.retrieval.extract.blocks import Block, Code, Heading, Page, Paragraph, Section, Table, cleaned
from treadle.retrieval.extract.encoding import decoded
from treadle.retrieval.extract.frames import Bounds

HEAD = 64 * 1024
"""Bytes at the start of a file that its type is told by."""


class Document:
    """A file to be read. `limit`: characters of text that are wanted; 0 for all of it."""

    def __init__(self, path: Path, filename: str, bounds: Bounds, limit: int = 0) -> None:
        self.path = path
        self.filename = filename
        self.bounds = bounds
        self.limit = limit

    @cached_property
    def size(self) -> int:
        return self.path.stat().st_size

    @cached_property
    def head(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(HEAD)

    @property
    def extension(self) -> str:
        """Of the name, in lower case, without the dot."""
        return Path(self.filename).suffix[1:].lower()

    def holds(self, data: bytes) -> bool:
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(data) >= 0

    def tail(self, size: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(max(0, self.size - size))
            return file.read(size)

    def text(self, declared: str = "") -> str:
        """The content of a file that is text in some encoding; not much more of it than is wanted.

        `declared`: the encoding that the file names itself, if it does. UnreadableFile for more bytes than the bound
        of characters can have.
        """
        most = 4 * (self.limit or self.bounds.characters) + HEAD
        if self.size > most and not self.limit:
            raise too_long(self.bounds)
        with self.path.open("rb") as file:
            return decoded(file.read(min(most, self.size)), whole=self.size <= most, declared=declared)


class Kind(msgspec.Struct, frozen=True):
    """A type of document: the module that reads it, and what is said of one without text."""

    module: str
    empty: str = "No text was found in the document."


def too_long(bounds: Bounds) -> UnreadableFile:
    return UnreadableFile(f"The document has more than {bounds.characters:,} characters of text.")


def blocks_of(document: Document, kind: Kind) -> Iterator[Block]:
    """The document's parts, cleaned. UnsupportedFile or UnreadableFile, perhaps after some of them."""
    module = importlib.import_module(f"treadle.retrieval.extract.{kind.module}")
    read: Callable[[Document], Iterator[Block]] = module.read
    characters = 0
    for block in read(document):
        part = _cleaned(block)
        characters += _characters(part)
        if characters > document.bounds.characters and not document.limit:
            raise too_long(document.bounds)
        yield part
    if not characters:
        raise UnreadableFile(kind.empty)


def _cleaned(block: Block) -> Block:
    match block:
        case Heading(text=text) | Paragraph(text=text) | Code(text=text):
            return msgspec.structs.replace(block, text=cleaned(text))
        case Table(rows=rows, header=header, continues=continues):
            return Table([cleaned(row) for row in rows], cleaned(header), continues)
        case Section(path=path):
            return Section([" ".join(cleaned(title).split())[:200] for title in path])
        case Page():
            return block


def _characters(block: Block) -> int:
    match block:
        case Heading(text=text) | Paragraph(text=text) | Code(text=text):
            return len(text.strip())
        case Table(rows=rows, header=header, continues=continues):
            return sum(len(row.strip()) for row in rows) + (0 if continues else len(header.strip()))
        case _:
            return 0
