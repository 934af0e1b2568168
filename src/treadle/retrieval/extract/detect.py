"""Tells what a document is by its bytes. Names only refine what is text anyway."""

from __future__ import annotations

import importlib.util
import re
import zipfile

from treadle.errors import UnreadableFile, UnsupportedFile
from treadle.retrieval.extract.document import Document, Kind
from treadle.retrieval.extract.encoding import encoding_of
from treadle.retrieval.extract.faults import damaged, encrypted

TEXT = Kind("text")
DATA = Kind("data")
HTML = Kind("html")
MAIL = Kind("mail")
PDF = Kind("pdf", "No text was found in the PDF. It is perhaps scanned: pages that are images need text recognition.")
DOCX = Kind("docx")
PPTX = Kind("pptx")
XLSX = Kind("xlsx")
EPUB = Kind("epub")
IMAGE = Kind("image", "No text was found in the image.")

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"BM")
_DATA_NAMES = frozenset({"csv", "tsv", "tab", "json", "jsonl", "ndjson", "geojson"})
_MAIL_NAMES = frozenset({"eml", "mht", "mhtml"})
_HTML_NAMES = frozenset({"html", "htm", "xhtml", "xht"})

_HTML_START = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*|<!--(?:(?!-->).){0,4000}-->\s*)*+<(?:!doctype\s+html|html|head|body)\b", re.I | re.S
)
_HTML_TAG = re.compile(rb"<(?:p|div|h[1-6]|table|ul|ol|br|span|a|title|article|section)\b[^>]*>", re.I)
_HEADER = re.compile(rb"([A-Za-z][A-Za-z0-9-]{0,60}):[ \t\r\n]")
_MAIL_HEADERS = frozenset(
    b"from to cc subject date received return-path message-id mime-version delivered-to reply-to sender".split()
)


def detect(document: Document) -> Kind:
    """UnsupportedFile for what no reader here can read; UnreadableFile for an archive that is broken or locked."""
    if not document.size:
        raise UnreadableFile("The document is empty.")
    head = document.head
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if start.startswith(b"%PDF-"):
        return PDF
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive(document)
    if head.startswith(_OLE):
        raise _ole(document)
    if start.startswith((b"{\\rtf", b"%!PS")):
        raise _unsupported("RTF" if start.startswith(b"{") else "PostScript")
    whole = document.size <= len(head)
    if encoding_of(head, whole=whole) is None:
        if b"%PDF-" in head[:1024]:
            return PDF
        if _is_image(head):
            return IMAGE
        raise _unsupported(_name(head))
    return _text(head, document.extension)


def _text(head: bytes, extension: str) -> Kind:
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff") or head[1:2] == b"\0" or head[:1] == b"\0"
    plain = head.replace(b"\0", b"") if wide else head
    plain = plain.lstrip(b"\xef\xbb\xbf\xff\xfe")
    if _HTML_START.match(plain) or (extension in _HTML_NAMES and _HTML_TAG.search(plain)):
        return HTML
    if _is_mail(plain, likely=extension in _MAIL_NAMES):
        return MAIL
    return DATA if extension in _DATA_NAMES else TEXT


def _is_mail(head: bytes, *, likely: bool) -> bool:
    """It begins with headers of an e-mail: two well-known ones, among nothing but headers."""
    known: set[bytes] = set()
    for number, line in enumerate(head.split(b"\n")[:200]):
        line = line.rstrip(b"\r")
        if not line or number == 199:
            break
        if line[:1] in b" \t" and number:
            continue
        header = _HEADER.match(line + b"\n")
        if header is None:
            return False
        if header[1].lower() in _MAIL_HEADERS:
            known.add(header[1].lower())
    strong = known & {b"mime-version", b"received", b"message-id", b"return-path", b"delivered-to"}
    return len(known) >= 2 and (likely or bool(strong) or {b"from", b"to", b"subject", b"date"} <= known)


def _archive(document: Document) -> Kind:
    try:
        with zipfile.ZipFile(document.path) as archive:
            names = {info.filename for info in archive.infolist()[:100_000]}
            mimetype = archive.read("mimetype")[:100] if _is_small(archive, "mimetype") else b""
    except RuntimeError as fault:
        raise encrypted("archive") from fault
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as fault:
        raise damaged("archive (a ZIP file, as Office documents and EPUB books are)") from fault
    if mimetype.strip() == b"application/epub+zip" or "META-INF/container.xml" in names:
        return EPUB
    if "[Content_Types].xml" in names:
        for member, kind in (("word/", DOCX), ("ppt/", PPTX)):
            if any(name.startswith(member) and name.endswith(".xml") for name in names):
                return kind
        if any(name.startswith("xl/") for name in names):
            if "xl/workbook.bin" in names:
                raise _unsupported("Excel's binary format (.xlsb). Save it as .xlsx")
            return XLSX
    if mimetype.startswith(b"application/vnd.oasis.opendocument"):
        raise _unsupported("OpenDocument. Save it as .docx, .xlsx or .pptx")
    raise _unsupported("a ZIP archive. Upload the files in it one by one")


def _is_small(archive: zipfile.ZipFile, name: str) -> bool:
    try:
        return archive.getinfo(name).file_size <= 100
    except KeyError:
        return False


def _ole(document: Document) -> UnreadableFile | UnsupportedFile:
    if document.holds("EncryptedPackage".encode("utf-16-le")):
        return encrypted("Office document")
    return _unsupported(
        "an Office format before 2007 (.doc, .xls, .ppt) or a message (.msg). Save it as .docx, .xlsx, …"
    )


def _is_image(head: bytes) -> bool:
    return head.startswith(_IMAGES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def _name(head: bytes) -> str:
    """What puremagic takes the bytes for; it knows hundreds of types, but only by a few bytes each."""
    if head.startswith(b"MZ"):
        return "a program for Windows"
    if importlib.util.find_spec("puremagic") is None:
        return ""
    import puremagic

    try:
        best = puremagic.magic_string(head)[0]
    except (puremagic.PureError, ValueError, IndexError):
        return ""
    return f"perhaps {best.name or best.mime_type}" if best.name or best.mime_type else ""


def _unsupported(name: str) -> UnsupportedFile:
    return UnsupportedFile(f"Files of this type cannot be read{f': it is {name}' if name else ''}.")
