"""Excel workbooks: each sheet is a page and a section, its rows a table; values, not formulas."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, cast

from treadle.retrieval.extract.archive import Archive
from treadle.retrieval.extract.blocks import Block, Heading, Page, row
from treadle.retrieval.extract.data import tabular
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.faults import require

if TYPE_CHECKING:
    from openpyxl import Workbook

_KIND = "workbook"


def read(document: Document) -> Iterator[Block]:
    require("openpyxl", "Excel workbooks")
    with Archive(document, _KIND) as archive:
        # Its parser would expand entities of a sheet's own.
        for name in archive.names():
            if name.endswith((".xml", ".rels")):
                next(archive.events(name), None)
    with _without("numpy"):
        from openpyxl import load_workbook

    # An open file, because of a name it would want to see an ending that it knows.
    with document.path.open("rb") as file:
        yield from _sheets(load_workbook(file, read_only=True, data_only=True, keep_links=False))


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Keeps openpyxl from importing what it only offers to callers: NumPy costs more memory than most workbooks."""
    absent = module not in sys.modules
    if absent:
        sys.modules[module] = cast("ModuleType", None)
    try:
        yield
    finally:
        if absent:
            del sys.modules[module]


def _sheets(book: Workbook) -> Iterator[Block]:
    try:
        for number, sheet in enumerate(book.worksheets, 1):
            yield Page(number)
            yield Heading(sheet.title, 1)
            # What a sheet says of its size can be a lie of a million columns.
            sheet.reset_dimensions()
            yield from tabular(_lines(sheet.iter_rows(values_only=True)))
    finally:
        book.close()


def _lines(rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    for values in rows:
        if any(value is not None for value in values):
            yield row(map(_shown, values))


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case datetime.datetime():
            return value.isoformat(" ", "seconds")
        case _:
            return str(value)
