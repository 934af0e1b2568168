"""The PageReader port: a page that a model or a caller names, fetched with care and reduced to its text."""

from __future__ import annotations

import asyncio
import codecs
import re

from treadle.backends.html_text import readable
from treadle.backends.outgoing import Body, OutgoingSession
from treadle.errors import AddressRefused, InvalidRequest, ToolFault
from treadle.ports import Page

MAX_TEXT = 200_000
"""Characters of a page's text."""
MAX_PAGE = 5_242_880
"""Bytes read of a page; what follows is left out and said to be."""
_ACCEPT = "text/html,application/xhtml+xml,text/markdown,text/plain;q=0.9,application/json;q=0.8,*/*;q=0.1"
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT = frozenset({"application/json", "application/xml", "application/yaml", "application/x-ndjson"})
_META_CHARSET = re.compile(
    rb"<meta[^>]{0,512}?charset\s{0,8}=\s{0,8}[\"']?\s{0,8}([a-zA-Z0-9_:.-]{1,40})", re.IGNORECASE
)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# Python knows codecs that are no charsets, and some that take quadratic time; a page chooses among these only.
_CHARSETS = frozenset(
    "utf-8 utf-16 utf-16-le utf-16-be ascii shift_jis cp932 euc_jp iso2022_jp gb2312 gbk gb18030 big5 big5hkscs euc_kr "
    "cp949 koi8-r koi8-u mac-roman cp866 cp874 tis-620".split()
    + [f"iso8859-{number}" for number in range(1, 17) if number != 12]
    + [f"cp125{number}" for number in range(9)]
)


class HttpPageReader:
    """Reads HTML, plain text, Markdown, JSON and the like."""

    def __init__(self, session: OutgoingSession) -> None:
        self._session = session

    async def read(self, url: str) -> Page:
        """ToolFault, naming the reason, for an address that is refused and for a page that is none."""
        try:
            async with self._session.open(url.strip(), accept=_ACCEPT) as answer:
                if answer.content_type and not _is_text(answer.content_type):
                    raise ToolFault(f"{answer.url} is no page to read: its type is {answer.content_type[:80]}.")
                body = await answer.read(min(MAX_PAGE, self._session.max_bytes), cut=True)
        except InvalidRequest as refusal:
            raise AddressRefused(refusal.message) from None
        # A large page takes long enough to be noticed by everybody else on the event loop.
        return await asyncio.to_thread(_page, body) if len(body.data) > 32_768 else _page(body)


def decoded(data: bytes, charset: str, *, look_inside: bool, cut: bool = False) -> str:
    """Text in the charset of its mark, its header or, with `look_inside`, its meta tag; else UTF-8 or Latin-1."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace")
    known = _known(charset)
    if not known and look_inside:
        found = _META_CHARSET.search(data[:4096])
        known = _known(found[1].decode("ascii")) if found else ""
        if known.startswith("utf-16"):
            known = "utf-8"  # the tag could not have been read otherwise
    if known:
        return data.decode(known, "replace")
    try:
        # Where the page was cut, its last character may be incomplete.
        return codecs.getincrementaldecoder("utf-8")().decode(data, not cut)
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _page(body: Body) -> Page:
    kind, data = body.content_type, body.data
    is_html = kind in _HTML or (not kind and data.lstrip()[:1] == b"<")
    text = decoded(data, body.charset, look_inside=is_html, cut=body.cut)
    if text.count("\0", 0, 4096):
        raise ToolFault(f"{body.url} is no page to read: it says it is {kind or 'nothing'} but holds binary data.")
    title, cut = "", body.cut
    if is_html:
        found = readable(text, body.url)
        title, text, cut = found.title, found.text, cut or found.cut
    text = text.strip()
    if len(text) > MAX_TEXT:
        text, cut = text[:MAX_TEXT], True
    if not text:
        raise ToolFault(f"{body.url} holds no text to read.")
    if cut:
        text += "\n\n[The page goes on; the rest was left out.]"
    return Page(url=body.url, title=title[:500], text=text)


def _is_text(kind: str) -> bool:
    structured = kind.startswith("application/") and kind.endswith(("+json", "+xml"))
    return kind.startswith("text/") or kind in _HTML or kind in _TEXT or structured


def _known(charset: str) -> str:
    """Python's name of a charset; empty if it is none that pages may use."""
    try:
        name = codecs.lookup(charset).name if charset else ""
    except (LookupError, ValueError):
        return ""
    # Browsers read both of these as the Windows superset, and so do the people who label pages so.
    name = {"ascii": "cp1252", "iso8859-1": "cp1252"}.get(name, name)
    return name if name in _CHARSETS else ""
