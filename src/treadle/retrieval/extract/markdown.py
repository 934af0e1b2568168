"""Markdown's outer structure: headings, fenced code, tables, and everything else as paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from treadle.retrieval.extract.blocks import Block, Code, Heading, Paragraph, Table

_ATX = re.compile(r"\s{0,3}(#{1,6})(?:\s|$)")
_SETEXT = re.compile(r"\s{0,3}(=+|-+)\s*$")
_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})")
_DELIMITER = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")


def markdown(text: str) -> Iterator[Block]:
    """The blocks of a Markdown text. Every line is in one of them, as it stands there."""
    lines = text.split("\n")
    kept: list[str] = []
    place = _front_matter(lines)
    if place:
        yield Code("\n".join(lines[:place]))
    while place < len(lines):
        block, end = _special(lines, place, fresh=not kept)
        if block is None:
            if lines[place].strip():
                kept.append(lines[place])
            elif kept:
                yield Paragraph("\n".join(kept))
                kept = []
            place += 1
            continue
        if kept:
            yield Paragraph("\n".join(kept))
            kept = []
        yield block
        place = end
    if kept:
        yield Paragraph("\n".join(kept))


def _front_matter(lines: list[str]) -> int:
    """How many lines of settings stand before the text, as static site generators have them."""
    if lines[0].rstrip() != "---":
        return 0
    return next((place + 1 for place in range(1, min(len(lines), 200)) if lines[place].rstrip() == "---"), 0)


def _special(lines: list[str], place: int, *, fresh: bool) -> tuple[Block | None, int]:
    """The block other than a paragraph that starts at this line, and where it ends."""
    line = lines[place]
    atx = _ATX.match(line)
    if atx:
        return Heading(line, len(atx[1]), marked=True), place + 1
    fence = _FENCE.match(line)
    if fence:
        end = _fence_end(lines, place, fence[2])
        return Code("\n".join(lines[place:end])), end
    following = lines[place + 1] if place + 1 < len(lines) else ""
    if "|" in line and "-" in following and "|" in following and _DELIMITER.match(following):
        end = place + 2
        while end < len(lines) and "|" in lines[end]:
            end += 1
        return Table(lines[place + 2 : end], f"{line}\n{following}"), end
    if fresh and line.strip() and not line.lstrip().startswith(("-", "*", "+", ">", "|")):
        setext = _SETEXT.match(following)
        if setext:
            return Heading(f"{line}\n{following}", 1 if setext[1][0] == "=" else 2, marked=True), place + 2
    return None, place


def _fence_end(lines: list[str], start: int, fence: str) -> int:
    for place in range(start + 1, len(lines)):
        line = lines[place].strip()
        if line.startswith(fence) and not line.strip(fence[0]):
            return place + 1
    return len(lines)
