"""`treadle go`: finds models, says what it found, and starts the server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import msgspec

from treadle.cli import embedded
from treadle.cli.faults import report
from treadle.cli.probe import list_models
from treadle.cli.serve import flags_of
from treadle.models.vendors import vendor
from treadle.settings import Loaded, Origin, load

_WAIT_SECONDS = 0.5
_NOT_FOR_CHAT = ("embed", "bge-", "minilm", "rerank", "whisper", "tts", "clip", "e5-", "guard")


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
    for line in describe(loaded, answered):
        print(line)
    model = choose(loaded, answered)
    if not loaded.settings.models:
        missing = embedded.why_not(loaded.settings)
        if missing:
            print(f"error: nothing found, and the embedded model cannot run. {missing}", file=sys.stderr)
            print(HOW_TO_NAME_ONE, file=sys.stderr)
            return 1
        print(f"Found nothing, so this starts on the small embedded model {model}.")
        print("It is only for trying things out: it answers simple questions and cannot use tools.")
        print(HOW_TO_NAME_ONE)
    from treadle.cli import serving  # uvicorn is only needed once there is something to serve

    return serving.run(loaded.settings, "go", serving.try_it(model))


HOW_TO_NAME_ONE = (
    "To use a better model, start Ollama (https://ollama.com) or another model server, or set a key such as "
    "OPENAI_API_KEY,\nand run `treadle go` again. docs/models.md lists all of them."
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
            chat = _for_chat(offered)
            count = f"{len(offered)} model{'' if len(offered) == 1 else 's'}; try {name}/{chat}"
            lines.append(f"Found {title} at {provider.url}: {count if chat else 'it has no models to chat with yet'}")
            continue
        key = loaded.origins.get(f"models.{name}.key", Origin("default"))
        address = loaded.origins.get(f"models.{name}.url", Origin("default"))
        source = next((one for one in (key, address) if one.kind in ("environment", "file")), address)
        lines.append(f"Found {title} in {source.detail or source.kind}: its models are called {name}/<model>")
    return lines


def choose(loaded: Loaded, answered: Sequence[Answered]) -> str:
    """The model to try first: a configured default, else one that surely answers, else one of a provider."""
    settings = loaded.settings
    if settings.default_model:
        return settings.default_model
    models = {one.place.url: one.models for one in answered}
    for name, provider in settings.models.items():
        chat = _for_chat(tuple(provider.models) or models.get(provider.url, ()))
        if chat:
            return f"{name}/{chat}"
    for name in settings.models:
        return f"{name}/<model>"
    return embedded.MODEL_ID


def _for_chat(models: Sequence[str]) -> str:
    """The first that is not for embeddings, speech or the like; empty if there is none."""
    return next((model for model in models if not any(word in model.lower() for word in _NOT_FOR_CHAT)), "")
