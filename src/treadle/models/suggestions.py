"""What to say about a model's name that leads nowhere: what there is, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from treadle.errors import UnknownModel
from treadle.models.vendors import EMBEDDED, GENERIC, find_vendor

_FAMILIES = {
    "gpt": "openai",
    "chatgpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude": "anthropic",
    "gemini": "gemini",
    "deepseek": "deepseek",
    "mistral": "mistral",
}
"""First words of names that one vendor's models have."""

_SHOWN = 256
"""Characters of a client's text that are repeated to it."""


def unknown_model(
    name: str, providers: Collection[str], listed: Collection[str], aliases: Mapping[str, str]
) -> UnknownModel:
    """The fault for `name`. `listed` are all names known now. Clients match the first two sentences."""
    parts = [f"Model '{name[:_SHOWN]}' not found. Use 'client.models.list()' to list available Models."]
    parts.append(f"Providers here: {', '.join(providers) or 'none'}.")
    if target := aliases.get(name):
        parts.append(f"It is an alias of '{target}'.")
    target = target or name
    if near := _near(target[:_SHOWN], listed):
        parts.append(f"Did you mean '{near}'?")
    elif hint := _vendor_hint(target, providers):
        parts.append(hint)
    return UnknownModel(" ".join(parts), param="model")


def _near(name: str, listed: Collection[str]) -> str:
    """The listed name that is most like it, with its provider or without; empty if none is."""
    by_spelling = {one.partition("/")[2] or one: one for one in listed} | {one: one for one in listed}
    longer = [spelling for spelling in by_spelling if len(name) > 2 and spelling.startswith(name)]
    found = longer or difflib.get_close_matches(name, by_spelling, n=1, cutoff=0.75)
    return by_spelling[found[0]] if found else ""


def _vendor_hint(name: str, providers: Collection[str]) -> str:
    """How to get the vendor whose models are called like this, if it is not configured."""
    first, slash, _ = name.partition("/")
    row = find_vendor(first if slash else _FAMILIES.get(first.partition("-")[0], ""))
    if row is None or row.name in providers or row.name in (EMBEDDED, GENERIC):
        return ""
    variable = row.key_variable if row.key_required else row.url_variable
    return f"Models of {row.title} are available when the server is started with {variable} set."
