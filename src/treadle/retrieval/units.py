"""Cuts blocks into units: the sentences, rows and lines that chunks are put together from. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum

import msgspec

from treadle.retrieval.extract.blocks import Block, Code, Heading, Page, Paragraph, Section, Table

Counter = Callable[[str], int]
"""Tokens of a text."""

_SENTENCE = re.compile(
    r"""(?P<end>[.!?…]["'”’»)\]]*\s+(?=["'“‘«(\[]?[^\W_a-z])|[。！？][”’」』）]*\s*|\n[^\S\n]*(?=\S)|\n\s*\n\s*)"""
)
_WORD_END = re.compile(r"\s+(?=\S)|(?<=[,;:，、；：。.!?/\\|&=}\])>-])(?=\S)")
_ABBREVIATION = re.compile(
    r"\b(?:[A-Z]|[Mm]rs?|[Dd]r|[Pp]rof|[Ss]t|vs|etc|[Ff]ig|[Nn]o|[Ee]q|[Ss]ec|cf|e\.g|i\.e|al)\.\s+$"
)


class Cut(IntEnum):
    """How good a place before a unit is for ending a chunk."""

    INSIDE = 0
    """Within a word."""
    WORD = 1
    LINE = 2
    SENTENCE = 3
    """Also a row of a table, and a line of code after an empty one."""
    BLOCK = 4
    HEADING = 5


class Unit(msgspec.Struct):
    """A stretch of text that chunks do not split. Its token count holds together with the gap before it."""

    text: str
    gap: str
    cut: Cut
    tokens: int
    page: int | None
    section: str | None
    header: str = ""
    """Set for rows: what must stand above them in a chunk."""
    in_table: bool = False


class Units:
    """Turns blocks into units of at most `limit` tokens each."""

    def __init__(self, count: Counter, limit: int) -> None:
        self._count = count
        self._limit = limit
        self._page: int | None = None
        self._headings: list[tuple[int, str]] = []
        self._section: str | None = None

    def of(self, blocks: Iterable[Block]) -> Iterator[Unit]:
        for block in blocks:
            match block:
                case Page(number=number):
                    self._page = number
                case Section(path=path):
                    self._headings = list(enumerate(path, 1))
                    self._name_section()
                case Heading():
                    yield from self._heading(block)
                case Paragraph(text=text):
                    yield from self._split(_sentences(text.strip()), Cut.BLOCK)
                case Code(text=text):
                    yield from self._split(_code_lines(text), Cut.BLOCK)
                case Table():
                    yield from self._table(block)

    def _heading(self, heading: Heading) -> Iterator[Unit]:
        self._headings = [known for known in self._headings if known[0] < heading.level]
        title = heading.title()
        if title:
            self._headings.append((heading.level, title[:_TITLE]))
        self._name_section()
        yield from self._split([("", Cut.HEADING, heading.shown().strip())], Cut.HEADING)

    def _name_section(self) -> None:
        self._section = " > ".join(title for _, title in self._headings) or None

    def _table(self, table: Table) -> Iterator[Unit]:
        header = table.header if self._count(table.header) <= self._limit else ""
        lines = table.rows if table.continues or not table.header else [table.header, *table.rows]
        first = Cut.SENTENCE if table.continues else Cut.BLOCK
        for unit in self._split([("\n", Cut.SENTENCE, line) for line in lines], first):
            unit.in_table = True
            unit.header = header
            yield unit

    def _split(self, parts: Iterable[tuple[str, Cut, str]], first: Cut) -> Iterator[Unit]:
        """Units of the parts (gap before, how good a cut there is, text), of which none stays over the limit."""
        is_first = True
        for given, place, text in parts:
            if not text.strip():
                continue
            gap, cut = given, place
            if is_first:
                is_first = False
                gap, cut = ("\n" if first == Cut.SENTENCE else "\n\n"), first
            for inner_gap, inner_cut, piece in self._pieces(text):
                yield self._unit(inner_gap or gap, cut if inner_cut is None else inner_cut, piece)
                gap = ""

    def _unit(self, gap: str, cut: Cut, text: str) -> Unit:
        return Unit(text, gap, cut, self._count(gap + text), self._page, self._section)

    def _pieces(self, text: str) -> Iterator[tuple[str, Cut | None, str]]:
        """`text` in pieces of at most the limit: at ends of words where there are any, else anywhere. Linear."""
        # A token has at least one byte, a character at most four.
        if len(text) * (1 if text.isascii() else 4) <= self._limit or self._count(text) <= self._limit:
            yield "", None, text
            return
        start, gap, cut = 0, "", None
        while start < len(text):
            end = self._fitting(text, start)
            gap_after, next_cut = "", Cut.INSIDE
            if end < len(text):
                places = [*_WORD_END.finditer(text, start + (end - start) // 2, end + 1)]
                if places and places[-1].start() > start:
                    gap_after, next_cut, end = places[-1].group(), Cut.WORD, places[-1].start()
            yield gap, cut, text[start:end]
            start, gap, cut = end + len(gap_after), gap_after, next_cut

    def _fitting(self, text: str, start: int) -> int:
        """An end so that text[start:end] has at most the limit of tokens; at least one character."""
        size = min(len(text) - start, self._limit * _CHARACTERS)
        while size > 1:
            tokens = self._count(text[start : start + size])
            if tokens <= self._limit:
                break
            size = max(1, min(size - 1, size * self._limit * 9 // (tokens * 10)))
        return start + size


_CHARACTERS = 5
"""Per token, about, in prose."""
_TITLE = 200
"""Characters of a heading that are kept in the names of sections."""


def _sentences(text: str) -> Iterator[tuple[str, Cut, str]]:
    """(gap before, cut, sentence) for each; what stands between two sentences is the gap."""
    start, gap, cut = 0, "", Cut.BLOCK
    for match in _SENTENCE.finditer(text):
        end = match.end("end")
        found = text[start:end]
        body = found.rstrip()
        if "\n" not in match.group() and _ABBREVIATION.search(found[-12:]):
            continue
        yield gap, cut, body
        gap = found[len(body) :]
        ends = body.endswith(tuple(_ENDS))
        cut = Cut.BLOCK if gap.count("\n") > 1 else Cut.SENTENCE if ends else Cut.LINE
        start = end
    yield gap, cut, text[start:]


_ENDS = ".!?…。！？\"'”’»)]"


def _code_lines(text: str) -> Iterator[tuple[str, Cut, str]]:
    gap, cut = "", Cut.BLOCK
    for line in text.split("\n"):
        if not line.strip():
            gap += "\n"
            continue
        if gap.count("\n") > 1:
            cut = Cut.SENTENCE if line[0].isspace() else Cut.BLOCK
        yield gap, cut, line.rstrip()
        gap, cut = "\n", Cut.LINE
