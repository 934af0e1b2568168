"""Web search as functions of the model: search, open a page, find in a page.

Without a search service the functions are offered all the same: a call fails, the model is told, and the answer goes
on (bug case 68). A client that forbids access to the outside (`external_web_access: false`, as Codex does) gets none.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from treadle.engine.citations import Numbers
from treadle.engine.toolset import ToolSet
from treadle.errors import ToolFault
from treadle.ports import ModelFunction, Page, PageReader, SearchQuery, ToolOutcome, WebSearch
from treadle.scope import Scope
from treadle.wire.base import decode, encode
from treadle.wire.hosted import WEB_SEARCH, DomainFilter, Location, WebSearchDeclaration, web_search_decoder

_SHARE = {"low": 0.5, "medium": 1.0, "high": 2.0}
"""Of the configured number of results."""
_SNIPPET = {"low": 300, "medium": 800, "high": 2_000}
_PAGE = {"low": 8_000, "medium": 24_000, "high": 60_000}
_AROUND = 300
_MATCHES = 20


class _Arguments(msgspec.Struct):
    query: str = ""
    url: str = ""
    pattern: str = ""


_arguments = msgspec.json.Decoder(_Arguments)


class WebRunner:
    """Runs the calls of one declaration of web search."""

    exclusive = False

    def __init__(
        self,
        declared: WebSearchDeclaration,
        search: WebSearch | None,
        reader: PageReader | None,
        limit: int,
        numbers: Numbers,
    ) -> None:
        self._filters = declared.filters or DomainFilter()
        self._place = declared.user_location or Location()
        self._size = declared.search_context_size or "medium"
        self._search = search
        self._numbers = numbers
        """A citation names a result by its number."""
        self._limit = max(1, round(limit * _SHARE[self._size]))
        self._reader = reader

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        given = decode(_arguments, arguments.encode())
        match name:
            case "open_page":
                return await self._open(given.url)
            case "find_in_page":
                return await self._find(given.url, given.pattern)
            case _:
                return await self._query(given.query)

    async def _query(self, query: str) -> ToolOutcome:
        if self._search is None:
            raise ToolFault("Web search is not configured on this server. Answer without it, and say so.")
        if not query.strip():
            raise ToolFault("The query is empty.")
        found = await self._search.search(
            SearchQuery(
                text=query[:1000],
                allowed=self._filters.allowed_domains or [],
                blocked=self._filters.blocked_domains or [],
                country=self._place.country,
                limit=self._limit,
            )
        )
        if not found:
            return ToolOutcome("Nothing was found.", untrusted=True)
        for result in found:
            result.number = self._numbers.next()
        lines = [
            f"【{result.number}】 {result.title}\n{result.url}\n{result.text[: _SNIPPET[self._size]]}"
            for result in found
        ]
        return ToolOutcome("\n\n".join(lines), sources=found, untrusted=True)

    async def _open(self, url: str) -> ToolOutcome:
        page = await self._page(url)
        limit = _PAGE[self._size]
        text = page.text[:limit] + (f"\n[{len(page.text) - limit} more characters]" if len(page.text) > limit else "")
        return ToolOutcome(f"{page.title}\n{page.url}\n\n{text}", untrusted=True)

    async def _find(self, url: str, pattern: str) -> ToolOutcome:
        if not pattern:
            raise ToolFault("The pattern is empty.")
        page = await self._page(url)
        text, low, wanted = page.text, page.text.lower(), pattern.lower()
        found: list[str] = []
        at = low.find(wanted)
        while at >= 0 and len(found) < _MATCHES:
            found.append("…" + text[max(0, at - _AROUND) : at + len(pattern) + _AROUND] + "…")
            at = low.find(wanted, at + len(pattern) + _AROUND)
        return ToolOutcome("\n\n".join(found) or f"'{pattern}' is not in the page.", untrusted=True)

    async def _page(self, url: str) -> Page:
        if self._reader is None:
            raise ToolFault("This server cannot open pages.")
        if not self._permits(url):
            raise ToolFault("The page's domain is not among those that may be used.")
        return await self._reader.read(url)

    def _permits(self, url: str) -> bool:
        host = (urlsplit(url).hostname or "").lower()

        def under(domains: list[str] | None) -> bool:
            return any(host == d.lower() or host.endswith("." + d.lower()) for d in domains or ())

        if self._filters.allowed_domains and not under(self._filters.allowed_domains):
            return False
        return not under(self._filters.blocked_domains)


def add_web_search(
    tools: ToolSet, search: WebSearch | None, reader: PageReader | None, limit: int, numbers: Numbers
) -> None:
    """Offers the functions for the first declaration of web search in the set. InvalidRequest for a bad one."""
    for at, tool in tools.hosted:
        if tool.kind in WEB_SEARCH:
            declared = decode(web_search_decoder, tool.raw, at)
            if declared.external_web_access is not False:
                tools.add_hosted(FUNCTIONS, "web_search", WebRunner(declared, search, reader, limit, numbers))
            return


def _schema(**properties: str) -> Raw:
    described = {name: {"type": "string", "description": text} for name, text in properties.items()}
    return Raw(encode({"type": "object", "properties": described, "required": list(properties)}))


FUNCTIONS = (
    ModelFunction(
        name="web_search",
        description="Searches the web. Gives numbered titles, addresses and excerpts of pages. "
        "Behind every statement that a result supports, write its number like this: 【3】.",
        parameters=_schema(query="What to search for."),
    ),
    ModelFunction(
        name="open_page",
        description="Opens a web page and gives its text.",
        parameters=_schema(url="Address of the page."),
    ),
    ModelFunction(
        name="find_in_page",
        description="Finds places in a web page that contain a text.",
        parameters=_schema(url="Address of the page.", pattern="Text to find, in any case."),
    ),
)
