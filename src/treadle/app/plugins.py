"""Opens the plug-ins that the configuration names, gives each what it is promised, and closes them in the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import TypeVar, cast
from urllib.parse import urlsplit

import aiohttp
import msgspec

from treadle.access.netguard import OutgoingGuard
from treadle.app.plugged import PluggedExtractor
from treadle.backends.outgoing import guarded_session
from treadle.errors import InvalidRequest
from treadle.plugins import (
    BLOBS,
    EXTRACT,
    INDEXES,
    MODELS,
    SEARCH,
    TOOLS,
    VECTOR,
    Offer,
    PluginServices,
    load,
    opened,
    survey,
)
from treadle.ports import Blobs, ChatModel, Extractor, ServerTool, VectorIndex, WebSearch
from treadle.retrieval.documents import Bounds, DocumentReader
from treadle.settings import Settings

T = TypeVar("T")


class OpenPlugins:
    """The plug-ins of one server: all that `plugins.allowed` names. A search service, an index, and what keeps files or
    reads documents has to be named by its setting, too."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        given = settings.knowledge
        bounds = Bounds(seconds=given.extract_seconds, memory_mb=given.extract_memory_mb)
        self.documents = DocumentReader(bounds, processes=given.workers)
        """Reads what needs no plug-in."""
        self._stack = AsyncExitStack()
        self.tools: dict[str, ServerTool] = {}
        """By the type under which requests declare them."""
        self.models: dict[str, ChatModel] = {}
        """By the name that stands before the slash in their ids."""
        self.search: WebSearch | None = None
        self._index: VectorIndex | None = None
        self._blobs: Blobs | None = None
        self._extractor: Extractor | None = None

    async def open(self, session: aiohttp.ClientSession, taken: Mapping[str, ServerTool]) -> None:
        """Opens them, in the order of their names. `session` serves those that come with Treadle; `taken` are tools
        from elsewhere. BrokenPlugin, or InvalidRequest naming the setting; what is open then is closed by `close`."""
        for offer in self.wanted():
            if offer.group == TOOLS and offer.name in taken:
                raise InvalidRequest(f"The plug-in {offer} has the type of a tool that this program gave itself.")
            await self.open_one(offer, session)

    def wanted(self) -> list[Offer]:
        """What is to be opened. InvalidRequest for one that a setting names and that is not there."""
        allowed, chosen = self._settings.plugins.allowed, chosen_by(self._settings)
        if not allowed and not any(name for _, name in chosen.values()):
            return []
        usable = [one.offer for one in survey(allowed) if one.state in ("allowed", "built in")]
        found: list[Offer] = []
        for offer in usable:
            _, name = chosen.get(offer.group, ("", offer.name))
            if offer.name == name and (not offer.built_in or offer.group == SEARCH or name in allowed):
                found.append(offer)
        for group, (path, name) in chosen.items():
            if name and not any(offer.group == group for offer in found):
                again = " If it comes with Treadle, install that again." if group == SEARCH else ""
                raise InvalidRequest(f"`{path}`: there is no plug-in `{name}`.{again}")
        return found

    def index(self) -> VectorIndex:
        return _there(self._index)

    def blobs(self) -> Blobs:
        return _there(self._blobs)

    def extractor(self) -> Extractor:
        """What reads documents: it can be had before the plug-ins are open, and works once they are."""
        if not self._settings.knowledge.extractor:
            return self.documents
        return PluggedExtractor(lambda: _there(self._extractor))

    async def open_one(self, offer: Offer, session: aiohttp.ClientSession) -> None:
        """One of those wanted. BrokenPlugin, or InvalidRequest naming the setting."""
        log = logging.getLogger(f"treadle.plugins.{offer.name}")
        if offer.built_in:
            given = self._settings.web_search
            config = msgspec.convert({"url": given.url, "key": given.key}, load(offer).Config)
            found = await opened(offer, config, PluginServices(session, log, self.documents))
        else:
            config = self._settings.plugins.configs[offer.name]
            guard = OutgoingGuard([*self._settings.outgoing.allow, *hosts_in(config)])
            services = PluginServices(guarded_session(guard), log, self.documents)
            self._stack.push_async_callback(_ended, services)
            found = await opened(offer, config, services)
        self._take(offer, found)

    def _take(self, offer: Offer, found: object) -> None:
        # What the port needs was looked for when it was opened; its types are its author's to check.
        if offer.group == TOOLS:
            self.tools[offer.name] = cast("ServerTool", found)
        elif offer.group == MODELS:
            self.models[offer.name] = cast("ChatModel", found)
        elif offer.group == SEARCH:
            self.search = cast("WebSearch", found)
        elif offer.group == VECTOR:
            self._index = cast("VectorIndex", found)
        elif offer.group == BLOBS:
            self._blobs = cast("Blobs", found)
        else:
            self._extractor = cast("Extractor", found)

    async def close(self) -> None:
        """Lets each end its work, last opened first."""
        try:
            await self._stack.aclose()
        finally:
            await self.documents.close()


def chosen_by(settings: Settings) -> dict[str, tuple[str, str]]:
    """The groups of which one plug-in at most is at work: the setting that names it, and its name or nothing."""
    index = settings.knowledge.index
    return {
        SEARCH: ("web_search.kind", settings.web_search.kind),
        VECTOR: ("knowledge.index", "" if index in INDEXES else index),
        EXTRACT: ("knowledge.extractor", settings.knowledge.extractor),
        BLOBS: ("files.blobs", settings.files.blobs),
    }


def hosts_in(config: object) -> Iterator[str]:
    """The hosts of all addresses in a plug-in's section, with their ports: what the operator wrote is permitted."""
    if isinstance(config, msgspec.Struct):
        config = msgspec.structs.asdict(config)
    if isinstance(config, str) and config.startswith(("http://", "https://")):
        try:
            parts = urlsplit(config)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return
        if host:
            yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    elif isinstance(config, Mapping):
        for value in config.values():
            yield from hosts_in(value)
    elif isinstance(config, list | tuple | set | frozenset):
        for value in config:
            yield from hosts_in(value)


def _there(part: T | None) -> T:
    """Asked for before the plug-ins are open, or after they were closed, only by mistake."""
    if part is None:
        raise RuntimeError("the plug-in is not open")
    return part


async def _ended(services: PluginServices) -> None:
    try:
        for close in reversed(services.stopping):
            try:
                await close()
            except Exception:
                services.log.exception("the plug-in failed while it was stopped")
    finally:
        await services.http.close()
