"""Word documents: headings by style, lists, tables, footnotes; tracked deletions are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from treadle.retrieval.extract.archive import Archive
from treadle.retrieval.extract.blocks import Block, Heading, Paragraph, Table, row
from treadle.retrieval.extract.document import Document

_KIND = "Word document"
_HEADING = re.compile(r"heading (\d)", re.I)
_LEFT_OUT = frozenset({"del", "moveFrom", "Fallback", "instrText", "delText", "numPicBullet"})
"""Elements whose text is not shown, or is there a second time."""
_ITEM = -1
_CHAIN = 20
"""Styles on which a style may be based, one upon the other."""


def read(document: Document) -> Iterator[Block]:
    with Archive(document, _KIND) as archive:
        main = _main(archive)
        parts = dict(archive.related(main).values())
        styles = _styles(archive, parts["styles"]) if parts.get("styles", "") in archive else {}
        yield from _Body(styles).blocks(archive, main)
        for notes in ("footnotes", "endnotes"):
            if parts.get(notes, "") in archive:
                yield from _Body({}).blocks(archive, parts[notes])


def _main(archive: Archive) -> str:
    for kind, name in archive.related("").values():
        if kind == "officeDocument" and name in archive:
            return name
    return "word/document.xml"


def _styles(archive: Archive, name: str) -> dict[str, int]:
    """The level of each style that is one of headings; _ITEM for those of lists."""
    own: dict[str, int] = {}
    bases: dict[str, str] = {}
    style = ""
    for kind, tag, attributes in archive.events(name):
        if kind != "start":
            continue
        value = attributes.get("val", "")
        if tag == "style":
            style = attributes.get("styleId", "")
        elif tag == "name" and value.lower() == "title":
            own[style] = 1
        elif tag == "name" and _HEADING.fullmatch(value):
            own[style] = max(1, int(value[-1]))
        elif tag == "numPr" or (tag == "name" and value.lower().startswith("list ")):
            own.setdefault(style, _ITEM)
        elif tag == "basedOn":
            bases[style] = value
        elif tag == "outlineLvl" and value.isdigit() and int(value) < 9:
            own.setdefault(style, int(value) + 1)
    return {style: level for style in {*own, *bases} if (level := _inherited(style, own, bases))}


def _inherited(style: str, own: dict[str, int], bases: dict[str, str]) -> int:
    for _ in range(_CHAIN):
        if style in own:
            return own[style]
        style = bases.get(style, "")
    return 0


class _Text:
    """A paragraph that is being read."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.level = 0
        self.is_item = False

    def text(self) -> str:
        return "\n".join(" ".join(line.split()) for line in "".join(self.parts).split("\n")).strip()


class _Body:
    """Turns the XML of a text into blocks. Paragraphs within paragraphs (text boxes) come before the outer one."""

    def __init__(self, styles: dict[str, int]) -> None:
        self._styles = styles
        self._open: list[_Text] = []
        self._tables: list[list[str]] = []
        """Rows of the outermost table; only that one is kept as a table."""
        self._depth = 0
        self._cells: list[str] = []
        self._cell: list[str] = []
        self._items: list[str] = []
        self._left_out = 0

    def blocks(self, archive: Archive, name: str) -> Iterator[Block]:
        in_text = False
        for kind, tag, attributes in archive.events(name):
            if self._left_out or tag in _LEFT_OUT:
                if kind != "text":
                    self._left_out += 1 if kind == "start" else -1
                continue
            if kind == "text":
                if in_text and self._open:
                    self._open[-1].parts.append(tag)
            elif tag == "t":
                in_text = kind == "start"
            elif kind == "start":
                self._start(tag, attributes)
            else:
                yield from self._end(tag)
        yield from self._list()

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "p":
            self._open.append(_Text())
        elif tag == "tbl":
            self._depth += 1
            if self._depth == 1:
                self._tables = []
        elif tag == "tr" and self._depth == 1:
            self._cells = []
        elif tag == "tc" and self._depth == 1:
            self._cell = []
        elif self._open:
            self._property(self._open[-1], tag, attributes.get("val", ""))

    def _property(self, text: _Text, tag: str, value: str) -> None:
        if tag == "pStyle":
            style = self._styles.get(value, 0)
            text.is_item = text.is_item or style == _ITEM
            text.level = text.level or max(style, 0)
        elif tag == "outlineLvl" and value.isdigit() and int(value) < 9:
            text.level = int(value) + 1
        elif tag == "numPr":
            text.is_item = True
        elif tag == "tab" and not value:
            text.parts.append("\t")
        elif tag in ("br", "cr"):
            text.parts.append("\n")
        elif tag == "noBreakHyphen":
            text.parts.append("-")

    def _end(self, tag: str) -> Iterator[Block]:
        if tag == "p" and self._open:
            done = self._open.pop()
            text = done.text()
            if text and self._depth:
                self._cell.append(text)
            elif text:
                yield from self._paragraph(done, text)
        elif tag == "tc" and self._depth == 1:
            self._cells.append(" ".join(self._cell))
        elif tag == "tr" and self._depth == 1:
            self._tables.append(self._cells)
        elif tag == "tbl":
            self._depth -= 1
            if not self._depth:
                yield from self._list()
                yield from _table(self._tables)

    def _paragraph(self, done: _Text, text: str) -> Iterator[Block]:
        if done.level:
            yield from self._list()
            yield Heading(text, done.level)
        elif done.is_item:
            self._items.append(f"- {text}")
        else:
            yield from self._list()
            yield Paragraph(text)

    def _list(self) -> Iterator[Block]:
        if self._items:
            yield Paragraph("\n".join(self._items))
            self._items = []


def _table(rows: list[list[str]]) -> Iterator[Block]:
    """A table of one column, or of one row, is a frame around text."""
    if any(len(cells) > 1 for cells in rows) and len(rows) > 1:
        lines = [line for line in map(row, rows) if line]
        if lines:
            yield Table(lines[1:], lines[0])
        return
    for cells in rows:
        for cell in cells:
            if cell:
                yield Paragraph(cell)
