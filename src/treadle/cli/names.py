"""Finds names of models in the configuration that lead nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from treadle.cli.embedded import EMBEDDER_ID, MODEL_ID
from treadle.cli.probe import Listing
from treadle.models.vendors import EMBEDDED, find_vendor
from treadle.settings import Fault, Provider, Settings
from treadle.settings.tree import did_you_mean


def misnamed(settings: Settings, listings: Mapping[str, Listing]) -> Iterator[Fault]:
    """A fault for each of `default_model`, `embeddings.default` and the aliases that cannot work.

    `listings` are the answers of the providers; of one that did not answer nothing is said.
    """
    given = {f"aliases.{name}": target for name, target in settings.aliases.items()}
    given |= {"default_model": settings.default_model, "embeddings.default": settings.embeddings.default}
    for path, name in given.items():
        if not name or (name in settings.aliases and not path.startswith("aliases.")):
            continue
        if text := _why_not(name, settings, listings):
            yield Fault(path, text)


def _why_not(name: str, settings: Settings, listings: Mapping[str, Listing]) -> str:
    """What is wrong with the name of a model; empty if nothing is, or if that cannot be told."""
    section, slash, upstream = name.partition("/")
    if section in settings.models:
        provider = settings.models[section]
        offered = _offered(provider, listings[section])
        if not upstream:
            return f"`{name}` is a section of `models`; a model of it is `{name}/<model>`"
        if not is_closed(provider) or not offered or upstream in offered:
            return ""
        return f"`{section}` has no model `{upstream}`{did_you_mean(upstream, offered)}"
    if section == EMBEDDED and settings.local.enabled:
        known = [MODEL_ID, EMBEDDER_ID]
        return "" if name in known else f"there is no embedded model `{name}`{did_you_mean(name, known)}"
    if any(_lists(_offered(provider, listings[one]), name) for one, provider in settings.models.items()):
        return ""
    if slash:
        near = did_you_mean(section, settings.models)
        return f"`{name}` leads nowhere: there is no section `{section}` under `models`{near}"
    # Without a section, a provider that did not answer, or one that serves more than it lists, may have it.
    if any(listings[one].fault or not is_closed(provider) for one, provider in settings.models.items()):
        return ""
    return f"no provider has a model `{name}`"


def is_closed(provider: Provider) -> bool:
    """The provider's list names everything it serves."""
    row = find_vendor(provider.vendor)
    if row is None or not row.closed_list:
        return False
    # OPENAI_BASE_URL may lead anywhere.
    return row.name != "openai" or (urlsplit(provider.url).hostname or "").endswith("openai.com")


def _offered(provider: Provider, listing: Listing) -> tuple[str, ...]:
    return tuple(provider.models) or listing.models


def _lists(offered: tuple[str, ...], name: str) -> bool:
    return any(one in offered for one in (name, f"{name}:latest", f"models/{name}"))
