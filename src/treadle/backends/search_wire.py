"""What all search services have in common: one bounded request, plain faults, and domains that are kept to."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import idna
import msgspec

from treadle.errors import ToolFault
from treadle.ports import SearchQuery, SearchResult

SECONDS = 15.0
MAX_BODY = 4_194_304
MAX_SNIPPET = 2000
"""Characters kept of what a service says about one result."""
T = TypeVar("T")


class Service:
    """A search service: its name for messages, its base address without a final slash, and its key."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession, key: str = "") -> None:
        self.name = name
        self.url = url
        self.session = session
        self.key = key

    async def ask(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        hints: Mapping[int, str] | None = None,
    ) -> bytes:
        """The body of an answer with status 200; a `body` makes it a POST. ToolFault for everything else; `hints`
        say what a status means to this service. No redirects: a key must not follow one."""
        try:
            payload = None if body is None else msgspec.json.encode(body)
            for value in (query or {}).values():
                value.encode()
        except UnicodeEncodeError:
            raise ToolFault("The words to search for contain half a character.") from None
        sent = {"accept": "application/json", **(headers or {})}
        if payload is not None:
            sent["content-type"] = "application/json"
        try:
            async with (
                asyncio.timeout(SECONDS),
                self.session.request(
                    "GET" if payload is None else "POST",
                    self.url + path,
                    params=query,
                    data=payload,
                    headers=sent,
                    allow_redirects=False,
                ) as response,
            ):
                found = bytearray()
                while (piece := await response.content.readany()) and len(found) <= MAX_BODY:
                    found += piece
                if response.status != 200:
                    raise self._refusal(response.status, response.headers, bytes(found), hints or {})
        except TimeoutError:
            raise ToolFault(f"The search service {self.name} did not answer within {SECONDS:g} s.") from None
        except (aiohttp.ClientError, OSError):
            raise ToolFault(f"The search service {self.name} cannot be reached.") from None
        if len(found) > MAX_BODY:
            raise ToolFault(f"The search service {self.name} sent more than {MAX_BODY} bytes.")
        return bytes(found)

    def decode(self, data: bytes, kind: type[T]) -> T:
        """The JSON of an answer. ToolFault if it is something else, such as a page for people."""
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            what = "an HTML page" if data.lstrip()[:1] == b"<" else "something else"
            raise ToolFault(
                f"The search service {self.name} sent {what} instead of JSON; is `web_search.url` right?"
            ) from None

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes, hints: Mapping[int, str]) -> ToolFault:
        name = f"The search service {self.name}"
        if status in hints:
            return ToolFault(f"{name} {hints[status]}")
        if status == 429:
            wait = wait_seconds(headers)
            later = f"try again in {wait} s" if wait is not None else "try again later"
            return ToolFault(f"{name} is at its limit; {later}.")
        if 300 <= status < 400:
            return ToolFault(f"{name} has moved; set `web_search.url` to where it is now.")
        if status == 401:
            return ToolFault(f"{name} does not accept the key in `web_search.key`.")
        if status == 403:
            return ToolFault(f"{name} refused the search (403).")
        if status >= 500:
            return ToolFault(f"{name} failed ({status}).")
        return ToolFault(f"{name} refused the search ({status}){self._reason(body)}.")

    def _reason(self, body: bytes) -> str:
        """What the service says itself, if it is short and plain text; never with the key."""
        text = " ".join(body[:2000].decode("utf-8", "replace").split())
        if not text or text.startswith("<"):
            return ""
        if self.key:
            text = text.replace(self.key, "***")
        return f": {text[:200]}"


def wait_seconds(headers: Mapping[str, str]) -> int | None:
    """How long a service at its limit wants to be left alone: Retry-After, or the nearest of Brave's reset times."""
    said = headers.get("retry-after", "").strip()
    if said.isdecimal():
        return int(said[:9])
    if said:
        try:
            at = email.utils.parsedate_to_datetime(said).timestamp()
        except (ValueError, OverflowError):
            return None
        return max(0, round(at - time.time()))
    resets = [part.strip() for part in headers.get("x-ratelimit-reset", "").split(",")]
    waits = [int(part[:9]) for part in resets if part.isdecimal()]
    return min(waits) if waits else None


def narrowed(results: Sequence[SearchResult], query: SearchQuery) -> list[SearchResult]:
    """The results that the query permits, each address once, at most `limit`; services do not always keep to it."""
    kept: dict[str, SearchResult] = {}
    for result in results:
        if result.url in kept or not permitted(result.url, query):
            continue
        text = " ".join(result.text.split())
        title = " ".join(result.title.split())
        kept[result.url] = SearchResult(url=result.url, title=title[:300], text=text[:MAX_SNIPPET])
        if len(kept) >= query.limit:
            break
    return list(kept.values())


def permitted(url: str, query: SearchQuery) -> bool:
    """An http or https address, in an allowed domain or below it, and in no blocked one."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not host:
        return False
    if any(_within(host, domain) for domain in query.blocked):
        return False
    return not query.allowed or any(_within(host, domain) for domain in query.allowed)


def with_sites(query: SearchQuery) -> str:
    """The query's text with the operators by which most engines narrow a search to domains."""
    parts = [query.text]
    sites = [f"site:{bare_domain(domain)}" for domain in query.allowed[:10]]
    if len(sites) == 1:
        parts += sites
    elif sites:
        parts.append(f"({' OR '.join(sites)})")
    parts += [f"-site:{bare_domain(domain)}" for domain in query.blocked[:10]]
    return " ".join(parts)


def bare_domain(domain: str) -> str:
    """A domain as it is compared, from what callers write: `https://www.example.com/`, `*.example.com`."""
    text = domain.strip().lower()
    text = text.partition("://")[2] or text
    host = text.partition("/")[0].partition(":")[0].removeprefix("*").strip(".")
    try:
        return host if host.isascii() else idna.encode(host, uts46=True).decode("ascii")
    except UnicodeError:
        return host


def country_of(query: SearchQuery) -> str:
    """The country as two capitals; empty if the query names none."""
    country = (query.country or "").strip().upper()
    return country if len(country) == 2 and country.isascii() and country.isalpha() else ""


def language_of(query: SearchQuery) -> str:
    """The language as two or three small letters; empty if the query names none."""
    language = (query.locale or "").replace("_", "-").partition("-")[0].strip().lower()
    return language if 2 <= len(language) <= 3 and language.isascii() and language.isalpha() else ""


def _within(host: str, domain: str) -> bool:
    bare = bare_domain(domain)
    return bool(bare) and (host == bare or host.endswith("." + bare))
