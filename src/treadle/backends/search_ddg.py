"""DuckDuckGo's page for browsers without scripts: no key, and no promise either.

It is made for people. It changes without notice and turns programs away after some searches; that is a ToolFault which
says so. Good for trying things out on a laptop, not for a server that others rely on.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urljoin, urlsplit

from treadle.backends.html_tokens import Close, Open, Text, tokens
from treadle.backends.search_wire import Service, country_of, language_of, narrowed, with_sites
from treadle.errors import ToolFault
from treadle.ports import SearchQuery, SearchResult

URL = "https://html.duckduckgo.com"
_TURNED_AWAY = (
    "took this server for a robot and refused. It is not made for programs; for regular use set `web_search.kind` to "
    "a service that is."
)
_HINTS = dict.fromkeys((202, 403, 418, 429), _TURNED_AWAY)
_AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"

# A country may have several; the first is taken unless the language says otherwise.
_REGIONS = (
    "ar-es au-en at-de be-fr be-nl br-pt bg-bg ca-en ca-fr cl-es cn-zh co-es hr-hr cz-cs dk-da ee-et fi-fi fr- "
    "fr de-de gr-el hk-tzh hu-hu in-en id-id ie-en il-he it-it jp-jp kr-kr lv-lv lt-lt my-ms mx-es nl-nl nz-en "
    "no-no pe-es ph-en pl-pl pt-pt ro-ro ru-ru sg-en sk-sk sl-sl za-en es-es se-sv ch-de ch-fr ch-it tw-tzh "
    "th-th tr-tr ua-uk uk-en us-en us-es ve-es vn-vi"
).split()


class DuckDuckGoSearch:
    """The WebSearch port over a page that is meant for people."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        asked = {"q": with_sites(query)[:490]}
        region = region_of(query)
        if region:
            asked["kl"] = region
        headers = {"accept": "text/html", "user-agent": _AGENT}
        data = await self._service.ask("/html/", query=asked, headers=headers, hints=_HINTS)
        page = data.decode("utf-8", "replace")
        found = results_of(page)
        if not found and ("anomaly" in page or "challenge" in page):
            raise ToolFault(f"The search service {self._service.name} {_TURNED_AWAY}")
        if not found and "no-results" not in page and "No  results" not in page:
            raise ToolFault(f"The search service {self._service.name} sent a page in which no results could be read.")
        return narrowed(found, query)


def region_of(query: SearchQuery) -> str:
    """The service's own name for the query's country and language; empty if it has none."""
    country = {"gb": "uk", "si": "sl"}.get(country_of(query).lower(), country_of(query).lower())
    wanted = f"{country}-{language_of(query)}"
    if wanted in _REGIONS:
        return wanted
    return next((region for region in _REGIONS if country and region.startswith(country + "-")), "")


def results_of(page: str) -> list[SearchResult]:
    """The results on the page, without advertisements."""
    found: list[SearchResult] = []
    part = ""
    words: list[str] = []
    for token in tokens(page):
        match token:
            case Open(name="a"):
                classes = token.attributes.get("class", "").split()
                part, words = "", []
                if "result__a" in classes:
                    url = target_of(token.attributes.get("href", ""))
                    if url:
                        part = "title"
                        found.append(SearchResult(url, "", ""))
                    else:
                        found.append(SearchResult("", "", ""))  # an advertisement keeps its own snippet
                elif "result__snippet" in classes and found:
                    part = "text"
            case Text(text=text) if part:
                words.append(text)
            case Close(name="a") if part:
                setattr(found[-1], part, "".join(words).strip())
                part = ""
            case _:
                pass
    return [result for result in found if result.url]


def target_of(href: str) -> str:
    """Where a result leads; empty for advertisements, which go through the service's own counter."""
    try:
        parts = urlsplit(urljoin(URL, href))
        if not (parts.hostname or "").endswith("duckduckgo.com"):
            return parts.geturl()
        return next(iter(parse_qs(parts.query).get("uddg", [])), "") if parts.path == "/l/" else ""
    except ValueError:
        return ""
