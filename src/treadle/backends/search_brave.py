"""Brave's search API. https://api-dashboard.search.brave.com/app/documentation/web-search/get-started"""

from __future__ import annotations

import msgspec

from treadle.backends.search_wire import Service, country_of, language_of, narrowed, with_sites
from treadle.ports import SearchQuery, SearchResult

URL = "https://api.search.brave.com"
_MOST = 20
_LONGEST = 400
"""Characters of a query; the service refuses longer ones."""

# It refuses countries and languages other than these, so others are not sent.
_COUNTRIES = frozenset(
    "AR AU AT BE BR CA CL DK FI FR DE GR HK IN ID IT JP KR MY MX NL NZ NO CN PL PT PH RU SA ZA ES SE CH TW TR GB "
    "US".split()
)
_LANGUAGES = frozenset(
    "ar eu bn bg ca hr cs da nl en et fi fr gl de el gu he hi hu is it kn ko lv lt ms ml mr pl pa ro ru sr sk sl es sv "
    "ta te th tr uk vi".split()
)
_RENAMED = {"ja": "jp", "no": "nb", "nb": "nb", "pt": "pt-pt", "zh": "zh-hans"}
_HINTS = {
    422: "refused the search or the key in `web_search.key` (422).",
    402: "has no searches left in its plan (402).",
}


class _Found(msgspec.Struct):
    url: str | None = None
    title: str | None = None
    description: str | None = None
    extra_snippets: list[str] | None = None


class _Web(msgspec.Struct):
    results: list[_Found] = []


class _Answer(msgspec.Struct):
    web: _Web | None = None


class BraveSearch:
    """The WebSearch port over Brave's API."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        count = _MOST if query.allowed or query.blocked else min(_MOST, max(1, query.limit))
        text = with_sites(query)
        asked = {
            "q": text if len(text) <= _LONGEST else query.text[:_LONGEST],
            "count": str(count),
            "text_decorations": "false",
            "result_filter": "web",
        }
        country, language = country_of(query), _language(query)
        if country in _COUNTRIES:
            asked["country"] = country
        if language:
            asked["search_lang"] = language
        headers = {"x-subscription-token": self._service.key}
        data = await self._service.ask("/res/v1/web/search", query=asked, headers=headers, hints=_HINTS)
        answer = self._service.decode(data, _Answer)
        return narrowed(
            [
                SearchResult(
                    one.url or "", one.title or "", " ".join([one.description or "", *(one.extra_snippets or [])])
                )
                for one in (answer.web.results if answer.web else [])
            ],
            query,
        )


def _language(query: SearchQuery) -> str:
    language, country = language_of(query), country_of(query)
    if language == "pt" and country == "BR":
        return "pt-br"
    if language == "zh" and country in ("TW", "HK"):
        return "zh-hant"
    return _RENAMED.get(language, language if language in _LANGUAGES else "")
