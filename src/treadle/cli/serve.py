"""`treadle serve`: starts the server with what is configured."""

from __future__ import annotations

import argparse

from treadle.cli import invocation
from treadle.cli.faults import report, warn
from treadle.settings import Flag, load


def serve(arguments: argparse.Namespace) -> int:
    """Loads the settings and serves; 1 if they have faults or the port cannot be had."""
    loaded = load(arguments.config, flags=flags_of(arguments))
    if loaded.faults:
        return report(loaded.faults)
    warn(loaded.notes)
    from treadle.cli import serving  # uvicorn is only needed once there is something to serve

    return serving.run(loaded.settings, invocation.command(arguments))


def flags_of(arguments: argparse.Namespace) -> list[Flag]:
    """The flags that were given, as settings."""
    given = [
        Flag("server.host", arguments.host, "--host") if arguments.host is not None else None,
        Flag("server.port", arguments.port, "--port") if arguments.port is not None else None,
        Flag("server.allow_unauthenticated", True, "--insecure") if arguments.insecure else None,
        Flag("log_level", arguments.log_level, "--log-level") if arguments.log_level is not None else None,
    ]
    return [flag for flag in given if flag is not None]
