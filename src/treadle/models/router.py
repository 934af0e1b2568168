"""Names to models: a dictionary, filled from the configuration and from what the model servers list.

Ids are `provider/upstream-id`; the bare upstream id works while it is unambiguous; aliases come first. The lists are
a cache: bounded by the providers' own lists, refreshed when older than LIST_SECONDS or when a name is not found.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from treadle.errors import InvalidRequest, ServerError, UnknownModel
from treadle.models.suggestions import unknown_model
from treadle.ports import ChatModel, Embedder, ModelEntry, RawModel, RawRoute, Route

log = logging.getLogger("treadle.router")

LIST_SECONDS = 300.0
FAILED_SECONDS = 30.0
"""A provider that could not be asked is left alone for this long: every request would wait for it."""
MISS_SECONDS = 5.0
"""A name that is not found makes the lists be asked again, but not more often than this."""


@dataclass(slots=True)
class ProviderEntry:
    """A provider as the router sees it."""

    name: str
    model: ChatModel
    raw: RawModel | None = None
    closed_list: bool = False
    """Its list names everything it serves."""
    embedded: bool = False
    """Runs inside this installation."""
    listed: list[str] = field(default_factory=list)
    asked_at: float = float("-inf")
    reachable: bool | None = None


class ModelRouter:
    """The Router port over the providers that were added when the server started."""

    def __init__(
        self,
        aliases: Mapping[str, str],
        embedders: Mapping[str, Embedder] | None = None,
        installed: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`installed` tells by its id whether an embedder could run now; it may read files."""
        self.providers: dict[str, ProviderEntry] = {}
        self._aliases = dict(aliases)
        self.embedders = dict(embedders or {})
        self._installed = installed
        self._lock = asyncio.Lock()

    def add(self, entry: ProviderEntry) -> None:
        self.providers[entry.name] = entry

    async def route(self, name: str) -> Route:
        if embedder := self._embedder(name):
            raise InvalidRequest(f"The model '{embedder}' makes embeddings and cannot chat.", param="model")
        entry, upstream = await self.locate(name)
        return Route(entry.model, upstream, entry.model.capabilities(upstream), entry.name)

    async def raw(self, name: str) -> RawRoute:
        if embedder := self._embedder(name):
            return RawRoute(embedder, embedder=self.embedders[embedder])
        entry, upstream = await self.locate(name)
        if entry.raw is None:
            raise self._unknown(name)
        return RawRoute(upstream, server=entry.raw)

    async def locate(self, name: str) -> tuple[ProviderEntry, str]:
        """The provider and the name it knows the model by. UnknownModel if there is none."""
        asked = name
        name = self._aliases.get(name, name)
        provider, slash, rest = name.partition("/")
        if slash and rest and provider in self.providers:
            return await self._check(self.providers[provider], rest, asked)
        holders = self._holders(name)
        if not holders:
            await self.refresh(LIST_SECONDS if self._fresh() else 0.0, missed=True)
            holders = self._holders(name)
        if len(holders) == 1:
            return holders[0], self._upstream(holders[0], name)
        if len(holders) > 1:
            names = ", ".join(f"{entry.name}/{name}" for entry in holders)
            raise InvalidRequest(f"The model '{name}' is ambiguous; name one of: {names}.", param="model")
        if lone := self._lone_open(name):
            return lone, name
        raise self._unknown(asked)

    async def models(self) -> list[ModelEntry]:
        await self.refresh(LIST_SECONDS)
        found = [
            ModelEntry(f"{entry.name}/{upstream}", entry.name, upstream)
            for entry in self.providers.values()
            for upstream in entry.listed
        ]
        for alias, target in self._aliases.items():
            provider = target.partition("/")[0]
            found.append(ModelEntry(alias, provider if provider in self.providers else "alias", target))
        for name, embedder in self.embedders.items():
            if not await asyncio.to_thread(self._installed, name):
                continue
            provider, _, upstream = name.partition("/")
            found.append(ModelEntry(name, provider, upstream, embedder.dimensions))
        return found

    async def refresh(self, older_than: float, *, missed: bool = False) -> None:
        """Asks the providers whose list is older than `older_than` seconds, together."""
        limit = MISS_SECONDS if missed else older_than
        async with self._lock:
            now = time.monotonic()
            stale = [
                entry
                for entry in self.providers.values()
                if now - entry.asked_at > (limit if entry.reachable is not False else max(limit, FAILED_SECONDS))
            ]
            await asyncio.gather(*(self._ask(entry) for entry in stale))

    def _fresh(self) -> bool:
        return all(time.monotonic() - entry.asked_at < LIST_SECONDS for entry in self.providers.values())

    async def _ask(self, entry: ProviderEntry) -> None:
        try:
            entry.listed, entry.reachable = await entry.model.models(), True
        except ServerError as fault:
            level = logging.INFO if entry.embedded else logging.WARNING  # what is not installed is not missed
            log.log(level, "the models of %s are not known: %s", entry.name, fault.message)
            entry.reachable = False
        entry.asked_at = time.monotonic()

    async def _check(self, entry: ProviderEntry, upstream: str, name: str) -> tuple[ProviderEntry, str]:
        """A provider that lists all it serves can say no before it is asked for an answer."""
        if entry.closed_list and upstream not in entry.listed:
            await self.refresh(0.0, missed=True)
            if entry.reachable and upstream not in entry.listed:
                raise self._unknown(name)
        return entry, upstream

    def _embedder(self, name: str) -> str | None:
        """The id of the embedder of ours that goes by the name."""
        target = self._aliases.get(name, name)
        return next((full for full in self.embedders if target in (full, full.partition("/")[2])), None)

    def _unknown(self, name: str) -> UnknownModel:
        listed = [f"{entry.name}/{model}" for entry in self.providers.values() for model in entry.listed]
        return unknown_model(name, self.providers, [*listed, *self._aliases, *self.embedders], self._aliases)

    def _holders(self, name: str) -> list[ProviderEntry]:
        names = (name, f"{name}:latest", f"models/{name}")
        return [entry for entry in self.providers.values() if any(n in entry.listed for n in names)]

    @staticmethod
    def _upstream(entry: ProviderEntry, name: str) -> str:
        return next((n for n in (name, f"{name}:latest", f"models/{name}") if n in entry.listed), name)

    def _lone_open(self, name: str) -> ProviderEntry | None:
        """With one provider whose list is not known to be whole, an unlisted name is its to judge."""
        remote = [entry for entry in self.providers.values() if not entry.embedded]
        if len(remote) != 1 or (remote[0].reachable and remote[0].listed and remote[0].closed_list):
            return None
        return remote[0]
