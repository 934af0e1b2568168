"""PowerPoint presentations: each slide is a page under its title, with its tables and notes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from treadle.errors import UnreadableFile
from treadle.retrieval.extract.archive import Archive
from treadle.retrieval.extract.blocks import Block, Heading, Page, Paragraph, Table, row
from treadle.retrieval.extract.document import Document

_KIND = "presentation"
_TITLES = frozenset({"title", "ctrTitle"})
_SMALL_PRINT = frozenset({"sldNum", "dt", "ftr", "hdr", "sldImg"})
"""Placeholders for the number of the slide, the date and the like."""


def read(document: Document) -> Iterator[Block]:
    with Archive(document, _KIND) as archive:
        main = next((name for kind, name in archive.related("").values() if kind == "officeDocument"), "")
        main = main if main in archive else "ppt/presentation.xml"
        related = archive.related(main)
        ids = [
            attributes.get("r:id", "")
            for kind, tag, attributes in archive.events(main)
            if kind == "start" and tag == "sldId"
        ]
        names = [name for _, name in (related[one] for one in ids if one in related) if name in archive]
        if len(names) > document.bounds.pages and not document.limit:
            raise UnreadableFile(f"The presentation has more slides than allowed ({document.bounds.pages:,}).")
        for number, name in enumerate(names, 1):
            yield Page(number)
            yield from _slide(archive, name)


def _slide(archive: Archive, name: str) -> Iterator[Block]:
    title, blocks = _shapes(archive, name)
    if title:
        yield Heading(title, 1)
    yield from blocks
    for kind, notes in archive.related(name).values():
        if kind == "notesSlide" and notes in archive:
            _, texts = _shapes(archive, notes)
            words = "\n".join(block.text for block in texts if isinstance(block, Paragraph))
            if words and not re.fullmatch(r"\d+", words):
                yield Paragraph(f"Notes: {words}")


def _shapes(archive: Archive, name: str) -> tuple[str, list[Block]]:
    """The title, and what else the slide holds."""
    title = ""
    blocks: list[Block] = []
    place = ""
    lines: list[str] = []
    line: list[str] = []
    cells: list[str] = []
    rows: list[str] = []
    in_text = False
    for kind, tag, attributes in archive.events(name):
        if kind == "text":
            if in_text:
                line.append(tag)
        elif tag == "t":
            in_text = kind == "start"
        elif kind == "start":
            if tag in ("sp", "tbl", "tc"):
                place, lines = "", []
                rows = [] if tag == "tbl" else rows
            elif tag == "ph":
                place = attributes.get("type", "body")
            elif tag == "tr":
                cells = []
            elif tag == "br":
                line.append("\n")
        elif tag == "p":
            words = "\n".join(" ".join(part.split()) for part in "".join(line).split("\n")).strip()
            line = []
            if words:
                lines.append(words)
        elif tag == "tc":
            cells.append(" ".join(lines))
            lines = []
        elif tag == "tr":
            rows.append(row(cells))
        elif tag == "tbl":
            rows = [words for words in rows if words]
            if rows:
                blocks.append(Table(rows[1:], rows[0]))
        elif tag == "sp" and lines and place not in _SMALL_PRINT:
            if place in _TITLES and not title:
                title = " ".join(lines)
            else:
                blocks.append(Paragraph("\n".join(lines)))
            lines = []
    return title, blocks
