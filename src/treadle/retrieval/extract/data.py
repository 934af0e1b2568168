"""Tables and data as text: CSV, TSV, JSON and JSON Lines."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator

from treadle.retrieval.extract.blocks import Block, Code, Table, row
from treadle.retrieval.extract.document import Document

ROWS = 200
"""Rows of one block."""
_LONG_LINE = 2_000
"""Characters. JSON with longer lines is broken into lines of its own."""
_WIDE_LINE = 200
"""Characters of a line that may end at any comma."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],]|[^"{}\[\],]+', re.S)


def read(document: Document) -> Iterator[Block]:
    text = document.text()
    return table_blocks(text) if document.extension in ("csv", "tsv", "tab") else json_blocks(text)


def table_blocks(text: str) -> Iterator[Block]:
    """Rows of fields, under the first one as their header."""
    csv.field_size_limit(2**31 - 1)
    delimiter = _delimiter(text[:20_000])
    # Fields may hold line breaks of any kind, so the reader must see them as they are.
    lines = csv.reader(io.StringIO(text.replace("\0", ""), newline=""), delimiter=delimiter, strict=False)
    return tabular(row(fields) for fields in lines)


def _delimiter(look: str) -> str:
    lines = [line for line in look.splitlines()[:-1] or [look] if line.strip()][:50]
    scores = {}
    for delimiter in "\t;|,":
        counts = [len(fields) for fields in csv.reader(lines, delimiter=delimiter, strict=False)]
        usual = max(set(counts), key=counts.count, default=1)
        scores[delimiter] = counts.count(usual) if usual > 1 else 0
    return max(scores, key=lambda delimiter: scores[delimiter])


def tabular(lines: Iterator[str], header: str | None = None) -> Iterator[Table]:
    """Blocks of rows; the header is the first row unless it is given ("" for none)."""
    rows: list[str] = []
    continues = False
    for line in lines:
        if not line:
            continue
        if header is None:
            header = line
            continue
        rows.append(line)
        if len(rows) >= ROWS:
            yield Table(rows, header, continues)
            rows, continues = [], True
    if rows or (header and not continues):
        yield Table(rows, header or "", continues)


def json_blocks(text: str) -> Iterator[Block]:
    """JSON as lines: its own if it has them, otherwise one for each value. No character but blanks is changed."""
    if max((len(line) for line in text.split("\n")), default=0) <= _LONG_LINE:
        return iter([Code(text)])
    if _is_lines(text):
        return tabular((line.strip() for line in text.split("\n")), header="")
    return iter([Code("".join(_broken(text)))])


def _is_lines(text: str) -> bool:
    """JSON Lines: the first line is a whole value, and there is another one."""
    first, _, rest = text.lstrip("\ufeff \r\n").partition("\n")
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return False
    return bool(rest.strip())


def _broken(text: str) -> Iterator[str]:
    """The text with line breaks after the commas between the outermost values, and within those that are long."""
    depth = width = 0
    for match in _TOKENS.finditer(text):
        part = match.group()
        if part.isspace():
            continue
        yield part
        width += len(part)
        if part in ("{", "["):
            depth += 1
        elif part in ("}", "]"):
            depth = max(0, depth - 1)
        elif part == "," and (depth <= 1 or width >= _WIDE_LINE):
            yield "\n" + " " * min(depth, 16)
            width = 0
