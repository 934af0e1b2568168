"""Each format becomes blocks: headings, paragraphs, tables and code, with the pages they stand on."""

from __future__ import annotations

import datetime
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.unit.retrieval.documents_kit import docx, encrypted_pdf, epub, mail, pdf, pptx, words, xlsx
from treadle.errors import UnreadableFile
from treadle.retrieval.extract.blocks import Block, Code, Heading, Page, Paragraph, Section, Table, rendered
from treadle.retrieval.extract.detect import detect
from treadle.retrieval.extract.document import Document, blocks_of
from treadle.retrieval.extract.frames import Bounds
from treadle.retrieval.extract.html import html_blocks


def read(folder: Path, data: bytes, filename: str, bounds: Bounds | None = None) -> list[Block]:
    path = folder / "document"
    path.write_bytes(data)
    document = Document(path, filename, bounds or Bounds())
    return list(blocks_of(document, detect(document)))


def text_of(folder: Path, data: bytes, filename: str) -> str:
    return "".join(rendered(read(folder, data, filename)))


# PDF

COLUMN = textwrap.wrap(words(60), 60)


def test_a_pdf_has_pages_and_paragraphs(tmp_path: Path) -> None:
    first = [*COLUMN, "Short end of it.", *COLUMN]
    assert read(tmp_path, pdf(["\n".join(first), "Next page"]), "a.pdf") == [
        Page(1),
        Paragraph(" ".join([*COLUMN, "Short end of it."]) if len(COLUMN[-1]) > 45 else " ".join(COLUMN)),
        *([] if len(COLUMN[-1]) > 45 else [Paragraph("Short end of it.")]),
        Paragraph(" ".join(COLUMN)),
        Page(2),
        Paragraph("Next page"),
    ]


def test_items_of_a_list_stay_on_lines_of_their_own_in_a_pdf(tmp_path: Path) -> None:
    lines = [f"{number}. {COLUMN[0]}" for number in range(1, 4)]
    assert read(tmp_path, pdf(["\n".join(lines)]), "a.pdf")[1:] == [Paragraph(line) for line in lines]


def test_words_divided_at_the_end_of_a_line_are_put_together(tmp_path: Path) -> None:
    page = f"{COLUMN[0][:50]} exam-\nple {COLUMN[1][:40]}"
    [_, paragraph] = read(tmp_path, pdf([page]), "a.pdf")
    assert isinstance(paragraph, Paragraph)
    assert "example" in paragraph.text


def test_the_outline_of_a_pdf_names_its_sections(tmp_path: Path) -> None:
    document = pdf(["1. Start\nHello", "Middle", "End\nBye"], [("Start", 0), ("Between", 1), ("End", 2)])
    assert read(tmp_path, document, "a.pdf") == [
        Page(1),
        Heading("1. Start", 1),
        Paragraph("Hello"),
        Page(2),
        Section(["Between"]),
        Paragraph("Middle"),
        Page(3),
        Heading("End", 1),
        Paragraph("Bye"),
    ]


def test_a_pdf_that_only_forbids_copying_is_read(tmp_path: Path) -> None:
    assert "open secret" in text_of(tmp_path, encrypted_pdf("An open secret.", b""), "a.pdf")


# Office

DAY = datetime.datetime(2026, 1, 2)  # noqa: DTZ001 -- Excel knows no zones


def report(document: Any) -> None:
    document.add_heading("Report", 0)
    document.add_paragraph("Before\tall  else.")
    document.add_heading("Results", 1)
    for item in ("one", "two"):
        document.add_paragraph(item, style="List Bullet")
    table = document.add_table(2, 2)
    for place, text in enumerate(("City", "People", "Bonn", "330")):
        table.cell(place // 2, place % 2).text = text
    frame = document.add_table(1, 1)
    frame.cell(0, 0).text = "In a frame"
    paragraph = document.add_paragraph("Soft")
    paragraph.add_run().add_break()
    paragraph.add_run("end")


def test_a_word_document_has_headings_lists_and_tables(tmp_path: Path) -> None:
    assert read(tmp_path, docx(report), "a.docx") == [
        Heading("Report", 1),
        Paragraph("Before all else."),
        Heading("Results", 1),
        Paragraph("- one\n- two"),
        Table(["Bonn | 330"], "City | People"),
        Paragraph("In a frame"),
        Paragraph("Soft\nend"),
    ]


def test_tracked_deletions_are_left_out_and_insertions_kept(tmp_path: Path) -> None:
    def write(document: Any) -> None:
        from docx.oxml import parse_xml

        space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        document.add_paragraph("Kept ")._p.append(parse_xml(f"<w:ins {space}><w:r><w:t>new</w:t></w:r></w:ins>"))
        document.add_paragraph("Still ")._p.append(
            parse_xml(f"<w:del {space}><w:r><w:t>wrong</w:t><w:delText>old</w:delText></w:r></w:del>")
        )
        document.element.body.insert(
            0,
            parse_xml(f"<w:sdt {space}><w:sdtContent><w:p><w:r><w:t>Control</w:t></w:r></w:p></w:sdtContent></w:sdt>"),
        )

    assert text_of(tmp_path, docx(write), "a.docx") == "Control\n\nKept new\n\nStill"


def test_a_presentation_has_a_page_for_each_slide_under_its_title(tmp_path: Path) -> None:
    table = Table(["green | 7"], "Colour | Code")
    assert read(tmp_path, pptx([("Plan", "First\nSecond", "Say hello"), ("End", "Bye", "")]), "a.pptx") == [
        Page(1),
        Heading("Plan", 1),
        Paragraph("First\nSecond"),
        table,
        Paragraph("Notes: Say hello"),
        Page(2),
        Heading("End", 1),
        Paragraph("Bye"),
        table,
    ]


def test_a_workbook_has_a_page_for_each_sheet(tmp_path: Path) -> None:
    sheets: dict[str, list[list[object]]] = {
        "Prices": [["Name", "Price", "Since"], ["Apple", 1.5, None], [], ["Pear", 2.0, DAY]],
        "Flags": [["on", True], [None, DAY.replace(hour=3, minute=4)]],
    }
    assert read(tmp_path, xlsx(sheets), "a.xlsx") == [
        Page(1),
        Heading("Prices", 1),
        Table(["Apple | 1.5", "Pear | 2 | 2026-01-02"], "Name | Price | Since"),
        Page(2),
        Heading("Flags", 1),
        Table([" | 2026-01-02 03:04:00"], "on | TRUE"),
    ]


def test_a_long_sheet_comes_in_parts_under_one_header(tmp_path: Path) -> None:
    [_, _, first, *rest] = read(tmp_path, xlsx({"Long": [["n"], *([number] for number in range(450))]}), "a.xlsx")
    assert isinstance(first, Table)
    assert not first.continues
    assert all(isinstance(block, Table) and block.continues and block.header == "n" for block in rest)
    assert sum(len(block.rows) for block in [first, *rest] if isinstance(block, Table)) == 450


# HTML, EPUB, e-mail

PAGE = """<!DOCTYPE html><html><head><title>My page</title><style>p {}</style><script>var x = "<p>";</script></head>
<body><nav>Menu</nav><h2>First <i>part</i>¶</h2><p>Hello <b>wor</b>ld,<br>next line.</p>
<div>Loose <span>text</span></div>Tail
<ul><li>one<ul><li>inner</li></ul></li><li><p>two</p></li></ul><ol><li>a<li>b</ol>
<table><tr><th>City<th>People<tr><td>Bonn<td>330</table>
<table><tr><td><table><tr><td>Layout</td><td>left</td></tr></table></td><td>
<h3>In a cell</h3><p>Text</p></td></tr></table><pre>if x:
    y  = 1</pre><p hidden>no</p><p style="display: none">no</p><img alt="A cat"> soft&shy;ly&nbsp;</body></html>"""


def test_a_page_becomes_what_a_reader_sees(tmp_path: Path) -> None:
    assert read(tmp_path, PAGE.encode(), "a.html") == [
        Heading("My page", 1),
        Heading("First part", 2),
        Paragraph("Hello world,\nnext line."),
        Paragraph("Loose text"),
        Paragraph("Tail"),
        Paragraph("- one\n  - inner\n- two"),
        Paragraph("1. a\n2. b"),
        Table(["Bonn | 330"], "City | People"),
        Table(["Layout | left"]),
        Heading("In a cell", 3),
        Paragraph("Text"),
        Code("if x:\n    y  = 1"),
        Paragraph("A cat softly"),
    ]


def test_a_title_is_not_repeated_above_a_heading() -> None:
    assert list(html_blocks("<title>T</title><h1>H</h1>")) == [Heading("H", 1)]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<table><tr><td>a</table>b", "a\n\nb"),
        ("<ul><li><table><tr><td>a<td>b</table></ul>c", "a | b\n\nc"),
        ("<table>stray<tr>x<td>a</td>y</tr></table>", "strayxy\n\na"),
        ("<li>alone", "- alone"),
        ("<table><tr><td><ul><li>a<li>b</ul></td><td>c</td></tr></table>", "a - b | c"),
        ("<pre>x</pre>y<pre>z", "x\n\ny\n\nz"),
        ("<h1></h1><p></p>x", "x"),
        ("<table><tr><td><pre>x\ny</pre></td></tr></table>", "x\ny"),
        ("a<table><caption>Cap</caption><thead><tr><td>h</tr></thead><tr><td>1</table>", "a\n\nCap\n\nh\n1"),
    ],
)
def test_odd_markup_loses_no_text(page: str, text: str) -> None:
    assert "".join(rendered(html_blocks(page))) == text


def test_the_encoding_that_a_page_declares_is_believed(tmp_path: Path) -> None:
    page = '<html><meta charset="koi8-r"><p>Съешь ещё</p></html>'
    assert text_of(tmp_path, page.encode("koi8-r"), "a.html") == "Съешь ещё"
    western = '<html><meta http-equiv="content-type" content="text/html; charset=iso-8859-1"><p>5 € für dich</p>'
    assert text_of(tmp_path, western.encode("cp1252"), "a.html") == "5 € für dich"
    lying = '<html><meta charset="iso-8859-1"><p>für dich</p>'
    assert text_of(tmp_path, lying.encode(), "a.html") == "für dich"


def test_a_book_is_read_in_the_order_of_its_chapters(tmp_path: Path) -> None:
    book = epub(["<h1>One</h1><p>First.</p>", "<h1>Two</h1><p>Second.</p>"])
    assert read(tmp_path, book, "a.epub") == [
        Heading("One", 1),
        Paragraph("First."),
        Heading("Two", 1),
        Paragraph("Second."),
    ]


def test_a_book_with_encrypted_chapters_is_told_from_one_with_encrypted_fonts(tmp_path: Path) -> None:
    def book(uri: str) -> bytes:
        entry = f'<CipherData><CipherReference URI="{uri}"/></CipherData>'
        table = f"<encryption><EncryptedData>{entry}</EncryptedData></encryption>"
        return epub(["<p>Text</p>"], META_INF__encryption=table.encode())

    assert text_of(tmp_path, book("OEBPS/fonts/a.otf"), "a.epub") == "Text"
    with pytest.raises(UnreadableFile, match="protected against copying"):
        read(tmp_path, book("OEBPS/text/c%200.xhtml"), "a.epub")


def test_an_e_mail_is_its_headers_its_body_and_the_names_of_what_is_attached(tmp_path: Path) -> None:
    message = mail("Hello,\n\nplease pay.\n", "<p>Hello</p>", [("bill.pdf", b"%PDF-"), ("über uns.txt", b"x")])
    assert read(tmp_path, message, "a.eml") == [
        Heading("Règlement of the bill", 1),
        Paragraph("From: Ada <ada@example.org>\nTo: bob@example.org\nDate: Mon, 06 Jul 2026 10:00:00 +0000"),
        Paragraph("Hello,"),
        Paragraph("please pay."),
        Paragraph("Attachments: bill.pdf, über uns.txt"),
    ]


def test_an_e_mail_without_plain_text_is_read_from_its_html(tmp_path: Path) -> None:
    assert "Hello you" in text_of(tmp_path, mail("", "<p>Hello <b>you</b></p>"), "noname")


def test_broken_headers_and_unknown_encodings_of_an_e_mail_do_no_harm(tmp_path: Path) -> None:
    message = (
        b"From: =?utf-9?q?A?= <@@@>\r\nTo: ,;<\r\nSubject: =?bad\r\nDate: yesterday\r\nMessage-ID: <1>\r\n"
        b'Content-Type: text/plain; charset="no-such"\r\n\r\nCaf\xe9 au lait\r\n'
    )
    assert "Café au lait" in text_of(tmp_path, message, "a.eml")


# Text


MARKDOWN = """---
title: x
---
# One #

para
line

Two
---
```py
# no heading

x
```

| a | b |
|---|:-:|
| 1 | 2 |

end"""
NUMBERS = ["1 | 2 | 3", "4 | 5 | 6", "7 | 8 | 9", "0 | 0 | 0"]


def marked(text: str, level: int) -> Heading:
    return Heading(text, level, marked=True)


@pytest.mark.parametrize(
    ("filename", "text", "blocks"),
    [
        (
            "a.md",
            MARKDOWN,
            [
                Code("---\ntitle: x\n---"),
                marked("# One #", 1),
                Paragraph("para\nline"),
                marked("Two\n---", 2),
                Code("```py\n# no heading\n\nx\n```"),
                Table(["| 1 | 2 |"], "| a | b |\n|---|:-:|"),
                Paragraph("end"),
            ],
        ),
        ("a.md", "```\nnever closed\n# no", [Code("```\nnever closed\n# no")]),
        ("a.md", "#!bang\n#hashtag\n\n- item\n---\n", [Paragraph("#!bang\n#hashtag"), Paragraph("- item\n---")]),
        ("a.py", "# comment\n\nx = 1\n", [Code("# comment\n\nx = 1\n")]),
        (
            "noext",
            "# One\n\ntext\n\n## Two\n\nmore\n",
            [marked("# One", 1), Paragraph("text"), marked("## Two", 2), Paragraph("more")],
        ),
        ("a.txt", "one\ntwo\n\nthree", [Paragraph("one\ntwo"), Paragraph("three")]),
        (
            "a.rst",
            "Title\n=====\n\ntext\n\nSub\n---\nmore",
            [marked("Title\n=====", 1), Paragraph("text"), marked("Sub\n---", 2), Paragraph("more")],
        ),
        ("a.txt", "page one\x0cpage two", [Page(1), Paragraph("page one"), Page(2), Paragraph("page two")]),
        ("a.csv", 'name;x\n"a;\nb";1\n\nc;2;3\n', [Table(["a; b | 1", "c | 2 | 3"], "name | x")]),
        ("a.tsv", "a\tb, c\n1\t2, 3\n", [Table(["1 | 2, 3"], "a | b, c")]),
        ("a.csv", "a;b\n1,5;2,5\n", [Table(["1,5 | 2,5"], "a | b")]),
        ("a.csv", "only a header\n", [Table([], "only a header")]),
        ("data", "a,b,c\n1,2,3\n4,5,6\n7,8,9\n0,0,0\n", [Table(NUMBERS, "a | b | c")]),
        ("a.json", '{\n "a": 1\n}', [Code('{\n "a": 1\n}')]),
        ("noext", '{"a": [1, 2]}', [Code('{"a": [1, 2]}')]),
        ("run", "#!/bin/sh\necho\n", [Code("#!/bin/sh\necho\n")]),
        ("noext", "int main() {\n  a();\n  b();\n  c();\n}\n", [Code("int main() {\n  a();\n  b();\n  c();\n}\n")]),
    ],
)
def test_text_has_the_form_that_its_name_or_its_content_tells(
    tmp_path: Path, filename: str, text: str, blocks: list[Block]
) -> None:
    assert read(tmp_path, text.encode(), filename) == blocks
    assert read(tmp_path, text.replace("\n", "\r\n").encode(), filename) == blocks


def test_json_on_one_line_is_broken_between_its_values_and_keeps_every_character(tmp_path: Path) -> None:
    text = '{"a, {": ["' + "x" * 3_000 + '", 1.50e3, {"b":"\\"]"}], "c": [1,  2], "d": {}}'
    [block] = read(tmp_path, text.encode(), "a.json")
    assert isinstance(block, Code)
    assert "".join(block.text.split()) == "".join(text.split())
    lines = block.text.split("\n")
    assert [line.strip()[:7] for line in lines] == ['{"a, {"', "1.50e3,", '"c": [1', '"d": {}']
    rows = "[" + ",".join(f'{{"id":{number},"name":"n{number}"}}' for number in range(300)) + "]"
    [block] = read(tmp_path, rows.encode(), "a.json")
    assert isinstance(block, Code)
    assert block.text.split("\n")[7] == ' {"id":7,"name":"n7"},'


def test_json_lines_are_rows(tmp_path: Path) -> None:
    lines = ['{"a": "' + "x" * 3_000 + '"}', '{"a": 2}', "not json"]
    assert read(tmp_path, "\n".join(lines).encode(), "a.jsonl") == [Table(lines)]


def test_a_field_of_a_table_may_be_long(tmp_path: Path) -> None:
    [table] = read(tmp_path, b"a,b\n" + b"x" * 300_000 + b",2\n", "a.csv")
    assert isinstance(table, Table)
    assert len(table.rows[0]) == 300_004


def test_nul_and_other_control_characters_are_dropped(tmp_path: Path) -> None:
    assert text_of(tmp_path, b"One\0 \x01two\x7f \xef\xbb\xbfthree\xef\xbf\xbe.", "a.txt") == "One two three."
    assert "\0" not in text_of(tmp_path, b"<html><p>a\0b&#0;</p>", "a.html")
    assert text_of(tmp_path, b"a\0a,b\n1\0,2\n", "a.csv") == "aa | b\n1 | 2"


def test_all_of_a_text_is_rendered() -> None:
    blocks = [
        Heading("A", 2),
        Page(2),
        Paragraph("b"),
        Table(["1"], "h"),
        Table(["2"], "h", continues=True),
        Section(["s"]),
        Code(" c\n"),
    ]
    assert "".join(rendered(blocks)) == "## A\n\nb\n\nh\n1\n2\n\n c"
