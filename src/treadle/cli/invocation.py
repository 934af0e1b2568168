"""How the user called this program, so that the commands in our advice can be copied."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path


def program() -> str:
    """What to type for `treadle` here: `treadle`, `.venv/bin/treadle`, `python3 -m treadle`."""
    started = Path(sys.argv[0])
    if started.parts[-2:] == ("treadle", "__main__.py"):
        return f"{_typed(Path(sys.executable))} -m treadle"
    if started.stem != "treadle":
        return "treadle"  # called from a program, of which nothing is known
    return _typed(started)


def command(arguments: argparse.Namespace) -> str:
    """The command that is running, without its flags."""
    return "make serve" if arguments.from_make else f"{program()} {arguments.command}"


def with_port(called: str, port: int) -> str:
    """The command again, on another port."""
    return f'{called} SERVE_ARGS="--port {port}"' if called.startswith("make ") else f"{called} --port {port}"


def _typed(path: Path) -> str:
    """The shortest writing of a program's path that works in the working directory."""
    # Links are not followed: the python of an environment links to one that knows nothing of the environment.
    absolute = path.absolute()
    if shutil.which(path.name) == str(absolute):
        return path.name
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)
