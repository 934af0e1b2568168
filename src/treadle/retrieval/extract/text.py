"""Plain text, Markdown and source code."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator

from treadle.retrieval.extract import data
from treadle.retrieval.extract.blocks import Block, Code, Heading, Page, Paragraph
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.markdown import markdown

MARKDOWN = frozenset("md markdown mdx mkd mdown rmd qmd".split())
PROSE = frozenset("txt text rst adoc asciidoc org tex srt vtt readme".split())
CODE = frozenset(
    "asm awk bash bat bib c cc cfg clj cljs cmake conf cpp cs css cxx dart diff el env erl ex exs f90 fish fs go "
    "gradle graphql groovy h hcl hpp hs hxx ini ipynb java jl js json5 jsx kt kts less lisp log lua m mjs ml mm nim "
    "nix nu pas patch php pl pm proto ps1 py pyi r rb rs s sass scala scss sh sol sql svelte svg swift tcl tf toml ts "
    "tsx v vb vim vue wat xml xsd xsl yaml yml zig zsh".split()
)

_UNDERLINE = re.compile(r"([=\-~^\"'#*+.:_`])\1{2,}\s*$")
_MARKED = re.compile(r"(?:^|\n\n)#{1,6} \S[^\n]*\n")
_FENCED = re.compile(r"^(```|~~~)\w*\s*\n.*?^\1\s*$", re.M | re.S)
_CODE_LINE = re.compile(
    r"[;{}]\s*$|^\s*(?:def|class|import|from|return|if|for|while|#include|function|var|const|let)\b.*[:;({]"
)
_LOOK = 20_000
"""Characters by which an unnamed text's form is told."""


def read(document: Document) -> Iterator[Block]:
    text = document.text()
    extension = document.extension
    if extension in MARKDOWN:
        return markdown(text)
    if extension in CODE:
        return iter([Code(text)])
    if extension in PROSE and extension not in ("txt", "text"):
        return plain(text)
    return _unnamed(text)


def _unnamed(text: str) -> Iterator[Block]:
    """A text whose name says nothing."""
    look = text[:_LOOK]
    start = look.lstrip()
    if look.startswith("#!"):
        return iter([Code(text)])
    if start[:1] in ("{", "[") and _is_json(start, text):
        return data.json_blocks(text)
    if _is_table(look):
        return data.table_blocks(text)
    marks = _MARKED.findall(look)
    if len(marks) >= 2 or _FENCED.search(look[:5_000]):
        return markdown(text)
    lines = [line for line in look.splitlines() if line.strip()]
    if len(lines) >= 5 and sum(bool(_CODE_LINE.search(line)) for line in lines) * 2 > len(lines):
        return iter([Code(text)])
    return plain(text)


def _is_json(start: str, text: str) -> bool:
    first = start.split("\n", 1)[0]
    for candidate in (first, text if len(text) <= 5_000_000 else ""):
        try:
            if isinstance(json.loads(candidate), dict | list):
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _is_table(look: str) -> bool:
    """Every line has the same number of fields, three or more, by tabs, commas or semicolons."""
    lines = look.splitlines()[:-1][:50]
    if len(lines) < 4:
        return False
    for delimiter in "\t;,":
        try:
            counts = {len(fields) for fields in csv.reader(lines, delimiter=delimiter, strict=False) if fields}
        except csv.Error:
            return False
        if len(counts) == 1 and min(counts) >= 3:
            return True
    return False


def plain(text: str) -> Iterator[Block]:
    """Prose with empty lines between paragraphs; form feeds end pages, and underlined lines are headings."""
    pages = text.split("\x0c")
    levels: dict[str, int] = {}
    for number, page in enumerate(pages, 1):
        if len(pages) > 1:
            yield Page(number)
        yield from _paragraphs(page, levels)


def _paragraphs(text: str, levels: dict[str, int]) -> Iterator[Block]:
    lines = text.split("\n")
    kept: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        mark = _underline(lines, place) if not kept else ""
        if mark:
            yield Heading(f"{line}\n{lines[place + 1]}", levels.setdefault(mark, min(len(levels) + 1, 6)), marked=True)
            place += 2
            continue
        if line.strip():
            kept.append(line)
        elif kept:
            yield Paragraph("\n".join(kept))
            kept = []
        place += 1
    if kept:
        yield Paragraph("\n".join(kept))


def _underline(lines: list[str], place: int) -> str:
    """The character that underlines this line, if it is a title."""
    title = lines[place].strip()
    if not title or len(title) > 200 or place + 1 >= len(lines) or not any(letter.isalnum() for letter in title):
        return ""
    match = _UNDERLINE.match(lines[place + 1])
    return match[1] if match and len(match.group().strip()) >= len(title) * 0.8 else ""
