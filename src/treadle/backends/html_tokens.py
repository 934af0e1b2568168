"""HTML as a flat run of tokens, for pages that nobody vouches for.

Time is linear in the page whatever it holds: a construct that never ends takes the rest of the page with it instead
of being tried again. (The standard library's parser is quadratic on some of these, depending on its release.)
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import msgspec

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]{0,63})")
_ATTRIBUTE = re.compile(
    r"""[\s/]*+(?:(?P<name>[^\s/>=]++)(?:\s*+=\s*+(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)'|(?P<bare>[^\s>]*+)))?|=)"""
)
_RAW = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    for name in ("script", "style", "title", "textarea", "noscript", "iframe", "xmp", "noembed", "noframes", "template")
}
"""Elements whose inside is not markup, or is none that a reader sees; it comes as one text."""
_REFERENCE_DIGITS = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")
MAX_ATTRIBUTES = 64
MAX_VALUE = 4096


class Text(msgspec.Struct, frozen=True, gc=False):
    """Characters between tags, references resolved."""

    text: str


class Open(msgspec.Struct, frozen=True):
    """A start tag; `raw` is the inside of an element that holds no markup."""

    name: str
    attributes: dict[str, str]
    raw: str | None = None


class Close(msgspec.Struct, frozen=True, gc=False):
    """An end tag."""

    name: str


Token = Text | Open | Close


def tokens(page: str) -> Iterator[Token]:
    """The tokens of a page, in order. Total: any text gives some."""
    at, end = 0, len(page)
    while at < end:
        mark = page.find("<", at)
        if mark != at:
            yield Text(unescape(page[at : mark if mark >= 0 else end]))
        if mark < 0:
            return
        if page.startswith(("<!", "<?"), mark):
            at = _after_declaration(page, mark)
            continue
        tag = _TAG.match(page, mark)
        if tag is None:
            if page.startswith("</", mark):
                at = _after(page, ">", mark)
            else:
                yield Text("<")
                at = mark + 1
            continue
        name = tag[2].lower()
        attributes, at = _attributes(page, tag.end())
        if tag[1]:
            yield Close(name)
            continue
        if name not in _RAW:
            yield Open(name, attributes)
            continue
        closing = _RAW[name].search(page, at)
        inside = page[at : closing.start() if closing else end]
        yield Open(name, attributes, unescape(inside) if name in ("title", "textarea") else inside)
        at = _after(page, ">", closing.end()) if closing else end


def unescape(text: str) -> str:
    """Character references resolved; numbers too large for any character are left as they stand."""
    if "&" not in text:
        return text
    return html.unescape(_REFERENCE_DIGITS.sub("\ufffd", text))


def _after_declaration(page: str, at: int) -> int:
    if page.startswith("<!--", at):
        # `<!-->` and `<!--->` are whole comments.
        return _after(page, "-->", at + 2)
    if page.startswith("<![CDATA[", at):
        return _after(page, "]]>", at)
    return _after(page, ">", at)


def _after(page: str, what: str, at: int) -> int:
    found = page.find(what, at)
    return found + len(what) if found >= 0 else len(page)


def _attributes(page: str, at: int) -> tuple[dict[str, str], int]:
    """The attributes from `at` on, and where the tag ends."""
    found: dict[str, str] = {}
    while True:
        part = _ATTRIBUTE.match(page, at)
        if part is None:
            return found, _after(page, ">", at)
        at = part.end()
        name = (part["name"] or "").lower()
        if name and name not in found and len(found) < MAX_ATTRIBUTES and len(name) <= MAX_ATTRIBUTES:
            value = part["double"] or part["single"] or part["bare"] or ""
            found[name] = unescape(value[:MAX_VALUE])
