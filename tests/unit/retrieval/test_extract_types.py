"""A document's type is told by its bytes; text in any encoding is text, and nothing else is."""

from __future__ import annotations

import gzip
import io
import random
import sqlite3
import tarfile
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.retrieval.documents_kit import archive, docx, epub, mail, pdf, png, pptx, xlsx
from treadle.errors import UnreadableFile, UnsupportedFile
from treadle.retrieval.extract import image
from treadle.retrieval.extract.blocks import rendered
from treadle.retrieval.extract.detect import DOCX, EPUB, HTML, MAIL, PDF, PPTX, TEXT, XLSX, detect
from treadle.retrieval.extract.document import Document, Kind, blocks_of
from treadle.retrieval.extract.encoding import decoded
from treadle.retrieval.extract.frames import Bounds

TYPES = "[Content_Types].xml"


def document(folder: Path, data: bytes, filename: str) -> Document:
    path = folder / "document"
    path.write_bytes(data)
    return Document(path, filename, Bounds())


def hello(office: Any) -> None:
    office.add_paragraph("Hello")


@pytest.mark.parametrize(
    "filename", ["a.txt", "a.md", "a.exe", "a", ".hidden", "a.tar.gz", "../a.json", "a.Ünknown", "x" * 300]
)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: pdf(["Hello"]), PDF),
        (lambda: b"\n\n" + pdf(["Hello"]), PDF),
        (lambda: b"junk\0" + pdf(["Hello"]), PDF),
        (lambda: docx(hello), DOCX),
        (lambda: xlsx({"a": [[1]]}), XLSX),
        (lambda: pptx([("a", "b", "")]), PPTX),
        (lambda: epub(["<p>x</p>"]), EPUB),
        (lambda: mail("x"), MAIL),
        (lambda: b"\xef\xbb\xbf<!-- x -->\n<!DOCTYPE HTML><p>x", HTML),
        (lambda: b'<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><p>x</p></html>', HTML),
        (lambda: "\ufeff<html><p>x".encode("utf-16-le"), HTML),
    ],
    ids="pdf blanks-pdf junk-pdf docx xlsx pptx epub mail html xhtml utf16-html".split(),
)
def test_the_name_of_a_document_does_not_matter(
    tmp_path: Path, make: Callable[[], bytes], kind: Kind, filename: str
) -> None:
    assert detect(document(tmp_path, make(), filename)) == kind


@pytest.mark.parametrize(
    "text",
    [
        "BM is a prefix, and so are others.",
        "GIF89a is a format.",
        "ID3 tags are in music.",
        "PK is short for primary key.",
        "MZ stands for Mark Zbikowski.",
        "About %PDF-1.7 and %%EOF.",
        "II* and MM are byte orders.",
        "RIFF and WAVE.",
        "{rtf} is not RTF, and %! is not PostScript",
        "From: here to there\nit is: far",
        "Subject: a poem\n\nRoses are red",
        "to: do\nfrom: scratch\nhost: x",
        "x",
        "#include <stdio.h>\n# Not a heading\nint main() {}\n",
        "a < b and <i>c</i> > d",
        "<svg xmlns='http://www.w3.org/2000/svg'><text>Hello</text></svg>",
        "\x1b[31mred\x1b[0m on a terminal",
    ],
)
@pytest.mark.parametrize("filename", ["a.txt", "a.pdf", "a.docx", "a.png", "a"])
def test_plain_text_is_always_accepted(tmp_path: Path, text: str, filename: str) -> None:
    found = document(tmp_path, text.encode(), filename)
    assert detect(found) == TEXT
    assert "".join("".join(rendered(blocks_of(found, TEXT))).split()) == "".join(text.replace("\x1b", "").split())


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"Hello"))
    return out.getvalue()


def _wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setparams((1, 1, 8000, 0, "NONE", "NONE"))
        sound.writeframes(bytes(range(32, 127)) * 100)
    return out.getvalue()


def _sqlite() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x)")
    return connection.serialize()


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1000)
ODT = archive({"mimetype": b"application/vnd.oasis.opendocument.text", "content.xml": b"<x/>"}, 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: archive({"a.txt": b"Hello"}), "ZIP archive"),
        (lambda: archive({}), "ZIP archive"),
        (lambda: archive({TYPES: b"<x/>", "xl/workbook.bin": b"x"}), "xlsb"),
        (lambda: ODT, "OpenDocument"),
        (lambda: OLE, r"\.doc, \.xls, \.ppt"),
        (lambda: b"\x7fELF\x02\x01\x01" + bytes(100), "ELF"),
        (lambda: b"MZ\x90\0\x03\0\0\0" + bytes(100), "program for Windows"),
        (lambda: b"\xca\xfe\xba\xbe\0\0\0\x41" + bytes(range(256)), "cannot be read"),
        (lambda: b"\xff\xfb\x90\x64" + random.Random(1).randbytes(4000), "MP3"),
        (lambda: _wav(), "cannot be read"),
        (lambda: b"\0\0\0\x18ftypmp42" + bytes(100), "MPEG-4|video"),
        (lambda: gzip.compress(b"Hello" * 100), "GZIP|gzip"),
        (lambda: _tar(), "cannot be read"),
        (lambda: _sqlite(), "SQLite"),
        (lambda: b"{\\rtf1\\ansi Hello}", "RTF"),
        (lambda: b"%!PS-Adobe-3.0\n(Hello) show", "PostScript"),
        (lambda: random.Random(2).randbytes(70_000), "cannot be read"),
        (lambda: random.Random(3).randbytes(200), "cannot be read"),
        (lambda: b"Hello" + bytes(100), "cannot be read"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("filename", ["a.txt", "a.csv", "a.html", "a.eml", "a"])
def test_what_nobody_reads_is_unsupported_whatever_its_name(
    tmp_path: Path, make: Callable[[], bytes], words: str, filename: str
) -> None:
    with pytest.raises(UnsupportedFile, match=words):
        detect(document(tmp_path, make(), filename))


@pytest.mark.parametrize(
    "start",
    [
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"GIF89a\x01\0",
        b"II*\0\x08",
        b"BM\x1e\0\0\0",
        b"RIFF\x10\0\0\0WEBPVP8 ",
    ],
)
def test_an_image_needs_text_recognition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(image, "is_available", lambda: False)
    found = document(tmp_path, start + bytes(40), "a.txt")
    with pytest.raises(UnsupportedFile, match=r"text recognition is not installed.*'treadle\[ocr\]'"):
        list(blocks_of(found, detect(found)))


def test_text_in_an_image_is_read_where_recognition_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("rapidocr")
    pil = pytest.importorskip("PIL.Image")
    draw = pytest.importorskip("PIL.ImageDraw")
    font = pytest.importorskip("PIL.ImageFont").load_default(48)
    picture = pil.new("RGB", (700, 120), "white")
    draw.Draw(picture).text((20, 20), "Treadle reads images", fill="black", font=font)
    out = io.BytesIO()
    picture.save(out, "png")
    found = document(tmp_path, out.getvalue(), "a")
    assert "treadle reads images" in "".join(rendered(blocks_of(found, detect(found)))).lower()
    empty = document(tmp_path, png(64, 64), "a")
    with pytest.raises(UnreadableFile, match="No text was found in the image"):
        list(blocks_of(empty, detect(empty)))


def test_an_encrypted_office_document_is_told_from_an_old_one(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="Office document is encrypted"):
        detect(document(tmp_path, OLE + "EncryptedPackage".encode("utf-16-le"), "a.docx"))


@pytest.mark.parametrize(
    "data", [b"", b" \n\t ", b"\xef\xbb\xbf", "\ufeff".encode("utf-16-le"), b"\0\0", b"<html></html>"]
)
def test_a_document_without_text_says_so(tmp_path: Path, data: bytes) -> None:
    found = document(tmp_path, data, "a.txt")
    with pytest.raises(UnreadableFile, match=r"No text was found|is empty"):
        list(blocks_of(found, detect(found)))


def test_a_pdf_without_text_is_called_perhaps_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "is_available", lambda: False)
    found = document(tmp_path, pdf(["", ""]), "a.pdf")
    with pytest.raises(UnreadableFile, match="perhaps scanned"):
        list(blocks_of(found, detect(found)))


PANGRAMS = [
    ("Café crème à Genève coûte 3 francs.", "latin-1"),
    ("One word: naïve", "latin-1"),
    ("Die Größe der Straße ist für Fußgänger nützlich. " * 50, "latin-1"),
    ("He said “hello” – it’s 5 € today…", "cp1252"),
    ("Příliš žluťoučký kůň úpěl ďábelské ódy. " * 5, "cp1250"),
    ("吾輩は猫である。名前はまだ無い。", "shift_jis"),
    ("これは短い", "shift_jis"),
    ("吾輩は猫である。", "euc_jp"),
    ("中文文本的编码检测测试，今天天气很好。", "gb18030"),
    ("繁體中文編碼偵測測試，今天天氣很好。", "big5"),
    ("한국어 텍스트 인코딩 감지 테스트입니다.", "euc-kr"),
    ("Съешь же ещё этих мягких французских булок.", "cp1251"),
    ("Съешь же ещё этих мягких французских булок.", "koi8-r"),
    ("Καλημέρα κόσμε, τι κάνεις σήμερα;", "cp1253"),
    ("日本語のテキスト", "iso2022_jp"),
    ("日本語 and more", "utf-16"),
    ("日本語 and more", "utf-32"),
    ("Hello wide world", "utf-16-le"),
    ("Hello wide world", "utf-16-be"),
    ("Ünïcödé 🤦🏽‍♂️", "utf-8"),
    ("with a mark", "utf-8-sig"),
    ("a" * 100_000 + " Größe und Straße", "latin-1"),
    ("a" * 65_535 + "ß after the sample", "utf-8"),
]


@pytest.mark.parametrize(("text", "encoding"), PANGRAMS, ids=[f"{encoding}-{len(text)}" for text, encoding in PANGRAMS])
def test_text_is_read_in_its_encoding(text: str, encoding: str) -> None:
    assert decoded(text.encode(encoding)) == text


def test_a_few_broken_characters_do_not_spoil_a_text() -> None:
    text = "Größe und Straße. " * 5_000
    broken = text.encode()[:80_000] + b"\xff" + text.encode()[80_000:]
    assert decoded(broken).count("\ufffd") <= 3
    assert decoded(broken).count("Straße") >= 4_998


def test_a_text_cut_in_the_middle_of_a_character_is_still_unicode() -> None:
    assert decoded("Größe 🤦".encode()[:-2], whole=False).startswith("Größe ")


def test_line_ends_are_all_the_same() -> None:
    assert decoded(b"a\r\nb\rc\n") == "a\nb\nc\n"
