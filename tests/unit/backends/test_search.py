"""The search services over sockets: what they are asked, what comes of their answers, and how they fail."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from treadle.backends.search import OFFERS, open_search
from treadle.backends.search_ddg import region_of
from treadle.backends.search_wire import narrowed, permitted, with_sites
from treadle.errors import ToolFault
from treadle.ports import SearchQuery, SearchResult, WebSearch
from treadle.testing.web import FakeWeb

KINDS = ["searxng", "brave", "tavily", "exa", "duckduckgo"]
KEYED = ["brave", "tavily", "exa"]
KEY = "sk-very-secret"
RESULTS = [
    SearchResult("https://a.example/1?x=1&y=2", "One & <b>", "First  text\nhere."),
    SearchResult("https://docs.a.example/2", "Two", "Second."),
    SearchResult("https://b.example/3", "Three", "Third."),
    SearchResult("https://nota.example/4", "Four", "Fourth."),
    SearchResult("https://a.example/1?x=1&y=2", "One again", "Twice."),
    SearchResult("javascript:alert(1)", "Bad", "Bad."),
]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as found:
        yield found


def opened(kind: str, web: FakeWeb, session: aiohttp.ClientSession) -> WebSearch:
    return open_search(kind, web.origin + "/", KEY, session)


@pytest.mark.parametrize("kind", KINDS)
async def test_results_come_once_each_and_tidy(kind: str, web: FakeWeb, session: aiohttp.ClientSession) -> None:
    web.results = RESULTS
    found = await opened(kind, web, session).search(SearchQuery(text="what is new?"))
    assert [one.url for one in found] == [one.url for one in RESULTS[:4]]
    assert (found[0].title, found[0].text) == ("One & <b>", "First text here.")


@pytest.mark.parametrize("kind", KINDS)
async def test_domains_are_kept_to_whatever_the_service_sends(
    kind: str, web: FakeWeb, session: aiohttp.ClientSession
) -> None:
    web.results = RESULTS
    query = SearchQuery(text="x", allowed=["A.example", "https://b.example/path"], blocked=["*.docs.a.example"])
    found = await opened(kind, web, session).search(query)
    assert [one.url for one in found] == [RESULTS[0].url, RESULTS[2].url]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_limit_is_kept(kind: str, web: FakeWeb, session: aiohttp.ClientSession) -> None:
    web.results = RESULTS
    assert len(await opened(kind, web, session).search(SearchQuery(text="x", limit=2))) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_found_is_an_empty_list(kind: str, web: FakeWeb, session: aiohttp.ClientSession) -> None:
    assert await opened(kind, web, session).search(SearchQuery(text="x")) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (403, {}, "no", "refused"),
        (401, {}, "no", ""),
        (429, {"retry-after": "17"}, "", ""),
        (500, {}, "<html>", "500"),
        (503, {}, "", "503"),
        (400, {}, '{"detail": "sk-very-secret is wrong"}', "400"),
        (301, {"location": "http://169.254.169.254/"}, "", "moved"),
        (200, {"content-type": "text/html"}, "<html>Log in</html>", ""),
        (200, {}, "", ""),
        (200, {}, "[" * 100_000, ""),
        (200, {}, b"\xff\xfe\xfa", ""),
    ],
)
async def test_a_service_that_refuses_is_a_plain_fault_without_the_key(
    kind: str,
    status: int,
    headers: dict[str, str],
    body: str | bytes,
    said: str,
    web: FakeWeb,
    session: aiohttp.ClientSession,
) -> None:
    web.refuse_search(status, body, headers)
    with pytest.raises(ToolFault) as fault:
        await opened(kind, web, session).search(SearchQuery(text="x"))
    assert OFFERS[kind].title in fault.value.message
    assert said in fault.value.message
    assert KEY not in fault.value.message
    assert len(web.requests) == 1


@pytest.mark.parametrize("kind", KEYED)
async def test_a_service_at_its_limit_says_how_long(kind: str, web: FakeWeb, session: aiohttp.ClientSession) -> None:
    later = email.utils.formatdate(time.time() + 120, usegmt=True)
    for headers, said in (
        ({"retry-after": "17"}, "try again in 17 s"),
        ({"x-ratelimit-reset": "3, 1419704"}, "try again in 3 s"),
        ({}, "try again later"),
        ({"retry-after": "soon"}, "try again later"),
        ({"retry-after": later}, "try again in 1"),
    ):
        web.refuse_search(429, "", headers)
        with pytest.raises(ToolFault, match=said):
            await opened(kind, web, session).search(SearchQuery(text="x"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_that_is_not_there_is_a_plain_fault(kind: str, session: aiohttp.ClientSession) -> None:
    with pytest.raises(ToolFault, match="cannot be reached"):
        await open_search(kind, "http://127.0.0.1:9", KEY, session).search(SearchQuery(text="x"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_that_is_silent_is_given_up(
    kind: str, web: FakeWeb, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.backends.search_wire.SECONDS", 0.2)
    never = asyncio.Event()
    for path in ("/search", "/res/v1/web/search", "/html/"):
        web.slow(path, b"{", never)
    with pytest.raises(ToolFault, match="did not answer"):
        await opened(kind, web, session).search(SearchQuery(text="x"))
    await web.requests[0].disconnected.within()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_endless_answer_is_a_fault(kind: str, web: FakeWeb, session: aiohttp.ClientSession) -> None:
    for path in ("/search", "/res/v1/web/search", "/html/"):
        web.endless(path)
    with pytest.raises(ToolFault, match="bytes"):
        await opened(kind, web, session).search(SearchQuery(text="x"))


async def test_searxng_is_asked_for_json_in_the_language_of_the_caller(
    web: FakeWeb, session: aiohttp.ClientSession
) -> None:
    query = SearchQuery(text="x y", allowed=["a.example"], blocked=["b.example"], country="de", locale="de-AT")
    await open_search("searxng", web.origin + "/search", "", session).search(query)
    request = web.requests[0]
    assert request.query == {
        "q": "x y site:a.example -site:b.example",
        "format": "json",
        "categories": "general",
        "language": "de-DE",
    }
    assert "authorization" not in request.headers


async def test_searxng_without_json_says_what_to_change(web: FakeWeb, session: aiohttp.ClientSession) -> None:
    web.refuse_search(403, "<html>Forbidden</html>")
    with pytest.raises(ToolFault, match=r"search\.formats"):
        await opened("searxng", web, session).search(SearchQuery(text="x"))


async def test_searxng_whose_engines_are_silent_is_not_an_empty_result(
    web: FakeWeb, session: aiohttp.ClientSession
) -> None:
    web.refuse_search(200, '{"results": [], "unresponsive_engines": [["google", "timeout"], ["bing", null]]}')
    with pytest.raises(ToolFault, match="google, bing"):
        await opened("searxng", web, session).search(SearchQuery(text="x"))


async def test_brave_is_asked_with_the_key_in_its_header(web: FakeWeb, session: aiohttp.ClientSession) -> None:
    search = opened("brave", web, session)
    await search.search(SearchQuery(text="x", country="br", locale="pt", limit=5))
    await search.search(SearchQuery(text="x", country="ZZ", locale="ja-JP", allowed=["a.example", "b.example"]))
    await search.search(SearchQuery(text="y" * 500))
    first, second, third = web.requests
    assert first.headers["x-subscription-token"] == KEY
    assert KEY not in str(first.query)
    assert {"q": "x", "country": "BR", "search_lang": "pt-br", "count": "5"}.items() <= first.query.items()
    assert second.query["q"] == "x (site:a.example OR site:b.example)"
    assert second.query["search_lang"] == "jp"
    assert second.query["count"] == "20"
    assert "country" not in second.query
    assert len(third.query["q"]) == 400


async def test_tavily_is_asked_with_domains_and_the_country_s_name(
    web: FakeWeb, session: aiohttp.ClientSession
) -> None:
    query = SearchQuery(text="x", allowed=["https://a.example"], blocked=["b.example"], country="GB", limit=99)
    await opened("tavily", web, session).search(query)
    request = web.requests[0]
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json == {
        "query": "x",
        "max_results": 20,
        "include_domains": ["a.example"],
        "exclude_domains": ["b.example"],
        "country": "united kingdom",
    }


async def test_exa_is_asked_with_domains_and_the_country(web: FakeWeb, session: aiohttp.ClientSession) -> None:
    search = opened("exa", web, session)
    await search.search(SearchQuery(text="x", blocked=["b.example"], country="us", limit=3))
    request = web.requests[0]
    assert request.headers["x-api-key"] == KEY
    assert request.json == {
        "query": "x",
        "numResults": 3,
        "contents": {"text": {"maxCharacters": 1000}},
        "excludeDomains": ["b.example"],
        "userLocation": "US",
    }


async def test_duckduckgo_is_asked_for_a_region_and_its_advertisements_are_left_out(
    web: FakeWeb, session: aiohttp.ClientSession
) -> None:
    web.results = RESULTS[2:3]
    found = await opened("duckduckgo", web, session).search(SearchQuery(text="x", country="GB"))
    assert [one.url for one in found] == ["https://b.example/3"]
    assert web.requests[0].query == {"q": "x", "kl": "uk-en"}


@pytest.mark.parametrize(
    ("country", "locale", "region"),
    [("DE", None, "de-de"), ("CH", "fr-CH", "ch-fr"), ("CH", "en", "ch-de"), ("JP", "ja", "jp-jp"), ("ZZ", "en", "")],
)
def test_duckduckgo_s_regions_are_its_own(country: str, locale: str | None, region: str) -> None:
    assert region_of(SearchQuery(text="x", country=country, locale=locale)) == region


@pytest.mark.parametrize("kind", KINDS)
async def test_words_that_are_no_text_are_a_fault(kind: str, web: FakeWeb, session: aiohttp.ClientSession) -> None:
    with pytest.raises(ToolFault, match="half a character"):
        await opened(kind, web, session).search(SearchQuery(text="x\ud800"))
    assert web.requests == []


@pytest.mark.parametrize(
    ("status", "page"), [(202, "<html>"), (200, '<div class="anomaly-modal">Select all ducks</div>'), (418, "")]
)
async def test_duckduckgo_that_takes_us_for_a_robot_says_what_to_do(
    status: int, page: str, web: FakeWeb, session: aiohttp.ClientSession
) -> None:
    web.refuse_search(status, page)
    with pytest.raises(ToolFault, match=r"web_search\.kind"):
        await opened("duckduckgo", web, session).search(SearchQuery(text="x"))


@pytest.mark.parametrize(
    ("kind", "url", "key", "said"),
    [
        ("google", "", "", "web_search.kind"),
        ("", "", "", "web_search.kind"),
        ("searxng", "", "", "web_search.url"),
        ("searxng", "search.example", "", "web_search.url"),
        ("searxng", "ftp://search.example", "", "web_search.url"),
        ("brave", "", "", "web_search.key"),
        ("tavily", "", "", "web_search.key"),
        ("exa", "", "", "web_search.key"),
        ("exa", "", "a\nb", "web_search.key"),
    ],
)
async def test_a_bad_configuration_is_an_error_that_names_the_setting(
    kind: str, url: str, key: str, said: str, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        open_search(kind, url, key, session)


@pytest.mark.parametrize("kind", [*KEYED, "duckduckgo"])
async def test_services_of_their_own_need_no_address(kind: str, session: aiohttp.ClientSession) -> None:
    assert open_search(kind, "", KEY, session) is not None


@pytest.mark.parametrize(
    ("url", "allowed", "blocked", "good"),
    [
        ("https://a.example/", [], [], True),
        ("https://a.example/", ["a.example"], [], True),
        ("https://x.y.a.example/", ["a.example"], [], True),
        ("https://nota.example/", ["a.example"], [], False),
        ("https://a.example.evil.example/", ["a.example"], [], False),
        ("https://evil.example/a.example", ["a.example"], [], False),
        ("https://a.example@evil.example/", ["a.example"], [], False),
        ("https://A.EXAMPLE./", ["a.example"], [], True),
        ("https://a.example:8443/", ["a.example"], [], True),
        ("https://x.a.example/", ["a.example"], ["x.a.example"], False),
        ("https://x.a.example/", [], ["a.example"], False),
        ("https://xn--bcher-kva.example/", ["bücher.example"], [], True),
        ("https://a.example/", [""], [], False),
        ("https://a.example/", [], [""], True),
        ("ftp://a.example/", [], [], False),
        ("http://[bad", [], [], False),
        ("", [], [], False),
    ],
)
def test_domains_include_what_is_below_them(url: str, allowed: list[str], blocked: list[str], good: bool) -> None:
    assert permitted(url, SearchQuery(text="x", allowed=allowed, blocked=blocked)) is good


def test_long_snippets_are_cut_and_site_operators_bounded() -> None:
    query = SearchQuery(text="x", allowed=[f"{number}.example" for number in range(50)])
    assert with_sites(query).count("site:") == 10
    found = narrowed([SearchResult("https://a.example/", "t" * 1000, "x" * 10_000)], SearchQuery(text="x"))
    assert (len(found[0].title), len(found[0].text)) == (300, 2000)
