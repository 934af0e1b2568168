"""Takes citation marks out of streamed text: what a mark points at becomes an annotation (contract §6.3).

The model is asked to write 【n】 behind what result n supports; `<|file-…|>`, which names a file, is understood as
well. A mark may arrive in pieces, so text is held from its opening bracket on, and from the spaces before it, which go
with it: for a few characters at most. A mark that points at nothing the model was shown is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import MsgspecError, Raw
from msgspec.json import Decoder

from treadle.ports import SearchResult
from treadle.wire.base import encode
from treadle.wire.items import FileSearchRecord, Item, Told, WebSearchCall

_NUMBERS = r"\d{1,5}(?:\s?[,;、，]\s?\d{1,5}){0,7}"
_FILE = r"file[-_][A-Za-z0-9_-]{1,64}"
_REST = r"(?!\w)[^【】<\n]{0,40}"
"""What models put behind the number of their own accord, such as a dagger and a line."""
_MARK = re.compile(rf"[ \t]{{0,8}}(?:【\s{{0,3}}({_NUMBERS}|{_FILE}){_REST}】|<\|\s{{0,3}}({_FILE})\s{{0,3}}\|>)")
_BEGUN = re.compile(
    r"[ \t]{0,8}(?:"
    rf"【\s{{0,3}}(?:(?:\d[\d\s,;、，]{{0,70}}|f[\w-]{{0,72}})?|(?:{_NUMBERS}|{_FILE}){_REST})"
    r"|<(?:\|\s{0,3}(?:f[\w-]{0,72}\s{0,3}\|?)?)?"
    r")?\Z"
)
"""An end of text that may become a mark. It covers every beginning of one, so cuts change nothing."""
_LONGEST = 200
"""Characters that _BEGUN can match at most."""
_NUMBER = re.compile(r"\d{1,5}")
_CLOSING = frozenset(".,;:!?)]}…»”’、。，；：！？）」』")
_string = Decoder(str)
_BOUNDARY = re.compile(r"(?:[.!?…:](?=\s)|\n)\s*")


@dataclass(frozen=True, slots=True)
class CitedFile:
    """A file of which the model was shown a passage."""

    file_id: str
    filename: str
    number: int
    """Under which the passage may be cited."""


Source = SearchResult | CitedFile


class Citable:
    """What the model may cite: everything that was found for it in this turn or before."""

    def __init__(self) -> None:
        self._numbers: dict[int, Source] = {}
        self._files: dict[str, CitedFile] = {}
        self.asked = False
        """The model may have been asked to write marks, even if nothing was found."""

    def add(self, sources: Iterable[Source]) -> None:
        self.asked = True
        for source in sources:
            self._numbers[source.number] = source
            if isinstance(source, CitedFile):
                self._files[source.file_id] = source

    def named(self, numbers: str | None, file_id: str | None) -> list[Source]:
        """The sources of a mark that holds numbers or the id of a file."""
        if file_id is None and numbers is not None and not numbers[0].isdigit():
            file_id = numbers
        if file_id is not None:
            return [self._files[file_id]] if file_id in self._files else []
        wanted = [int(number) for number in _NUMBER.findall(numbers or "")]
        return [self._numbers[number] for number in wanted if number in self._numbers]

    def copy(self) -> Citable:
        found = Citable()
        found._numbers, found._files, found.asked = dict(self._numbers), dict(self._files), self.asked
        return found


class Numbers:
    """Gives the results of all searches of a chain numbers that are used once."""

    def __init__(self, last: int = 0) -> None:
        self._last = last

    def next(self) -> int:
        self._last += 1
        return self._last


def citable_in(items: Iterable[Item]) -> tuple[Citable, Numbers]:
    """What earlier turns found, and the numbers that are still free."""
    found, last = Citable(), 0
    for item in items:
        if isinstance(item, FileSearchRecord) and isinstance(item.told, Told):
            found.add(cited_files(item))
            last = max(last, *item.told.numbers, 0)
        elif isinstance(item, WebSearchCall) and isinstance(item.results, str):
            results = _web_results(item)
            found.add(results)
            last = max([last, *(result.number for result in results)])
    return found, Numbers(last)


def cited_files(item: FileSearchRecord) -> list[CitedFile]:
    """The files of the passages that the search showed the model."""
    if not isinstance(item.told, Told):
        return []
    return [
        CitedFile(result.file_id, result.filename or "", number)
        for result, number in zip(item.results or (), item.told.numbers, strict=False)
        if number and result.file_id
    ]


def _web_results(item: WebSearchCall) -> list[SearchResult]:
    """The results of a stored search: their text is ours, and each begins with number, title and address."""
    found: list[SearchResult] = []
    at, text = 0, item.results if isinstance(item.results, str) else ""
    for source in item.action.sources or ():
        url = _text(source.get("url"))
        line = re.compile(rf"(?:^|\n\n)【(\d{{1,5}})】 (.*)\n{re.escape(url)}\n").search(text, at) if url else None
        if line is None:
            break
        found.append(SearchResult(url, line[2], "", int(line[1])))
        at = line.end()
    return found


def _text(raw: Raw | None) -> str:
    try:
        return _string.decode(raw or b"")
    except MsgspecError:
        return ""


class CitationScanner:
    """Feed it text; it gives back the text without marks, and the sources where they were cited, in order."""

    def __init__(self, citable: Citable) -> None:
        self._citable = citable
        self._held = ""
        self._begun = False
        self._gap = False
        """Spaces went with the mark that stood last; words on both sides of it must not grow together."""

    def feed(self, text: str) -> list[str | Source]:
        plain = not self._held and not self._gap and "【" not in text and "<" not in text
        if plain and text[-1:] not in (" ", "\t"):
            self._begun = self._begun or text != ""
            return [text]
        text, self._held = self._held + text, ""
        found: list[str | Source] = []
        at = 0
        for mark in _MARK.finditer(text):
            found += self._spaced(text[at : mark.start()])
            found += self._citable.named(mark[1], mark[2])
            self._gap = self._gap or mark[0][0] in " \t"
            at = mark.end()
        begun = _BEGUN.search(text, max(at, len(text) - _LONGEST))
        end = begun.start() if begun is not None else len(text)
        self._held = text[end:]
        return found + self._spaced(text[at:end])

    def finish(self) -> list[str | Source]:
        """What was held and turned out to be text."""
        rest, self._held = self._held, ""
        return self._spaced(rest)

    def _spaced(self, text: str) -> list[str | Source]:
        if not text:
            return []
        gap, self._gap, self._begun = self._gap and self._begun, False, True
        return [f" {text}" if gap and not text[0].isspace() and text[0] not in _CLOSING else text]


def annotation(source: Source, text: str) -> Raw:
    """The annotation that says that the end of `text`, the part's text so far, rests on `source`."""
    if isinstance(source, CitedFile):
        return Raw(
            encode(
                {
                    "type": "file_citation",
                    "file_id": source.file_id,
                    "filename": source.filename,
                    "index": len(text),
                }
            )
        )
    start, end = span(text)
    return Raw(
        encode(
            {
                "type": "url_citation",
                "url": source.url,
                "title": source.title,
                "start_index": start,
                "end_index": end,
            }
        )
    )


def span(text: str) -> tuple[int, int]:
    """Where the sentence that ends `text` starts and ends, as a half-open range of characters."""
    end = len(text.rstrip())
    start = 0
    for boundary in _BOUNDARY.finditer(text, 0, end):
        if boundary.end() < end:
            start = boundary.end()
    return start, end
