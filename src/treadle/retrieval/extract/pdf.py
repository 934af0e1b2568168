"""PDF: the text of each page in paragraphs, under the headings of the outline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from treadle.errors import UnreadableFile
from treadle.retrieval.extract import image
from treadle.retrieval.extract.blocks import Block, Heading, Page, Paragraph, Section
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.faults import damaged, encrypted, require

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

_END = 64 * 1024
_MAX_OUTLINE = 20_000
_MAX_DEPTH = 6
_PASSWORD, _SECURITY = 4, 5
"""PDFium's codes: a password is needed; protected in a way that it does not know."""

_LINEARIZED = re.compile(rb"/Linearized\b.{0,200}?/L\s+(\d{1,15})", re.S)
_ENDS = re.compile(r"[.!?:;…。！？：；]['\"”’»)\]]*$")
_ITEM = re.compile(r"\s*(?:[•◦▪●○■□*–—-]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s")
_WIDE = re.compile("[\u3000-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_NUMBERING = re.compile(r"^[\dIVXivx]+(?:\.\d+)*[.)]?\s+")
_SOFT = ("\x02", "\ufffe", "\u00ad")
"""What PDFium, or the author, puts for a hyphen that only divides a word at the end of a line."""

_NARROWEST = 30
"""Characters. No column of prose is narrower, so shorter lines are lines for a reason."""

Entry = tuple[int, str]
"""Of the outline: level and title."""


def read(document: Document) -> Iterator[Block]:
    require("pypdfium2", "PDF")
    from pypdfium2 import PdfDocument, PdfiumError

    _check_whole(document)
    try:
        pdf = PdfDocument(document.path)
    except PdfiumError as fault:
        # PDFium's code can be that of an earlier document.
        locked = getattr(fault, "err_code", None) in (_PASSWORD, _SECURITY) and document.holds(b"/Encrypt")
        raise encrypted("PDF") if locked else damaged("PDF", "it has no pages that can be found") from fault
    try:
        pages = len(pdf)
        if pages < 1:
            raise UnreadableFile("The PDF has no pages.")
        if pages > document.bounds.pages and not document.limit:
            raise UnreadableFile(f"The PDF has {pages:,} pages, more than allowed ({document.bounds.pages:,}).")
        outline = _outline(pdf)
        path: list[Entry] = []
        for number in range(pages):
            yield Page(number + 1)
            try:
                text = _page_text(pdf, number)
            except PdfiumError as fault:
                raise damaged("PDF", f"page {number + 1} cannot be read") from fault
            yield from _with_sections(paragraphs(text), outline.get(number, []), path)
    finally:
        pdf.close()


def _check_whole(document: Document) -> None:
    tail = document.tail(_END)
    linearized = _LINEARIZED.search(document.head[:2048])
    if (b"%%EOF" not in tail and b"startxref" not in tail) or (linearized and int(linearized[1]) > document.size):
        raise damaged("PDF", "its end is missing")


def _page_text(pdf: PdfDocument, number: int) -> str:
    page = pdf[number]
    try:
        content = page.get_textpage()
        try:
            text = str(content.get_text_bounded())
        finally:
            content.close()
        if not text.strip() and image.is_available():
            return image.recognised(page.render(scale=2).to_pil())
        return text
    finally:
        page.close()


def _outline(pdf: PdfDocument) -> dict[int, list[Entry]]:
    """The entries of the outline by the page they point to, from 0."""
    found: dict[int, list[Entry]] = {}
    for number, bookmark in enumerate(pdf.get_toc(max_depth=_MAX_DEPTH)):
        if number >= _MAX_OUTLINE:
            break
        place = bookmark.get_dest()
        page = place.get_index() if place else None
        title = " ".join((bookmark.get_title() or "").replace("\0", "").split())
        if page is not None and title:
            found.setdefault(page, []).append((bookmark.level + 1, title))
    return found


def _with_sections(blocks: list[Paragraph], entries: list[Entry], path: list[Entry]) -> Iterator[Block]:
    """The blocks of a page, with its titles as headings. Titles that are not found in its text stand before it."""
    places: dict[int, Entry] = {}
    start = 0
    for level, title in entries:
        wanted = _plain(title)
        found = next((at for at in range(start, len(blocks)) if _plain(blocks[at].text) == wanted), None)
        if found is None:
            path[:] = [*(entry for entry in path if entry[0] < level), (level, title)]
            yield Section([name for _, name in path])
        else:
            places[found] = (level, title)
            start = found + 1
    for at, block in enumerate(blocks):
        if at in places:
            level, title = places[at]
            path[:] = [*(entry for entry in path if entry[0] < level), (level, title)]
            yield Heading(block.text, level)
        else:
            yield block


def _plain(title: str) -> str:
    words = " ".join(title.split()).casefold()
    return _NUMBERING.sub("", words)


def paragraphs(text: str) -> list[Paragraph]:
    """Lines of a page as paragraphs. A line that fills the column goes on in the next one; a short one ends here."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    widths = sorted(_width(line) for line in lines if line.strip())
    column = max(widths[int(0.9 * (len(widths) - 1))], _NARROWEST) if widths else 0
    found: list[Paragraph] = []
    kept = ""
    ends = True
    for line in lines:
        bare = " ".join(line.strip().split(" "))
        if not bare:
            ends = True
            continue
        if kept and (ends or _ITEM.match(bare)):
            found.append(Paragraph(kept))
            kept = ""
        kept = _joined(kept, bare)
        width = _width(line.rstrip())
        ends = width < 0.75 * column or (width < 0.95 * column and bool(_ENDS.search(bare)))
    if kept:
        found.append(Paragraph(kept))
    return found


def _width(line: str) -> int:
    return len(line) + len(_WIDE.findall(line))


def _joined(start: str, line: str) -> str:
    if not start:
        return line
    if start.endswith(_SOFT):
        return start[:-1] + line
    if start.endswith("-") and line[0].islower():
        return start + line
    if _WIDE.match(start[-1]) and _WIDE.match(line[0]):
        return start + line
    return f"{start} {line}"
