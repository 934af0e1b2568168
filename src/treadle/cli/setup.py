"""`treadle setup`: installs the embedded models and what runs them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires

from treadle.cli.invocation import program

_EXTRAS = ("local", "knowledge")


def setup(arguments: argparse.Namespace) -> int:
    """Runs the installation commands one after the other; stops at the first that fails."""
    from treadle.models.weights import install_command  # it is not needed to start any other command

    commands = install_command()
    needed = runtime_requirements(_EXTRAS)
    if needed:
        # What runs the models may bring dependencies of its own, so it goes through the same installer without
        # the weights' --no-deps.
        commands.append([*commands[-1][: commands[-1].index("--no-deps")], *needed])
    for command in commands:
        print("running:", " ".join(command), flush=True)
        try:
            done = subprocess.run(command, check=False)  # noqa: S603 (the command is our own, not a user's text)
        except OSError as error:
            print(f"error: {command[0]} could not be started: {error}", file=sys.stderr)
            return 1
        if done.returncode:
            print(f"error: the command above failed with exit code {done.returncode}", file=sys.stderr)
            return 1
    print("The embedded models are installed.")
    if not arguments.from_make:
        print(f"Start the server with `{program()} go`.")
    return 0


def runtime_requirements(extras: tuple[str, ...]) -> list[str]:
    """What our own package asks for under these extras; nothing if we run from a checkout that is not installed."""
    try:
        declared = requires("treadle") or []
    except PackageNotFoundError:
        return []
    found: list[str] = []
    for requirement in declared:
        name, _, marker = requirement.partition(";")
        if any(f"extra == {quote}{extra}{quote}" in marker for extra in extras for quote in "'\""):
            found.append(name.strip())
    return found
