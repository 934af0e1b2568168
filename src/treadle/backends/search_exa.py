"""Exa's search API. https://docs.exa.ai/reference/search"""

from __future__ import annotations

import msgspec

from treadle.backends.search_wire import Service, bare_domain, country_of, narrowed
from treadle.ports import SearchQuery, SearchResult

URL = "https://api.exa.ai"
_TEXT = 1000
"""Characters of a page's text to ask for."""
_HINTS = {402: "has no credit left (402)."}


class _Text(msgspec.Struct, rename="camel"):
    max_characters: int


class _Contents(msgspec.Struct):
    text: _Text


class _Asked(msgspec.Struct, rename="camel", omit_defaults=True):
    query: str
    num_results: int
    contents: _Contents | None = None
    include_domains: list[str] = []
    exclude_domains: list[str] = []
    user_location: str = ""


class _Found(msgspec.Struct):
    url: str | None = None
    title: str | None = None
    text: str | None = None
    summary: str | None = None
    highlights: list[str] | None = None


class _Answer(msgspec.Struct):
    results: list[_Found] = []


class ExaSearch:
    """The WebSearch port over Exa's API."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        asked = _Asked(
            query=query.text,
            num_results=max(1, min(100, query.limit)),
            contents=_Contents(_Text(_TEXT)),
            # It takes one of the two lists; what is blocked within what is allowed is left out afterwards.
            include_domains=[bare_domain(domain) for domain in query.allowed],
            exclude_domains=[] if query.allowed else [bare_domain(domain) for domain in query.blocked],
            user_location=country_of(query),
        )
        data = await self._service.ask("/search", body=asked, headers={"x-api-key": self._service.key}, hints=_HINTS)
        answer = self._service.decode(data, _Answer)
        return narrowed(
            [
                SearchResult(
                    one.url or "", one.title or "", " … ".join(one.highlights or []) or one.summary or one.text or ""
                )
                for one in answer.results
            ],
            query,
        )
