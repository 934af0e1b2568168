"""SearXNG, the search engine that people host themselves. https://docs.searxng.org/dev/search_api.html"""

from __future__ import annotations

import msgspec

from treadle.backends.search_wire import Service, country_of, language_of, narrowed, with_sites
from treadle.errors import ToolFault
from treadle.ports import SearchQuery, SearchResult

_HINTS = {
    403: "refused the search (403). Its settings.yml must list `json` under `search.formats`.",
    429: "is at its limit. Its `limiter` takes this server for a robot: permit its address there, or turn it off.",
}


class _Found(msgspec.Struct):
    url: str | None = None
    title: str | None = None
    content: str | None = None


class _Answer(msgspec.Struct):
    results: list[_Found] = []
    unresponsive_engines: list[list[str | None]] = []


class SearxngSearch:
    """The WebSearch port over a SearXNG instance. What counts as safe is left to the instance."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        asked = {"q": with_sites(query), "format": "json", "categories": "general"}
        language, country = language_of(query), country_of(query)
        if language:
            asked["language"] = f"{language}-{country}" if country else language
        headers = {"authorization": f"Bearer {self._service.key}"} if self._service.key else {}
        data = await self._service.ask("/search", query=asked, headers=headers, hints=_HINTS)
        answer = self._service.decode(data, _Answer)
        if not answer.results and answer.unresponsive_engines:
            silent = ", ".join(str(engine[0])[:40] for engine in answer.unresponsive_engines[:8] if engine)
            raise ToolFault(f"The search service {self._service.name} found nothing; no answer came from: {silent}.")
        found = [SearchResult(one.url or "", one.title or "", one.content or "") for one in answer.results]
        return narrowed(found, query)
