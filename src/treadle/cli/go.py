"""`treadle go`: finds models, says what it found, and starts the server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import msgspec

from treadle.cli import embedded, invocation
from treadle.cli.faults import report, warn
from treadle.cli.hints import chat_model
from treadle.cli.names import is_closed
from treadle.cli.probe import list_models
from treadle.cli.serve import flags_of
from treadle.models.vendors import vendor
from treadle.settings import Loaded, Origin, load

_WAIT_SECONDS = 0.5


class Place(msgspec.Struct, frozen=True):
    """Where a model server usually listens."""

    vendor: str
    url: str


USUAL_PLACES = (
    Place("ollama", "http://127.0.0.1:11434/v1"),
    Place("lmstudio", "http://127.0.0.1:1234/v1"),
    Place("llamacpp", "http://127.0.0.1:8080/v1"),
    Place("vllm", "http://127.0.0.1:8000/v1"),
)


class Answered(msgspec.Struct, frozen=True):
    """A place where a model server listens, and its models."""

    place: Place
    models: tuple[str, ...]


def go(arguments: argparse.Namespace, places: Sequence[Place] = USUAL_PLACES) -> int:
    """Looks around, reports, serves; 1 if the settings have faults or there is no model at all."""
    print("Looking for models: Ollama, LM Studio, llama.cpp and vLLM on this machine, keys in the environment …")
    answered = asyncio.run(look(places))
    loaded = load(
        arguments.config,
        flags=flags_of(arguments),
        found={one.place.vendor: one.place.url for one in answered},
    )
    if loaded.faults:
        return report(loaded.faults)
    warn(loaded.notes)
    for line in describe(loaded, answered):
        print(line)
    model = choose(loaded, answered)
    called = invocation.command(arguments)
    if not loaded.settings.models:
        missing = embedded.why_not(loaded.settings)
        if missing:
            print(f"error: nothing found, and the embedded model cannot run. {missing}", file=sys.stderr)
            print(how_to_name_one(called), file=sys.stderr)
            return 1
        print(f"Found nothing, so this starts on the small embedded model {embedded.MODEL_ID}.")
        print("It is only for trying things out: it answers simple questions and cannot use tools.")
        print(how_to_name_one(called))
    from treadle.cli import serving  # uvicorn is only needed once there is something to serve

    return serving.run(loaded.settings, called, model)


def how_to_name_one(called: str) -> str:
    return (
        "To use a better model, start Ollama (https://ollama.com) or another model server, or set a key such as "
        f"OPENAI_API_KEY,\nand run `{called}` again. docs/models.md lists all of them."
    )


async def look(places: Sequence[Place], *, wait_seconds: float = _WAIT_SECONDS) -> list[Answered]:
    """The places where a model server answers; all are asked at once."""
    listings = await asyncio.gather(*(list_models(place.url, {}, timeout_seconds=wait_seconds) for place in places))
    return [
        Answered(place, listing.models) for place, listing in zip(places, listings, strict=True) if not listing.fault
    ]


def describe(loaded: Loaded, answered: Sequence[Answered]) -> list[str]:
    """A line for each provider that will be used: where it was found and what to try."""
    models = {one.place.url: one.models for one in answered}
    lines: list[str] = []
    for name, provider in loaded.settings.models.items():
        title = vendor(provider.vendor).title
        if provider.url in models:
            offered = models[provider.url]
            chat = chat_model(offered)
            count = f"{len(offered)} model{'' if len(offered) == 1 else 's'}; try {name}/{chat}"
            lines.append(f"Found {title} at {provider.url}: {count if chat else 'it has no models to chat with yet'}")
            continue
        key = loaded.origins.get(f"models.{name}.key", Origin("default"))
        address = loaded.origins.get(f"models.{name}.url", Origin("default"))
        source = next((one for one in (key, address) if one.kind in ("environment", "file")), address)
        if provider.vendor == "openai" and not is_closed(provider):
            title = "a server that speaks chat completions"  # OPENAI_BASE_URL may lead anywhere
        at = "" if address.kind == "vendor table" else f", at {provider.url}"
        lines.append(f"Found {title} in {source.detail or source.kind}{at}: its models are called {name}/<model>")
    return lines


def choose(loaded: Loaded, answered: Sequence[Answered]) -> str:
    """The model to try first as far as it is known by now: one of a server that answered; empty if it is not."""
    settings = loaded.settings
    if settings.default_model or settings.aliases:
        return ""
    models = {one.place.url: one.models for one in answered}
    for name, provider in settings.models.items():
        if chat := chat_model(tuple(provider.models) or models.get(provider.url, ())):
            return f"{name}/{chat}"
    return "" if settings.models else embedded.MODEL_ID
