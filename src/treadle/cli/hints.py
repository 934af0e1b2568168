"""What is said under the banner: configured names that lead nowhere, and a first request to copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from treadle.cli import embedded
from treadle.cli.names import misnamed
from treadle.cli.probe import Listing, list_providers
from treadle.settings import Settings

_WAIT_SECONDS = 2.0
_NOT_FOR_CHAT = ("embed", "bge-", "minilm", "rerank", "whisper", "tts", "clip", "e5-", "guard", "dall-e", "moderation")


class Hints(msgspec.Struct, frozen=True):
    """Lines for the user. `{url}` in them is the server's address."""

    warnings: Sequence[str] = ()
    first_request: Sequence[str] = ()


async def look_around(settings: Settings, model: str = "") -> Hints:
    """Asks the providers for their models, for two seconds at most. `model` is one that surely answers, if known."""
    listings = await list_providers(settings.models, timeout_seconds=_WAIT_SECONDS)
    faults = list(misnamed(settings, listings))
    wrong = {fault.path for fault in faults}
    return Hints([f"warning: {fault}" for fault in faults], try_it(model or first_model(settings, listings, wrong)))


def first_model(settings: Settings, listings: Mapping[str, Listing], wrong: set[str]) -> str:
    """A model to try: what the settings name, else what a provider lists, else the embedded one; empty if none.

    `wrong` are the paths of settings whose model cannot work.
    """
    if settings.default_model and "default_model" not in wrong and settings.default_model not in settings.aliases:
        return settings.default_model
    for name in sorted(settings.aliases, key=lambda name: name != settings.default_model):
        if f"aliases.{name}" not in wrong:
            return name
    for name, provider in settings.models.items():
        # One that does not answer can hardly be tried.
        listing = listings.get(name, Listing())
        chat = chat_model(tuple(provider.models) or listing.models) if not listing.fault or provider.models else ""
        if chat:
            return f"{name}/{chat}"
    return "" if embedded.why_not(settings) else embedded.MODEL_ID


def chat_model(models: Sequence[str]) -> str:
    """The first that is not for embeddings, speech or the like; empty if there is none."""
    return next((model for model in models if not any(word in model.lower() for word in _NOT_FOR_CHAT)), "")


def try_it(model: str) -> list[str]:
    """A first request to copy; without a model, the request that lists them."""
    if not model:
        return ["  try it   curl -s {url}/v1/models   (which models there are)"]
    body = f'{{"model": "{model}", "input": "Write one sentence about the sea."}}'
    return [
        "  try it   curl -s {url}/v1/responses -H 'content-type: application/json' \\",
        f"             -d '{body}'",
    ]
