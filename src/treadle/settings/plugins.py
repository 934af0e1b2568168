"""The `plugins` section: which plug-ins may run, and a section for each, checked with the plug-in's own class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from treadle.plugins import (
    BLOBS,
    EXTRACT,
    INDEXES,
    MODELS,
    SEARCH,
    VECTOR,
    BrokenPlugin,
    Standing,
    load,
    reason,
    survey,
)
from treadle.settings.build import Builder
from treadle.settings.tree import Branch, Fault, Origin, Value, did_you_mean, join, origin_of

if TYPE_CHECKING:
    from treadle.settings.schema import Settings

Doc = msgspec.Meta

_SECTION = "plugins"
_ALLOWED = "allowed"
_WHERE = f"{_SECTION}.{_ALLOWED}"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passphrase|credentials?|authorization|headers?)$", re.IGNORECASE)
SEARCHES = ("searxng", "brave", "tavily", "exa", "duckduckgo")
"""The search services that come with Treadle."""


class _Choice(NamedTuple):
    """A setting at `path` whose `value` is one of `ours`, which come with Treadle, or a plug-in of the group. `beside`:
    whether settings are given that only ours understand."""

    group: str
    path: str
    value: str
    ours: tuple[str, ...]
    beside: bool


class Plugins(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Code of others inside this server."""

    allowed: Annotated[
        list[str], Doc(description="Plug-ins that may run, by name. No other is ever loaded, whatever is installed.")
    ] = []
    configs: Annotated[
        dict[str, msgspec.Struct], Doc(description="The sections of those plug-ins.", extra={"inline": True})
    ] = {}


def take_sections(tree: Branch) -> Branch:
    """Takes the plug-ins' own sections out of the tree: their settings are known once their classes are."""
    section = tree.get(_SECTION)
    if not isinstance(section, dict):
        return {}
    return {name: section.pop(name) for name in list(section) if name != _ALLOWED}


def complete_plugins(settings: Settings, sections: Branch, builder: Builder) -> list[Fault]:
    """Gives the plug-ins that may run their configuration. The faults: of names, of sections, and of plug-ins."""
    allowed = list(dict.fromkeys(settings.plugins.allowed))
    standings = survey(allowed) if allowed else []
    running: dict[str, Standing] = {}
    faults = [*_strangers(allowed, sections)]
    where = builder.origins.get(_WHERE, Origin("default"))
    for name in allowed:
        named = [one for one in standings if one.offer.name == name]
        usable = [one for one in named if one.state in ("allowed", "built in")]
        if usable:
            running[name] = usable[0]
        elif named:
            faults.append(Fault(_WHERE, f"the plug-in {named[0].offer} is refused: {named[0].why}", where))
        else:
            known = [one.offer.name for one in standings if one.state != "refused"]
            faults.append(Fault(_WHERE, f"no installed package offers `{name}`{did_you_mean(name, known)}", where))
    for name, standing in running.items():
        node = next((node for key, node in sections.items() if _alike(key, name)), None)
        if standing.state == "allowed":
            faults += _configure(settings, standing, node, builder)
        elif node is not None:
            message = "comes with Treadle and is configured elsewhere, a search service under `web_search`"
            faults.append(Fault(join(_SECTION, name), message, origin_of(node)))
    for choice in _choices(settings):
        faults += _chosen(choice, running, builder.origins)
    for name, standing in running.items():
        if standing.offer.group == MODELS and (name in settings.models or name == "local"):
            message = f"the plug-in {standing.offer} has the name of another provider of models"
            faults.append(Fault(_WHERE, message, where))
    return faults


def secret_name(name: str) -> bool:
    """Whether the value of a plug-in's setting is better not shown, marked by its author or not."""
    return bool(_SECRET.search(name))


def _strangers(allowed: list[str], sections: Branch) -> Iterator[Fault]:
    for name, node in sections.items():
        if any(_alike(name, other) for other in allowed):
            continue
        near = did_you_mean(name, [_ALLOWED, *allowed])
        message = f"is not among the plug-ins that `{_WHERE}` names{near or ', so it does not run'}"
        yield Fault(join(_SECTION, name), message, origin_of(node))


def _configure(settings: Settings, standing: Standing, node: Value | Branch | None, builder: Builder) -> list[Fault]:
    offer, path = standing.offer, join(_SECTION, standing.offer.name)
    origin = origin_of(node) if node is not None else builder.origins.get(_WHERE, Origin("default"))
    before = len(builder.faults)
    try:
        kind = load(offer).Config
        settings.plugins.configs[offer.name] = builder.struct(kind, node, path)
    except BrokenPlugin as broken:
        return [Fault(path, str(broken), origin)]
    except Exception as error:  # noqa: BLE001 - what an author's own check raises; it may have met a missing value
        builder.faults[before:] = builder.faults[before:] or [Fault(path, f"is refused: {reason(error)}", origin)]
    found, builder.faults[before:] = builder.faults[before:], []
    return found


def _choices(settings: Settings) -> Iterator[_Choice]:
    web, files, knowledge = settings.web_search, settings.files, settings.knowledge
    yield _Choice(SEARCH, "web_search.kind", web.kind, ("", *SEARCHES), bool(web.url or web.key))
    index = bool(knowledge.index_url or knowledge.index_key)
    yield _Choice(VECTOR, "knowledge.index", knowledge.index, INDEXES, index)
    yield _Choice(EXTRACT, "knowledge.extractor", knowledge.extractor, ("",), beside=False)
    remote = bool(files.url or files.endpoint or files.region or files.key_id or files.key)
    yield _Choice(BLOBS, "files.blobs", files.blobs, ("",), remote)


def _chosen(choice: _Choice, running: Mapping[str, Standing], origins: Mapping[str, Origin]) -> Iterator[Fault]:
    """What is chosen comes with Treadle, or is a plug-in that may run."""
    value, path = choice.value, choice.path
    where = origins.get(path, Origin("default"))
    others = [name for name, one in running.items() if one.offer.group == choice.group and name not in choice.ours]
    if value in others and choice.beside:
        message = f"the plug-in `{value}` has its address and key in its own section, `{join(_SECTION, value)}`"
        yield Fault(path, message, where)
    if value in (*choice.ours, *others):
        return
    known = [name for name in (*choice.ours, *others) if name]
    names = [*(["empty"] if "" in choice.ours else []), *(f"`{name}`" for name in known)]
    may = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    message = f"must be {may}, not `{value}`{did_you_mean(value, known)}; plug-ins: see `{_WHERE}`"
    yield Fault(path, message, where)


def _alike(key: str, name: str) -> bool:
    """Whether a section means the plug-in: variables can hold neither capitals nor dashes."""
    return key.lower().replace("-", "_") == name.lower().replace("-", "_")
