"""Plug-ins: what installed packages offer under our entry-point groups, which of it may run, and what it is given.

A plug-in is a class named by an entry point, with `Config`, a msgspec Struct that is its section of the configuration,
and `async open(config, services)`, which gives an object with the methods of the group's port. What comes with Treadle
takes the same way. A package that merely is installed never runs: the configuration has to name it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

import msgspec

from treadle.errors import ServerError
from treadle.wire.tools import HOSTED

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import aiohttp

    from treadle.ports import Extractor

TOOLS = "treadle.tools"
SEARCH = "treadle.search"
MODELS = "treadle.models"
VECTOR = "treadle.vector"
BLOBS = "treadle.blobs"
EXTRACT = "treadle.extract"

METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        TOOLS: ("declare", "run", "exclusive"),
        SEARCH: ("search",),
        MODELS: ("capabilities", "stream", "models"),
        VECTOR: ("add", "publish", "remove", "drop", "nearest", "matching", "chunks", "read"),
        BLOBS: ("put", "read", "delete", "stored"),
        EXTRACT: ("chunks", "text"),
    }
)
"""The groups, each with what an object must have that goes for its port: ServerTool, WebSearch, ChatModel, VectorIndex,
Blobs, Extractor."""

OPEN_SECONDS = 30.0
"""How long a plug-in may take to open; the server is not ready before."""

TOOL_TYPES = HOSTED | {"function", "custom", "namespace"}
"""Types of tools that have a meaning already. Dispatch asks the built-in ones first, so a plug-in would never be."""

INDEXES = ("sqlite", "pgvector", "qdrant")
"""The vector indexes that come with Treadle, which open when they are first used and so are no plug-ins."""

_OURS = "treadle"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SETTING = "allowed"
"""Beside the sections of plug-ins stands the setting of this name."""
_LONGEST = 300


Secret = Annotated[str, msgspec.Meta(extra={"secret": True})]
"""A setting of a plug-in that nobody is shown."""


class BrokenPlugin(Exception):
    """A plug-in cannot be used; the message names its entry point, its distribution and the reason, in one line."""


class Plugin(Protocol):
    """What an entry point leads to. Not to be inherited from: any class like this will do."""

    Config: type[msgspec.Struct]

    @classmethod
    async def open(cls, config: msgspec.Struct, services: PluginServices) -> object: ...


@dataclass(slots=True)
class PluginServices:
    """What a plug-in is given when it is opened."""

    http: aiohttp.ClientSession
    """Goes to public addresses, to those in the plug-in's own section, and to what `outgoing.allow` lists. Closed after
    everything that `on_stop` was told."""
    log: logging.Logger
    documents: Extractor
    """What reads documents without plug-ins: for readers that turn what it does not know into what it does."""
    stopping: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def on_stop(self, close: Callable[[], Awaitable[None]]) -> None:
        """Has `close` awaited when the server stops, last told first."""
        self.stopping.append(close)


@dataclass(frozen=True, slots=True)
class Offer:
    """An entry point in one of our groups. Nothing of its package has been imported."""

    group: str
    name: str
    value: str
    distribution: str
    version: str
    entry_point: EntryPoint = field(repr=False, compare=False)

    @property
    def built_in(self) -> bool:
        return self.distribution == _OURS and self.value.startswith(f"{_OURS}.")

    def __str__(self) -> str:
        return f"`{self.name} = {self.value}` ({self.group}) of {self.distribution} {self.version}"


State = Literal["built in", "allowed", "not allowed", "refused"]


@dataclass(frozen=True, slots=True)
class Standing:
    """An offer, and whether it may run; `why` not."""

    offer: Offer
    state: State
    why: str = ""


def survey(allowed: Sequence[str]) -> list[Standing]:
    """Everything that is installed, by group and name, and what becomes of it if `allowed` names what may run."""
    from importlib.metadata import entry_points  # reads the metadata of all that is installed

    offers: list[Offer] = []
    for group in METHODS:
        for entry in entry_points(group=group):
            dist = entry.dist
            name, version = (dist.name, dist.version) if dist is not None else ("an unknown distribution", "")
            offers.append(Offer(group, entry.name, entry.value, _normal(name), version, entry))
    offers.sort(key=lambda offer: (offer.group, offer.name, offer.distribution))
    return [_standing(offer, offers, allowed) for offer in offers]


def load(offer: Offer) -> type[Plugin]:
    """The class that the entry point leads to. BrokenPlugin if there is none, or one that is no plug-in."""
    try:
        found: object = offer.entry_point.load()
    except (Exception, SystemExit) as error:
        raise _broken(offer, f"cannot be imported: {reason(error)}") from error
    config = getattr(found, "Config", None)
    if not isinstance(found, type):
        raise _broken(offer, "is not a class")
    if not (isinstance(config, type) and issubclass(config, msgspec.Struct)):
        raise _broken(offer, "has no `Config` that is a msgspec Struct")
    if not inspect.iscoroutinefunction(getattr(found, "open", None)):
        raise _broken(offer, "has no `async open(config, services)`")
    return cast("type[Plugin]", found)


async def opened(offer: Offer, config: msgspec.Struct, services: PluginServices) -> object:
    """The object of the port, from a plug-in whose section is `config`. BrokenPlugin if there comes none."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            found = await load(offer).open(config, services)
    except TimeoutError:
        raise _broken(offer, f"did not open within {OPEN_SECONDS:g} s") from None
    except BrokenPlugin:
        raise
    except Exception as error:
        if offer.built_in and isinstance(error, ServerError):
            raise  # it names a setting of ours
        raise _broken(offer, f"cannot be opened: {reason(error)}") from error
    lacking = [name for name in METHODS[offer.group] if not hasattr(found, name)]
    if lacking:
        raise _broken(offer, f"gave a {type(found).__name__} without {', '.join(f'`{name}`' for name in lacking)}")
    return found


def reason(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_LONGEST]}" if text else type(error).__name__


def _broken(offer: Offer, why: str) -> BrokenPlugin:
    return BrokenPlugin(f"The plug-in {offer} {why}.")


def _standing(offer: Offer, offers: Sequence[Offer], allowed: Sequence[str]) -> Standing:
    if offer.built_in:
        return Standing(offer, "built in")
    namesakes = [other for other in offers if other.name == offer.name and other is not offer]
    if not _NAME.fullmatch(offer.name) or offer.name == _SETTING:
        return Standing(offer, "refused", "a name has letters, digits, `-` and `_`, and is not `allowed`")
    if offer.group == TOOLS and offer.name in TOOL_TYPES:
        return Standing(offer, "refused", f"`{offer.name}` is the type of a built-in tool")
    if offer.group == VECTOR and offer.name in INDEXES:
        return Standing(offer, "refused", f"`{offer.name}` is an index that comes with Treadle")
    if any(other.built_in for other in namesakes):
        return Standing(offer, "refused", f"`{offer.name}` is the name of a plug-in that comes with Treadle")
    if offer.name not in allowed:
        return Standing(offer, "not allowed", f"`plugins.{_SETTING}` does not name it")
    if namesakes:
        others = " and ".join(str(other) for other in namesakes)
        return Standing(offer, "refused", f"{others} has the same name, so it is not clear which is meant")
    return Standing(offer, "allowed")


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
