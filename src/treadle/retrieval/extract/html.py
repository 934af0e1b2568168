"""HTML: what a reader would see, without scripts, forms and navigation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from treadle.errors import UnreadableFile
from treadle.retrieval.extract.blocks import Block, Code, Heading, Paragraph, Table, row
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.faults import require

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_UNSEEN = frozenset(
    "script style noscript template svg iframe object embed canvas audio video select button textarea input nav head "
    "dialog map noframes".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details div dl dt fieldset figcaption figure footer form "
    "header hr li main menu ol p section summary ul tr td th thead tbody tfoot legend".split()
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BREAKS_TABLE = frozenset({"table", "pre", "form", "section", "article", *_HEADINGS})
"""A table that holds one of these in a cell is there for the layout."""
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)
_INVISIBLE = re.compile("[\u00ad\u200b\u2060]")
_NESTING = re.compile(
    r"<(/?)(?:address|article|aside|blockquote|button|center|details|dialog|dir|div|dl|fieldset|figcaption|figure|footer|"
    r"form|header|hgroup|listing|main|menu|nav|ol|object|pre|search|section|summary|ul)\b",
    re.I,
)
"""Elements that stay open until they are closed. Others, as paragraphs and list items, may close themselves."""
_MAX_DEPTH = 5_000
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{2,40})", re.I)


def read(document: Document) -> Iterator[Block]:
    declared = _CHARSET.search(document.head[:4096])
    return html_blocks(document.text(declared[1].decode() if declared else ""))


def html_blocks(text: str, *, titled: bool = True) -> Iterator[Block]:
    """The blocks of a page. `titled`: a page without a heading of the first level begins with its title."""
    require("selectolax", "HTML")
    from selectolax.lexbor import LexborHTMLParser

    _check_depth(text)
    parser = LexborHTMLParser(text.replace("\0", ""))
    title = parser.css_first("title") if titled and parser.css_first("h1") is None else None
    words = " ".join(title.text().split()) if title is not None else ""
    if words:
        yield Heading(words, 1)
    root = parser.root
    if root is not None:
        yield from _Walk().blocks(root)


def _check_depth(text: str) -> None:
    """UnreadableFile for what only attacks do: the parser's time grows with the square of the depth."""
    depth = 0
    for match in _NESTING.finditer(text):
        depth = max(0, depth - 1) if match[1] else depth + 1
        if depth > _MAX_DEPTH:
            raise UnreadableFile("The HTML is nested too deeply.")


class _Walk:
    """A walk over the tree that needs no stack, so that depth costs nothing."""

    def __init__(self) -> None:
        self._found: list[Block] = []
        self._inline: list[str] = []
        self._items: list[str] = []
        """Items of the list that is being read, each a line."""
        self._bullet = ""
        self._lists: list[int | None] = []
        self._pre = 0
        self._rows: list[str] | None = None
        self._header = ""
        self._cells: list[str] | None = None
        self._all_heads = True

    def blocks(self, root: LexborNode) -> Iterator[Block]:
        end = root.mem_id
        node: LexborNode | None = root
        while node is not None:
            child = node.first_child if self._enter(node) else None
            if child is not None:
                node = child
                continue
            while node is not None:
                self._leave(node.tag or "")
                if node.mem_id == end:
                    node = None
                    break
                if node.next is not None:
                    node = node.next
                    break
                node = node.parent
            if len(self._found) > 1:
                yield from self._found
                self._found = []
        self._flush()
        self._end_list()
        self._end_table()
        yield from self._found

    def _enter(self, node: LexborNode) -> bool:
        """Whether to look inside."""
        if node.is_text_node:
            self._inline.append(node.text_content or "")
            return False
        tag = node.tag or ""
        if tag in _UNSEEN or _is_hidden(node):
            return False
        if tag in _HEADINGS or tag in _BLOCKS or tag in ("pre", "table"):
            self._start(tag)
        elif tag == "br":
            self._inline.append("\n" if self._pre else "\u2028")
        elif tag == "img":
            self._inline.append(f" {node.attributes.get('alt') or ''} ")
        return True

    def _start(self, tag: str) -> None:
        if self._cells is not None and tag in _BREAKS_TABLE:
            self._dissolve()
        self._flush()
        if tag == "table":
            self._end_list()
            self._rows, self._header, self._cells = [], "", None
        elif tag == "pre":
            self._pre += 1
        elif tag in ("ul", "ol", "menu"):
            self._lists = [*self._lists[-20:], 0 if tag == "ol" else None]
        elif tag == "li":
            self._bullet = self._next_bullet()
        elif tag == "tr" and self._rows is not None:
            self._cells, self._all_heads = [], True
        elif tag == "td":
            self._all_heads = False

    def _next_bullet(self) -> str:
        if not self._lists:
            return "- "
        indent = "  " * (len(self._lists) - 1)
        number = self._lists[-1]
        if number is None:
            return f"{indent}- "
        self._lists[-1] = number + 1
        return f"{indent}{number + 1}. "

    def _leave(self, tag: str) -> None:
        if tag in _HEADINGS:
            text = self._taken().removesuffix("¶").strip()
            if text and self._cells is None:
                self._end_list()
                self._found.append(Heading(text, _HEADINGS[tag]))
        elif tag in ("td", "th") and self._cells is not None:
            self._flush()
            self._cells.append(" ".join(self._items).removeprefix("- "))
            self._items = []
        elif tag == "pre":
            self._flush()
            self._pre = max(0, self._pre - 1)
        elif tag == "tr":
            self._end_row()
        elif tag == "table":
            self._flush()
            self._end_table()
        elif tag in _BLOCKS:
            self._flush()
            if tag in ("ul", "ol", "menu") and self._lists:
                self._lists.pop()
                if not self._lists:
                    self._end_list()

    def _taken(self) -> str:
        """The text since the last block, on lines as the page has them."""
        raw, self._inline = _INVISIBLE.sub("", "".join(self._inline)), []
        return "\n".join(" ".join(line.split()) for line in raw.split("\u2028")).strip()

    def _flush(self) -> None:
        """Ends the block that is being read."""
        if not self._inline:
            return
        if self._pre and self._cells is None:
            code, self._inline = "".join(self._inline).strip("\n"), []
            if code.strip():
                self._end_list()
                self._found.append(Code(code))
            return
        text = self._taken()
        if not text:
            return
        if self._cells is not None or self._lists or self._bullet:
            self._items.append(self._bullet + text)
            self._bullet = "  " * len(self._lists) if self._cells is None else ""
            return
        self._end_list()
        self._found.append(Paragraph(text))

    def _end_list(self) -> None:
        if self._items and self._cells is None:
            self._found.append(Paragraph("\n".join(self._items)))
            self._items = []
        self._bullet = ""

    def _end_row(self) -> None:
        if self._cells is None or self._rows is None:
            self._flush()
            return
        line, self._cells = row(self._cells), None
        if not line:
            return
        if self._all_heads and not self._rows and not self._header:
            self._header = line
        else:
            self._rows.append(line)

    def _end_table(self) -> None:
        if self._cells is not None:
            self._end_row()
        if self._rows or self._header:
            self._found.append(Table(self._rows or [], self._header))
        self._rows, self._header = None, ""

    def _dissolve(self) -> None:
        """The table turns out to be a layout: what was read of it becomes paragraphs."""
        cells, self._cells = self._cells or [], None
        self._end_table()
        self._found += [Paragraph(cell) for cell in cells if cell]
        self._flush()
        self._end_list()


def _is_hidden(node: LexborNode) -> bool:
    attributes = node.attributes
    if not attributes:
        return False
    return "hidden" in attributes or bool(_HIDDEN.search(attributes.get("style") or ""))
