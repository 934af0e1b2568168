"""What a person would read on an HTML page, as plain text with Markdown's marks for headings, lists and links."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import msgspec

from treadle.backends.html_tokens import Close, Open, Text, tokens

MAX_TOKENS = 400_000
MAX_TEXT = 2_000_000
"""Characters kept before the readable part is chosen."""
MAX_HREF = 1000
_ENOUGH = 200
"""Characters a page's main part must hold to stand for the page."""

_SPACE = re.compile(r"\s+")
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_UNSEEN = frozenset(
    "script style noscript template iframe svg canvas object audio video select button textarea dialog noembed "
    "noframes map math".split()
)
_CHROME = frozenset({"nav", "aside", "footer", "header"})
"""What surrounds the content. A header inside the main part belongs to it."""
_CHROME_ROLES = frozenset({"navigation", "banner", "contentinfo", "search", "complementary"})
_MAIN = frozenset({"main", "article"})
_BLOCKS = frozenset(
    "address article aside blockquote body center dd details div dl dt fieldset figcaption figure footer form header "
    "hr html li main menu nav ol p section summary table tbody tfoot thead tr ul caption".split()
)
_IN_CELLS = frozenset({"p", "div", "center"})
"""Blocks that are part of their cell in a table; others show that the table is there for the layout."""
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


class Readable(msgspec.Struct, frozen=True):
    """A page's title and text. `cut` tells that the page was too large to be read to its end."""

    title: str
    text: str
    cut: bool = False


class _Block(msgspec.Struct):
    """A piece of text that stands on lines of its own, and where on the page it stands."""

    text: str
    main: bool
    chrome: bool
    tight: bool = False
    """No empty line before it."""


def readable(page: str, url: str) -> Readable:
    """The readable part of `page`; `url` is where it was found, for its relative links."""
    reader = _Reader(url)
    cut = False
    for number, token in enumerate(tokens(page)):
        if number >= MAX_TOKENS or reader.size >= MAX_TEXT:
            cut = True
            break
        match token:
            case Text(text=text):
                reader.text(text)
            case Open():
                reader.open(token)
            case Close(name=name):
                reader.close(name)
    reader.flush()
    return Readable(reader.title(), _join(_chosen(reader.blocks)), cut)


class _Reader:
    """Turns tokens into blocks. Holds counters instead of a tree, so that depth costs nothing."""

    def __init__(self, url: str) -> None:
        self.blocks: list[_Block] = []
        self.size = 0
        self._url = url
        self._title = ""
        self._og_title = ""
        self._first_heading = ""
        self._line: list[str] = []
        self._prefix = ""
        self._heading = 0
        self._pre = 0
        self._lists: list[int | None] = []
        """The lists around: the number of the last item, or None for one without numbers."""
        self._fresh_list = False
        self._row: list[str] | None = None
        self._in_cell = False
        self._main: dict[str, int] = {}
        self._chrome: dict[str, int] = {}
        """Open elements that make up the main part, and those around it: the element's name and how many deep."""
        self._unseen = ("", 0)
        self._link: tuple[str, int] | None = None

    def title(self) -> str:
        return _squeezed(self._title) or _squeezed(self._og_title) or self._first_heading

    def text(self, text: str) -> None:
        if not self._unseen[1]:
            self._line.append(text)
            self.size += len(text)

    def open(self, tag: Open) -> None:
        name = tag.name
        if tag.raw is not None:
            if name == "title" and not self._title and not self._unseen[1]:
                self._title = tag.raw[:1000]
            return
        unseen, depth = self._unseen
        if depth and not (unseen == "p" and name in _BLOCKS):  # a paragraph ends where the next block starts
            if name == unseen:
                self._unseen = (unseen, depth + 1)
            return
        self._unseen = ("", 0)
        if name not in _VOID and (name in _UNSEEN or _is_hidden(tag.attributes)):
            self._unseen = (name, 1)
            return
        self._part(name)
        self._enter(tag)

    def _enter(self, tag: Open) -> None:
        name, attributes = tag.name, tag.attributes
        role = attributes.get("role", "") if name in _BLOCKS else ""
        is_chrome = role in _CHROME_ROLES or (name in _CHROME and not (self._main and name == "header"))
        for marks, starts in ((self._main, name in _MAIN or role == "main"), (self._chrome, is_chrome)):
            if starts or name in marks:
                # Inner elements of the same name count, so that their ends are not taken for the outer one's.
                marks[name] = marks.get(name, 0) + 1
        if name in _HEADINGS:
            self._heading = _HEADINGS[name]
        elif name == "pre":
            self._pre += 1
        elif name in ("ul", "ol"):
            self._fresh_list = self._fresh_list or not self._lists
            if len(self._lists) < 64:
                self._lists.append(0 if name == "ol" else None)
        elif name == "li":
            self._bullet()
        elif name == "tr":
            self._row = []
        elif name in ("td", "th"):
            self._cell()
            self._in_cell = self._row is not None
        elif name == "br":
            self._line.append("\n" if self._pre else "\u2028")
        elif name == "a":
            self._start_link(attributes.get("href", ""))
        elif name == "base" and attributes.get("href"):
            self._url = _joined(self._url, attributes["href"]) or self._url
        elif name == "meta" and attributes.get("property", "").lower() == "og:title":
            self._og_title = self._og_title or attributes.get("content", "")

    def close(self, name: str) -> None:
        unseen, depth = self._unseen
        if depth:
            if name == unseen:
                self._unseen = (unseen, depth - 1)
            return
        if name in ("td", "th"):
            self._cell()
        elif name == "a":
            self._end_link()
        self._part(name)
        if name in _HEADINGS:
            self._heading = 0
        elif name == "pre":
            self._pre = max(0, self._pre - 1)
        elif name in ("ul", "ol") and self._lists:
            self._lists.pop()
        for marks in (self._main, self._chrome):
            if name in marks:
                marks[name] -= 1
                if not marks[name]:
                    del marks[name]

    def _part(self, name: str) -> None:
        """Ends the block that is being written if a tag of that name does."""
        if self._row is not None and name in _IN_CELLS:
            self._line.append(" ")
        elif name in _BLOCKS or name in _HEADINGS or name == "pre":
            self.flush()

    def flush(self) -> None:
        """Ends the block that is being written."""
        self._end_link()
        if self._row is not None:
            self._cell()
            text, self._row = " | ".join(self._row).rstrip(" |"), None
            if text.strip(" |"):
                self._add(text, tight=bool(self.blocks) and " | " in self.blocks[-1].text)
            self._prefix = ""
            return
        raw = "".join(self._line)
        self._line = []
        text = raw.strip("\n").rstrip() if self._pre else _squeezed(raw)
        if not text.strip():
            return
        if self._heading:
            self._first_heading = self._first_heading or text
            text = "#" * self._heading + " " + text
        elif self._pre:
            text = f"```\n{text}\n```"
        tight, text = bool(self._prefix) and not self._fresh_list, self._prefix + text
        if self._prefix:
            self._prefix, self._fresh_list = "", False
        self._add(text, tight=tight)

    def _add(self, text: str, *, tight: bool) -> None:
        self.blocks.append(_Block(text, main=bool(self._main), chrome=bool(self._chrome), tight=tight))

    def _bullet(self) -> None:
        mark = "-"
        if self._lists and self._lists[-1] is not None:
            number = self._lists[-1] + 1
            self._lists[-1] = number
            mark = f"{number}."
        self._prefix = "  " * max(0, min(len(self._lists), 8) - 1) + mark + " "

    def _cell(self) -> None:
        """Moves what was written into the row; a cell's end may be marked by its own tag or by the next one."""
        self._end_link()
        text, self._line = _squeezed("".join(self._line)).replace("\n", " "), []
        if self._row is None:
            self._line = [text, " "] if text else []
        elif text or self._in_cell:
            self._row.append(text)
        self._in_cell = False

    def _start_link(self, href: str) -> None:
        self._end_link()
        target = _joined(self._url, href) if href and not href.startswith("#") else ""
        if target and not self._pre:
            self._link = (target, len(self._line))

    def _end_link(self) -> None:
        if self._link is None:
            return
        (target, start), self._link = self._link, None
        words = _squeezed("".join(self._line[start:])).replace("\n", " ")
        if words:
            raw = "".join(self._line[start:])
            before, after = " " * raw[:1].isspace(), " " * raw[-1:].isspace()
            shown = words if words == target else f"[{words}]({target})"
            self._line[start:] = [before, shown, after]


def _is_hidden(attributes: dict[str, str]) -> bool:
    """Readers do not see it, so the model should not either: this is where instructions are planted."""
    return (
        "hidden" in attributes
        or attributes.get("aria-hidden", "").lower() == "true"
        or bool(_HIDDEN_STYLE.search(attributes.get("style", "")))
    )


def _chosen(blocks: list[_Block]) -> list[_Block]:
    """The main part if the page marks one, else all but what surrounds it, else everything."""
    for part in (
        [block for block in blocks if block.main and not block.chrome],
        [block for block in blocks if not block.chrome],
    ):
        if sum(len(block.text) for block in part) >= _ENOUGH:
            return part
    plain = [block for block in blocks if not block.chrome]
    return plain or blocks


def _join(blocks: list[_Block]) -> str:
    parts: list[str] = []
    for block in blocks:
        if parts:
            parts.append("\n" if block.tight else "\n\n")
        parts.append(block.text)
    return "".join(parts)


def _squeezed(text: str) -> str:
    """Runs of white space as one space; forced line breaks stay."""
    lines = [_SPACE.sub(" ", line).strip() for line in text.split("\u2028")]
    return "\n".join(lines).strip()


def _joined(base: str, href: str) -> str:
    """The http or https address that a link leads to; empty if it is none that is worth showing."""
    if len(href) > MAX_HREF:
        return ""
    try:
        target = urljoin(base, href.strip())
        return target if urlsplit(target).scheme in ("http", "https") else ""
    except ValueError:
        return ""
