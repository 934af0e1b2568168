"""Documents made to hurt: each ends in bounded time with text or a clear refusal, and the next one is read."""

from __future__ import annotations

import asyncio
import random
import struct
import time
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.unit.retrieval.documents_kit import (
    FONT,
    archive,
    assembled,
    cut,
    docx,
    encrypted_pdf,
    epub,
    mail,
    parts,
    pdf,
    pptx,
    words,
    xlsx,
)
from treadle.errors import UnreadableFile, UnsupportedFile
from treadle.ports import ChunkRules
from treadle.retrieval.documents import Bounds, DocumentReader

TYPES = "[Content_Types].xml"
SMALL = Bounds(seconds=20, memory_mb=256, unpacked_mb=64)
PATIENCE = 30


# One reader for all, since it must come through them all.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reader() -> AsyncIterator[DocumentReader]:
    async with DocumentReader(SMALL) as reader:
        yield reader


async def refusal(reader: DocumentReader, data: bytes, filename: str = "a") -> str:
    """What is said of the document; the reader must serve the next one."""
    start = time.monotonic()
    with pytest.raises(UnreadableFile) as refused:
        await cut(reader, data, filename)
    assert time.monotonic() - start < PATIENCE
    [chunk] = await cut(reader, b"Hello", "a.txt")
    assert chunk.text == "Hello"
    return refused.value.message


def word(body: bytes, **more: bytes) -> dict[str, bytes]:
    space = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    return {
        TYPES: b"<x/>",
        "word/document.xml": b"<w:document %s><w:body>%s</w:body></w:document>" % (space, body),
    } | more


async def outcome(reader: DocumentReader, data: bytes, filename: str, text: str = "") -> str:
    """What becomes of the document: read, refused, or worse, with the message."""
    try:
        chunks = await cut(reader, data, filename)
    except (UnreadableFile, UnsupportedFile) as fault:
        is_worse = "more time" in fault.message or "crashed" in fault.message or "more memory" in fault.message
        return fault.message if is_worse else "refused"
    if any("\0" in chunk.text for chunk in chunks) or not all(text in chunk.text for chunk in chunks):
        return "garbage"
    return "read"


# Archives


async def test_an_archive_that_unpacks_to_more_than_allowed_is_refused(reader: DocumentReader) -> None:
    parts = {
        f"word/{number}.xml": b"<x>" + random.Random(number).randbytes(50_000).hex().encode() * 20
        for number in range(40)
    }
    assert "unpacks to more than allowed (64 MB)" in await refusal(reader, archive(word(b"") | parts))


async def test_a_tightly_packed_part_is_taken_for_a_trap(reader: DocumentReader) -> None:
    for name, make in (("word/document.xml", word(b"")), ("xl/sharedStrings.xml", {TYPES: b"<x/>"})):
        bomb = archive(make | {name: b"<x>" + b" " * 40_000_000})
        assert len(bomb) < 60_000
        assert "taken for a trap" in await refusal(reader, bomb)


async def test_an_archive_that_lies_about_a_size_gives_no_more_than_it_said(reader: DocumentReader) -> None:
    size = 40_000_000
    bomb = archive(word(b"<w:p><w:r><w:t>" + b"x" * size))
    real = struct.pack("<I", size + len(word(b"<w:p><w:r><w:t>")["word/document.xml"]))
    assert bomb.count(real) == 2
    assert "cannot be unpacked" in await refusal(reader, bomb.replace(real, struct.pack("<I", 1000)))


async def test_parts_of_an_archive_that_are_missing_or_broken_are_named(reader: DocumentReader) -> None:
    missing = archive({TYPES: b"<x/>", "word/other.xml": b"<x/>"})
    assert "word/document.xml is missing" in await refusal(reader, missing)
    garbled = archive(word(b"") | {"word/document.xml": b"<a><b></a>"})
    assert "word/document.xml is not well-formed XML" in await refusal(reader, garbled)
    assert "damaged" in await refusal(reader, docx(lambda document: None)[:-30])
    assert "damaged" in await refusal(reader, b"PK\x03\x04" + bytes(100))
    no_package = archive({"mimetype": b"application/epub+zip", "META-INF/container.xml": b"<container/>"})
    assert "table of parts is missing" in await refusal(reader, no_package)


async def test_a_locked_archive_is_called_encrypted(reader: DocumentReader) -> None:
    locked = bytearray(archive(word(b"<w:p/>"), zipfile.ZIP_STORED))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = locked.find(mark)
        while start >= 0:
            locked[start + place] |= 1
            start = locked.find(mark, start + 4)
    assert "encrypted with a password" in await refusal(reader, bytes(locked))


# XML

LAUGHS = b'<!DOCTYPE x [<!ENTITY a "ha">' + b"".join(
    b'<!ENTITY %c "%s">' % (97 + number, b"&%c;" % (96 + number) * 10) for number in range(1, 12)
) + b"]><x>&l;</x>"  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [
        word(b"") | {"word/document.xml": LAUGHS},
        {TYPES: b"<x/>", "ppt/presentation.xml": LAUGHS},
        {TYPES: b"<x/>", "xl/workbook.xml": LAUGHS},
        {TYPES: b"<x/>", "xl/worksheets/sheet1.xml": LAUGHS, "xl/workbook.xml": b"<x/>"},
        {"mimetype": b"application/epub+zip", "META-INF/container.xml": LAUGHS},
    ],
    ids=["docx", "pptx", "xlsx", "sheet", "epub"],
)
async def test_entities_are_not_expanded(reader: DocumentReader, document: dict[str, bytes]) -> None:
    assert "declares entities" in await refusal(reader, archive(document))


async def test_outside_entities_are_not_fetched(reader: DocumentReader, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    text = f'<!DOCTYPE x [<!ENTITY s SYSTEM "file://{tmp_path}/secret">]><x><p><t>&s;</t></p></x>'.encode()
    assert "declares entities" in await refusal(reader, archive(word(b"") | {"word/document.xml": text}))
    [chunk] = await cut(reader, text.replace(b"<x>", b"<html>"), "a.html")
    assert "secret" not in chunk.text.replace("/secret", "")


async def test_deeply_nested_xml_is_refused(reader: DocumentReader) -> None:
    deep = archive(word(b"<w:tbl><w:tr><w:tc>" * 100_000))
    assert "nested too deeply" in await refusal(reader, deep)


async def test_a_workbook_with_a_lie_about_its_size_is_read(reader: DocumentReader) -> None:
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(_file(xlsx({"a": [["name", "b"], ["x", 2]]}))) as book:
        members = {name: book.read(name) for name in book.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    members[sheet] = members[sheet].replace(b'ref="A1:B2"', b'ref="A1:XFD1048576"')
    assert b"XFD" in members[sheet]
    [chunk] = await cut(reader, archive(members), "a.xlsx")
    assert chunk.text == "# a\n\nname | b\nx | 2"


def _file(data: bytes) -> Any:
    import io

    return io.BytesIO(data)


# HTML, mail and text


@pytest.mark.parametrize("tag", ["div", "ul><li", "blockquote><pre", "section", "object"])
async def test_html_nested_as_no_page_is_refused(reader: DocumentReader, tag: str) -> None:
    page = f"<!doctype html><p>Start</p>{f'<{tag}>' * 100_000}deep"
    assert "HTML is nested too deeply" in await refusal(reader, page.encode(), "a.html")


@pytest.mark.parametrize(
    "tag", ["table><tr><td", "b", "svg><g", "template", "p", "li", "span", "a href=x", "font", "dd"]
)
async def test_tags_that_are_never_closed_are_read_in_time(reader: DocumentReader, tag: str) -> None:
    start = time.monotonic()
    chunks = await cut(reader, f"<!doctype html><p>Start</p>{f'<{tag}>' * 100_000}deep".encode(), "a.html")
    assert chunks[0].text.startswith("Start")
    assert time.monotonic() - start < PATIENCE / 3


PATTERNS = [
    *("<!--", "<!-- -->", "<", "<a href='", "&", "<p", "\n---", "# ", "|", "| - |\n", "```\n", "~~~x\n", '"', 'a,"'),
    *("[", '{"a":', "e.g. ", "Dr. A. ", ". ", ".", " ", "\n", "\n \n", "\t", "(", "a|b\n-|-\n", "x: ", "From: a\n"),
    *("=\n", "a\n=\n", "'", '\\"', "-", "- ", "1. ", "。", "é", "\x0c", "a;b;c\n", "/", "\\", "@", "0", "a" * 99 + " "),
]


@pytest.mark.parametrize("filename", ["a.txt", "a.md", "a.html", "a.csv", "a.json", "a.eml", "a.py", "a.rst"])
async def test_no_pattern_makes_reading_slow(tmp_path: Path, filename: str) -> None:
    start = {"a.html": "<html>", "a.eml": "From: a\nTo: b\nSubject: c\nDate: d\n\n"}.get(filename, "")
    async with DocumentReader(Bounds(seconds=3, memory_mb=512), folder=tmp_path) as reader:
        for pattern in PATTERNS:
            text = start + pattern * (40_000 // len(pattern)) + " end"
            assert await outcome(reader, text.encode(), filename) in ("read", "refused"), pattern


async def test_an_e_mail_of_many_parts_within_parts_is_refused_or_read(reader: DocumentReader) -> None:
    head = b"From: a@b.c\nMIME-Version: 1.0\nSubject: x\n"
    deep = b"".join(b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (n, n) for n in range(20_000))
    assert "nested too deeply" in await refusal(reader, head + deep)


async def test_a_huge_header_of_an_e_mail_is_read_in_time(reader: DocumentReader) -> None:
    message = (
        b"From: a@b.c\nMIME-Version: 1.0\nTo: " + b"a@b.c, " * 20_000 + b"\nSubject: " + b"=?utf-8?q?x?= " * 20_000
    )
    chunks = await cut(reader, message + b"\n\nHello", "a.eml")
    assert chunks[-1].text.endswith("Hello")


# PDF

PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>"
CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
HELLO = b"<< /Length 44 >>\nstream\nBT /F1 10 Tf 10 50 Td (Hello there) Tj ET      \nendstream"


def tree(root: bytes, page: bytes = PAGE, content: bytes = HELLO, *more: bytes) -> bytes:
    return assembled([CATALOG, root, FONT, page, content, *more])


INNER = b"<< /Type /Pages /Count 2 /Kids [2 0 R] /Parent 2 0 R >>"
TREES = {
    "own kid": tree(b"<< /Type /Pages /Count 1 /Kids [2 0 R] >>"),
    "kids and self": tree(b"<< /Type /Pages /Count 3 /Kids [4 0 R 2 0 R 2 0 R] >>"),
    "loop": tree(b"<< /Type /Pages /Count 2 /Kids [6 0 R] >>", PAGE, HELLO, INNER),
    "huge count": tree(b"<< /Type /Pages /Count 2147483647 /Kids [4 0 R] >>"),
    "negative count": tree(b"<< /Type /Pages /Count -1 /Kids [4 0 R] >>"),
    "no pages": tree(b"<< /Type /Pages /Count 0 /Kids [] >>"),
    "kids are no list": tree(b"<< /Type /Pages /Kids 2 0 R >>"),
    "tree is a stream": tree(b"5 0 R"),
    "no tree": assembled([b"<< /Type /Catalog >>"]),
    "no root": assembled([CATALOG], b"/Root 9 0 R"),
    "tables in a circle": assembled([CATALOG], b"/Root 1 0 R /Prev 0"),
    "objects": b"%PDF-1.7\n" + b"1 0 obj\n" * 100_000 + b"\n%%EOF",
    "dictionaries": b"%PDF-1.7\n" + b"<<" * 200_000 + b"\n%%EOF",
    "lists": b"%PDF-1.7\n" + b"[" * 200_000 + b"\nstartxref\n9\n%%EOF",
    "nothing": b"%PDF-1.7\n%%EOF",
}


@pytest.mark.parametrize("document", TREES.values(), ids=TREES.keys())
async def test_odd_trees_of_pages_end_in_time(reader: DocumentReader, document: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        assert await outcome(reader, document, "a.pdf", "Hello there") in ("read", "refused")


async def test_a_form_that_holds_itself_and_a_circular_outline_end_in_time(reader: DocumentReader) -> None:
    page = PAGE.replace(b"/Font <<", b"/XObject << /X 6 0 R >> /Font <<")
    resources = b"/Resources << /XObject << /X 6 0 R >> >>"
    form = b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] %s /Length 5 >>\nstream\n/X Do\nendstream" % resources
    content = b"<< /Length 54 >>\nstream\n/X Do BT /F1 10 Tf 10 50 Td (Hello there) Tj ET /X Do    \nendstream"
    kids = b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>"
    assert [chunk.text for chunk in await cut(reader, tree(kids, page, content, form), "a")] == ["Hello there"]
    catalog = b"<< /Type /Catalog /Pages 2 0 R /Outlines 6 0 R >>"
    outline = [
        b"<< /First 7 0 R /Last 8 0 R >>",
        b"<< /Title (A) /Next 8 0 R /First 7 0 R /Dest [4 0 R /Fit] >>",
        b"<< /Title (B) /Next 7 0 R /First 6 0 R /Dest [4 0 R /Fit] >>",
    ]
    [chunk] = await cut(reader, assembled([catalog, kids, FONT, PAGE, HELLO, *outline]), "a")
    assert chunk.text == "Hello there"


async def test_a_pdf_of_ten_thousand_pages_is_read_in_time(reader: DocumentReader) -> None:
    chunks = await cut(reader, pdf(["Page text."] * 10_000), "a.pdf", ChunkRules(800, 0))
    assert sum(chunk.text.count("Page text.") for chunk in chunks) == 10_000


async def test_more_pages_than_allowed_are_refused_but_shown_in_part(tmp_path: Path) -> None:
    document = pdf(["Page text."] * 30)
    async with DocumentReader(Bounds(pages=20), folder=tmp_path) as reader:
        assert "30 pages, more than allowed (20)" in await refusal(reader, document)
        assert await reader.text(parts(document), "a.pdf", 10) == "Page text."


async def test_a_packed_page_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    packed = zlib.compress(b"BT /F1 9 Tf (Hello) Tj ET\n" + b"(x) Tj " * 60_000_000)
    content = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed)
    bomb = tree(b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>", PAGE, content)
    assert len(bomb) < 2_000_000
    async with DocumentReader(Bounds(seconds=10, memory_mb=150), folder=tmp_path) as reader:
        assert await refusal(reader, bomb)


async def test_an_encrypted_pdf_is_called_so(reader: DocumentReader) -> None:
    assert "PDF is encrypted with a password" in await refusal(reader, encrypted_pdf("Secret.", b"key"))


async def test_a_pdf_that_is_cut_off_is_called_damaged(reader: DocumentReader) -> None:
    whole = pdf([words(100)] * 50)
    assert "its end is missing" in await refusal(reader, whole[:-1000])
    linear = whole.replace(b"1 0 obj\n<<", b"1 0 obj\n<< /Linearized 1 /L %d" % (len(whole) + 5000), 1)
    assert "its end is missing" in await refusal(reader, linear)


# Anything


def _report(document: Any) -> None:
    document.add_heading("Title", 1)
    document.add_paragraph(words(300))
    document.add_table(3, 3)


ORIGINALS: list[tuple[str, Callable[[], bytes]]] = [
    ("a.pdf", lambda: pdf([words(100).replace(". ", ".\n")] * 3, [("W0", 0), ("x", 2)])),
    ("a.docx", lambda: docx(_report)),
    ("a.xlsx", lambda: xlsx({"a": [[number, "x"] for number in range(50)]})),
    ("a.pptx", lambda: pptx([("a", "b", "c")])),
    ("a.epub", lambda: epub(["<h1>x</h1><p>y"])),
    ("a.eml", lambda: mail("x" * 500, "<p>x</p>", [("a.bin", b"x" * 100)])),
    ("a.html", lambda: b"<html><table><tr><td>x<td>y</table><ul><li>z</ul>" * 20),
    ("a.md", lambda: b"# x\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nx\n```\n" * 20),
]


@pytest.mark.parametrize(("filename", "make"), ORIGINALS, ids=[name for name, _ in ORIGINALS])
async def test_damage_at_any_place_is_refused_or_read_around(
    reader: DocumentReader, filename: str, make: Callable[[], bytes]
) -> None:
    draw = random.Random(filename)
    whole = make()
    for turn in range(60):
        broken = bytearray(whole)
        if turn % 3 == 0:
            del broken[draw.randrange(len(broken)) :]
        elif turn % 3 == 1:
            start = draw.randrange(len(broken))
            del broken[start : start + draw.randrange(1, 200)]
        for _ in range(draw.choice([0, 1, 20, 200])):
            if broken:
                broken[draw.randrange(len(broken))] = draw.randrange(256)
        async with asyncio.timeout(PATIENCE):
            assert await outcome(reader, bytes(broken), filename) in ("read", "refused")
