"""What every reader of a format yields: the parts of a document, in reading order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec


class Heading(msgspec.Struct, frozen=True):
    """`level` from 1 (outermost). Text that stays empty after stripping ends the sections of that level."""

    text: str
    level: int
    marked: bool = False
    """`text` is the source's own line, with its marks; otherwise Markdown's are put before it."""

    def title(self) -> str:
        """The words, without marks and on one line."""
        return " ".join(_MARKS.sub("", self.text).split()) if self.marked else " ".join(self.text.split())

    def shown(self) -> str:
        title = self.title()
        return self.text if self.marked or not title else f"{'#' * min(self.level, 6)} {title}"


class Paragraph(msgspec.Struct, frozen=True):
    """Prose. Line breaks in it are meant."""

    text: str


class Table(msgspec.Struct, frozen=True):
    """Rows, each a line. A table too long for one block goes on in further ones, with the same header."""

    rows: list[str]
    header: str = ""
    """The line (or lines) that name the columns; repeated wherever the table is split."""
    continues: bool = False


class Code(msgspec.Struct, frozen=True):
    """Text in which all blanks count."""

    text: str


class Section(msgspec.Struct, frozen=True):
    """From here on the text belongs under these headings, which are not part of it (a PDF's outline)."""

    path: list[str]


class Page(msgspec.Struct, frozen=True):
    """A page, sheet or slide begins; numbered from 1."""

    number: int


Block = Heading | Paragraph | Table | Code | Section | Page

_MARKS = re.compile(r"^\s{0,3}#{1,6}(?=\s)|(?<=\s)#+\s*$|\n\s{0,3}(?:=+|-+)\s*$")
# NUL poisons databases; the others are never shown, and no text means them.
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ufeff\ufffe\uffff\ud800-\udfff]")


def cleaned(text: str) -> str:
    """Without NUL, other control characters and halves of surrogate pairs; with plain line ends."""
    return _UNSEEN.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", "\n")


def row(cells: Iterable[str]) -> str:
    """A line of a table, without the empty cells at its end; cells that hold line breaks are put on one line."""
    words = [" ".join(cell.split()) for cell in cells]
    while words and not words[-1]:
        words.pop()
    return " | ".join(words)


def rendered(blocks: Iterable[Block]) -> Iterator[str]:
    """The document as plain text, with Markdown's headings, piece by piece."""
    gap = ""
    for block in blocks:
        match block:
            case Heading():
                text = block.shown()
            case Paragraph(text=text) | Code(text=text):
                pass
            case Table(rows=rows, header=header, continues=continues):
                gap = "\n" if continues and gap else gap
                text = "\n".join([header, *rows] if header and not continues else rows)
            case _:
                continue
        text = text.strip("\n")
        if text.strip():
            yield gap + text
            gap = "\n\n"
