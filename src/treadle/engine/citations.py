"""Takes citation marks out of streamed text: what a mark points at becomes an annotation (contract §6.3).

The model is asked to write 【n】 behind what result n supports. A mark may arrive in pieces, so text is held from its
opening bracket on, for a few characters at most. A mark that points at nothing is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from treadle.ports import SearchResult

_MARK = re.compile(r"【\s*(\d{1,5})[^【】]{0,24}】")
_LONGEST = 40
_BOUNDARY = re.compile(r"(?:[.!?…:](?=\s)|\n)\s*")


class CitationScanner:
    """Feed it text; it gives back the text without marks, and the sources where they were cited, in order."""

    def __init__(self, sources: Mapping[int, SearchResult]) -> None:
        self._sources = sources
        self._held = ""

    def feed(self, text: str) -> list[str | SearchResult]:
        if not self._held and "【" not in text:
            return [text]
        text, self._held = self._held + text, ""
        found: list[str | SearchResult] = []
        at = 0
        for mark in _MARK.finditer(text):
            if mark.start() > at:
                found.append(text[at : mark.start()])
            if (source := self._sources.get(int(mark.group(1)))) is not None:
                found.append(source)
            at = mark.end()
        rest = text[at:]
        opened = rest.rfind("【")
        if opened >= 0 and "】" not in rest[opened:] and len(rest) - opened <= _LONGEST:
            rest, self._held = rest[:opened], rest[opened:]
        if rest:
            found.append(rest)
        return found

    def finish(self) -> list[str | SearchResult]:
        """What was held and turned out to be text."""
        rest, self._held = self._held, ""
        return [rest] if rest else []


def span(text: str) -> tuple[int, int]:
    """Where the sentence that ends `text` starts and ends, as a half-open range of characters."""
    end = len(text.rstrip())
    start = 0
    for boundary in _BOUNDARY.finditer(text, 0, end):
        if boundary.end() < end:
            start = boundary.end()
    return start, end
