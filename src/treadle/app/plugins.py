"""Opens the plug-ins that the configuration names, gives each what it is promised, and closes them in the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import msgspec

from treadle.access.netguard import OutgoingGuard
from treadle.backends.outgoing import guarded_session
from treadle.errors import InvalidRequest
from treadle.plugins import SEARCH, TOOLS, Offer, PluginServices, load, opened, survey
from treadle.ports import ChatModel, ServerTool, WebSearch
from treadle.settings import Settings


class OpenPlugins:
    """The plug-ins of one server: all that `plugins.allowed` names, and the search service that `web_search` names."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self.tools: dict[str, ServerTool] = {}
        """By the type under which requests declare them."""
        self.models: dict[str, ChatModel] = {}
        """By the name that stands before the slash in their ids."""
        self.search: WebSearch | None = None

    async def open(self, session: aiohttp.ClientSession, taken: Mapping[str, ServerTool]) -> None:
        """Opens them, in the order of their names. `session` serves those that come with Treadle; `taken` are tools
        from elsewhere. BrokenPlugin, or InvalidRequest naming the setting; what is open then is closed by `close`."""
        for offer in self.wanted():
            if offer.group == TOOLS and offer.name in taken:
                raise InvalidRequest(f"The plug-in {offer} has the type of a tool that this program gave itself.")
            await self.open_one(offer, session)

    def wanted(self) -> list[Offer]:
        """What is to be opened. InvalidRequest for a search service that is not there."""
        allowed, kind = self._settings.plugins.allowed, self._settings.web_search.kind
        if not allowed and not kind:
            return []
        usable = [one.offer for one in survey(allowed) if one.state in ("allowed", "built in")]
        found = [
            offer
            for offer in usable
            if (offer.name == kind if offer.group == SEARCH else not offer.built_in or offer.name in allowed)
        ]
        if kind and not any(offer.group == SEARCH for offer in found):
            raise InvalidRequest(
                f"`web_search.kind`: there is no plug-in `{kind}`. If it comes with Treadle, install that again."
            )
        return found

    async def open_one(self, offer: Offer, session: aiohttp.ClientSession) -> None:
        """One of those wanted. BrokenPlugin, or InvalidRequest naming the setting."""
        log = logging.getLogger(f"treadle.plugins.{offer.name}")
        if offer.built_in:
            given = self._settings.web_search
            config = msgspec.convert({"url": given.url, "key": given.key}, load(offer).Config)
            found = await opened(offer, config, PluginServices(session, log))
        else:
            config = self._settings.plugins.configs[offer.name]
            guard = OutgoingGuard([*self._settings.outgoing.allow, *hosts_in(config)])
            services = PluginServices(guarded_session(guard), log)
            self._stack.push_async_callback(_ended, services)
            found = await opened(offer, config, services)
        # What the port needs was looked for when it was opened; its types are its author's to check.
        match offer.group:
            case "treadle.tools":
                self.tools[offer.name] = cast("ServerTool", found)
            case "treadle.models":
                self.models[offer.name] = cast("ChatModel", found)
            case _:
                self.search = cast("WebSearch", found)

    async def close(self) -> None:
        """Lets each end its work, last opened first."""
        await self._stack.aclose()


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


async def _ended(services: PluginServices) -> None:
    try:
        for close in reversed(services.stopping):
            try:
                await close()
            except Exception:
                services.log.exception("the plug-in failed while it was stopped")
    finally:
        await services.http.close()
