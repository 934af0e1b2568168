"""Real documents, written byte by byte where a library would refuse to write what hostile people write."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from email.message import EmailMessage
from typing import Any

from docx import Document as WordDocument
from openpyxl import Workbook
from pptx import Presentation
from pptx.util import Inches

from treadle.ports import Chunk, ChunkRules
from treadle.retrieval.documents import DocumentReader


async def parts(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def cut(reader: DocumentReader, data: bytes, filename: str, rules: ChunkRules | None = None) -> list[Chunk]:
    """All chunks of a document."""
    return [chunk async for batch in reader.chunks(parts(data), filename, rules or ChunkRules()) for chunk in batch]


def words(count: int, *, start: int = 0) -> str:
    """Different words, in sentences of ten."""
    return " ".join(f"W{number}{'.' if number % 10 == 9 else ''}" for number in range(start, start + count))


# PDF


def _lines(text: str) -> bytes:
    shown = b"".join(
        b"(" + line.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)") + b") Tj T*\n"
        for line in text.split("\n")
    )
    return b"BT /F1 10 Tf 12 TL 40 800 Td\n" + shown + b"ET"


def assembled(objects: Iterable[bytes], trailer: bytes = b"/Root 1 0 R") -> bytes:
    """A PDF file of these objects, numbered from 1."""
    data = bytearray(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"trailer\n<< /Size %d %s >>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, trailer, start)
    return bytes(data)


FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


def _stream(content: bytes) -> bytes:
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)


def pdf(
    pages: list[str],
    outline: list[tuple[str, int]] | None = None,
    *,
    encode: Callable[[int, bytes], bytes] | None = None,
    extra: list[bytes] | None = None,
    trailer: bytes = b"/Root 1 0 R",
) -> bytes:
    """A PDF of these pages, a line of text for each of theirs. `outline`: titles and the index of their page."""
    count = len(pages)
    first = 4
    outline = outline or []
    root = first + 2 * count
    kids = b" ".join(b"%d 0 R" % (first + 2 * number) for number in range(count))
    catalog = b"<< /Type /Catalog /Pages 2 0 R%s >>" % (b" /Outlines %d 0 R" % root if outline else b"")
    objects = [catalog, b"<< /Type /Pages /Count %d /Kids [%s] >>" % (count, kids), FONT]
    for number, text in enumerate(pages):
        content = _lines(text) if text else b""
        content = encode(first + 2 * number + 1, content) if encode else content
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 842] /Resources << /Font << /F1 3 0 R >> >> "
            b"/Contents %d 0 R >>" % (first + 2 * number + 1)
        )
        objects.append(_stream(content))
    if outline:
        objects.append(b"<< /Type /Outlines /First %d 0 R /Last %d 0 R >>" % (root + 1, root + len(outline)))
        for number, (title, page) in enumerate(outline):
            following = b" /Next %d 0 R" % (root + 2 + number) if number + 1 < len(outline) else b""
            objects.append(
                b"<< /Title (%s) /Parent %d 0 R /Dest [%d 0 R /Fit]%s >>"
                % (title.encode("cp1252"), root, first + 2 * page, following)
            )
    return assembled(objects + (extra or []), trailer)


_PAD = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def encrypted_pdf(text: str, password: bytes) -> bytes:
    """A PDF under a user's password, with the standard's oldest cipher (40 bits)."""
    padded = (password + _PAD)[:32]
    owner = _rc4(hashlib.md5(padded).digest()[:5], padded)
    mark = b"0123456789abcdef"
    rights = -44
    key = hashlib.md5(padded + owner + struct.pack("<i", rights) + mark).digest()[:5]

    def encode(number: int, content: bytes) -> bytes:
        salted = hashlib.md5(key + struct.pack("<I", number)[:3] + b"\0\0").digest()[:10]
        return _rc4(salted, content)

    user = _rc4(key, _PAD)
    encryption = b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P %d >>" % (
        owner.hex().encode(),
        user.hex().encode(),
        rights,
    )
    place = b"/Root 1 0 R /Encrypt 6 0 R /ID [<%s> <%s>]" % (mark.hex().encode(), mark.hex().encode())
    return pdf([text], encode=encode, extra=[encryption], trailer=place)


# Office, EPUB, mail


def docx(write: Callable[[Any], None]) -> bytes:
    document = WordDocument()
    write(document)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def xlsx(sheets: dict[str, list[list[object]]]) -> bytes:
    book = Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def pptx(slides: list[tuple[str, str, str]]) -> bytes:
    """Slides of a title, a body and notes."""
    show = Presentation()
    for title, body, notes in slides:
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
        table = slide.shapes.add_table(2, 2, Inches(1), Inches(4), Inches(4), Inches(1)).table
        for place, text in enumerate(("Colour", "Code", "green", "7")):
            table.cell(place // 2, place % 2).text = text
        if notes:
            slide.notes_slide.notes_text_frame.text = notes
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return out.getvalue()


def epub(chapters: list[str], **more: bytes) -> bytes:
    """A book of XHTML chapters. `more`: further members, as `META_INF__encryption` for META-INF/encryption.xml."""
    items = "".join(
        f'<item id="c{n}" href="text/c%20{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(len(chapters))
    )
    order = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    members = {
        "mimetype": b"application/epub+zip",
        "META-INF/container.xml": b'<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        b'<rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>',
        "OEBPS/content.opf": f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest>'
        f"<spine>{order}</spine></package>".encode(),
    }
    for number, chapter in enumerate(chapters):
        members[f"OEBPS/text/c {number}.xhtml"] = (
            f'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>t</title></head>'
            f"<body>{chapter}</body></html>"
        ).encode()
    return archive(
        members
        | {name.replace("__", "/").replace("META_INF", "META-INF") + ".xml": content for name, content in more.items()}
    )


def mail(body: str, html: str = "", attachments: Iterable[tuple[str, bytes]] = ()) -> bytes:
    message = EmailMessage()
    message["From"] = "Ada <ada@example.org>"
    message["To"] = "bob@example.org"
    message["Subject"] = "Règlement of the bill"
    message["Date"] = "Mon, 06 Jul 2026 10:00:00 +0000"
    message["Message-ID"] = "<1@example.org>"
    message.set_content(body)
    if html:
        message.add_alternative(html, subtype="html")
    for name, content in attachments:
        message.add_attachment(content, maintype="application", subtype="octet-stream", filename=name)
    return message.as_bytes()


def png(width: int = 8, height: int = 8) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + b"\xff" * width for _ in range(height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
