"""EPUB books: their chapters in reading order, each an XHTML page."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from urllib.parse import unquote

from treadle.retrieval.extract.archive import Archive, resolved
from treadle.retrieval.extract.blocks import Block
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.encoding import decoded
from treadle.retrieval.extract.faults import damaged, require
from treadle.retrieval.extract.html import html_blocks

_KIND = "book"
_PAGES = frozenset({"application/xhtml+xml", "text/html", "application/xml", "text/xml", ""})


def read(document: Document) -> Iterator[Block]:
    require("selectolax", "EPUB")
    with Archive(document, _KIND) as archive:
        chapters = _chapters(archive)
        locked = _locked(archive)
        for name in chapters:
            if name in locked:
                raise damaged(_KIND, "its chapters are protected against copying (DRM)")
            yield from html_blocks(decoded(archive.read(name)), titled=False)


def _chapters(archive: Archive) -> list[str]:
    package = ""
    for kind, tag, attributes in archive.events("META-INF/container.xml"):
        if kind == "start" and tag == "rootfile" and not package:
            package = resolved("", attributes.get("full-path", ""))
    if package not in archive:
        raise damaged(_KIND, "its table of parts is missing")
    folder = posixpath.dirname(package)
    items: dict[str, str] = {}
    order: list[str] = []
    for kind, tag, attributes in archive.events(package):
        if kind != "start":
            continue
        if tag == "item" and attributes.get("media-type", "") in _PAGES:
            items[attributes.get("id", "")] = resolved(folder, unquote(attributes.get("href", "")))
        elif tag == "itemref":
            order.append(attributes.get("idref", ""))
    return [items[one] for one in order if items.get(one, "") in archive]


def _locked(archive: Archive) -> set[str]:
    """Members that are encrypted. Fonts often are, in ordinary books."""
    name = "META-INF/encryption.xml"
    if name not in archive:
        return set()
    return {
        resolved("", unquote(attributes.get("URI", "")))
        for kind, tag, attributes in archive.events(name)
        if kind == "start" and tag == "CipherReference"
    }
