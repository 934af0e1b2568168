"""The search services that come with Treadle, as plug-ins of the group `treadle.search`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from treadle.backends import search_brave, search_ddg, search_exa, search_tavily
from treadle.backends.search_searxng import SearxngSearch
from treadle.backends.search_wire import Service
from treadle.errors import InvalidRequest
from treadle.ports import WebSearch


class Outside(Protocol):
    """Of what plug-ins are given, what a search service needs."""

    @property
    def http(self) -> aiohttp.ClientSession: ...


class Offer(msgspec.Struct, frozen=True):
    """A kind of search service: its name, where it is unless the operator says otherwise, and if it wants a key."""

    title: str
    make: Callable[[Service], WebSearch]
    url: str = ""
    needs_key: bool = False


OFFERS: Mapping[str, Offer] = MappingProxyType(
    {
        "searxng": Offer("SearXNG", SearxngSearch),
        "brave": Offer("Brave", search_brave.BraveSearch, search_brave.URL, needs_key=True),
        "tavily": Offer("Tavily", search_tavily.TavilySearch, search_tavily.URL, needs_key=True),
        "exa": Offer("Exa", search_exa.ExaSearch, search_exa.URL, needs_key=True),
        "duckduckgo": Offer("DuckDuckGo", search_ddg.DuckDuckGoSearch, search_ddg.URL),
    }
)


def open_search(kind: str, url: str, key: str, session: aiohttp.ClientSession) -> WebSearch:
    """The search service that the configuration names; `session` stays the caller's to close.

    ValueError, naming the setting, for an unknown kind and for an address or key that is missing.
    """
    offer = OFFERS.get(kind)
    if offer is None:
        raise ValueError(f"`web_search.kind` must be one of {', '.join(OFFERS)}, not '{kind}'.")
    base = (url or offer.url).strip().rstrip("/")
    if not base:
        raise ValueError(f"`web_search.url` is needed: the address of the {offer.title} server.")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"`web_search.url` must be an address such as https://search.example, not '{base}'.")
    if offer.needs_key and not key:
        raise ValueError(f"`web_search.key` is needed: the key for {offer.title}.")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("`web_search.key` contains characters that no key has.")
    return offer.make(Service(offer.title, base.removesuffix("/search") if kind == "searxng" else base, session, key))


class Section(msgspec.Struct, forbid_unknown_fields=True):
    """What the configuration says about a service that comes with Treadle, under `web_search`."""

    url: str = ""
    key: str = ""


class _Kind:
    """A plug-in over one row of the table."""

    Config = Section
    kind = ""

    @classmethod
    async def open(cls, config: Section, services: Outside) -> WebSearch:
        """InvalidRequest, naming the setting, for an address or key that is missing."""
        try:
            return open_search(cls.kind, config.url, config.key, services.http)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None


class Searxng(_Kind):
    kind = "searxng"


class Brave(_Kind):
    kind = "brave"


class Tavily(_Kind):
    kind = "tavily"


class Exa(_Kind):
    kind = "exa"


class DuckDuckGo(_Kind):
    kind = "duckduckgo"
