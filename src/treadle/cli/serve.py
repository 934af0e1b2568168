"""`treadle serve`: starts the server with what is configured."""

from __future__ import annotations

import argparse

from treadle.cli.embedded import MODEL_ID
from treadle.cli.faults import report
from treadle.settings import Flag, Settings, load


def serve(arguments: argparse.Namespace) -> int:
    """Loads the settings and serves; 1 if they have faults or the port cannot be had."""
    loaded = load(arguments.config, flags=flags_of(arguments))
    if loaded.faults:
        return report(loaded.faults)
    from treadle.cli import serving  # uvicorn is only needed once there is something to serve

    return serving.run(loaded.settings, "serve", serving.try_it(first_model(loaded.settings)))


def flags_of(arguments: argparse.Namespace) -> list[Flag]:
    """The flags that were given, as settings."""
    given = [
        Flag("server.host", arguments.host, "--host") if arguments.host is not None else None,
        Flag("server.port", arguments.port, "--port") if arguments.port is not None else None,
        Flag("server.allow_unauthenticated", True, "--insecure") if arguments.insecure else None,
        Flag("log_level", arguments.log_level, "--log-level") if arguments.log_level is not None else None,
    ]
    return [flag for flag in given if flag is not None]


def first_model(settings: Settings) -> str:
    """A model to try, as far as the settings name one."""
    if settings.default_model:
        return settings.default_model
    if settings.aliases:
        return next(iter(settings.aliases))
    for name, provider in settings.models.items():
        return f"{name}/{provider.models[0] if provider.models else '<model>'}"
    return MODEL_ID
