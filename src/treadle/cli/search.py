"""`treadle search`: asks a vector store, and prints the passages that it finds."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import textwrap
from collections.abc import Iterator

import msgspec

from treadle.cli.channel import Unreachable
from treadle.cli.choosing import NoSuchStore, known
from treadle.cli.given import PATH
from treadle.cli.printable import forgiving, printable, readable
from treadle.cli.reach import CannotWork, Wish, reach, why
from treadle.cli.stores import Found, Passage, Refused, Stores

_MOST = 50
_WIDEST = 100
_INDENT = "   "


def search(arguments: argparse.Namespace) -> int:
    """The exit code: 1 if it cannot be searched. That nothing was found is no fault."""
    forgiving()
    if not 1 <= arguments.limit <= _MOST:
        print(f"error: --limit: between 1 and {_MOST}", file=sys.stderr)
        return 2
    try:
        answer = asyncio.run(_ask(arguments))
        found = msgspec.json.decode(answer, type=Found)
    except (CannotWork, Unreachable, Refused) as fault:
        return _refused(why(fault))
    except NoSuchStore as fault:
        return _refused([str(fault)])
    except msgspec.DecodeError:
        return _refused(["the answer to the search is not what this API answers"])
    if arguments.json:
        print(answer.decode())
        return 0
    columns = min(shutil.get_terminal_size().columns, _WIDEST) if sys.stdout.isatty() else None
    print("\n".join(_shown(found.data, columns)) or "Nothing was found.", flush=True)
    return 0


async def _ask(arguments: argparse.Namespace) -> bytes:
    query: dict[str, object] = {"query": " ".join(arguments.query), "max_num_results": arguments.limit}
    if arguments.mode is not None:
        query["search_mode"] = arguments.mode
    if len(arguments.filter) == 1:
        query["filters"] = arguments.filter[0]
    elif arguments.filter:
        query["filters"] = {"type": "and", "filters": arguments.filter}
    async with reach(Wish(arguments.url, arguments.api_key, arguments.config)) as channel:
        stores = Stores(channel)
        store = await known(stores, arguments.store)
        return await stores.search(store.id, query)


def _shown(passages: list[Passage], columns: int | None) -> Iterator[str]:
    """A head line for each passage and its text below it; lines are broken at `columns`, or left as they are."""
    for number, passage in enumerate(passages, 1):
        if number > 1:
            yield ""
        yield f"{number}. {_head(passage)}"
        for part in passage.content:
            text = part.get("text")
            for line in readable(text if isinstance(text, str) else "").split("\n"):
                if columns is None or not line.strip():
                    yield f"{_INDENT}{line}".rstrip()
                else:
                    yield from textwrap.wrap(
                        line, columns, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
                    )


def _head(passage: Passage) -> str:
    path = (passage.attributes or {}).get(PATH)
    name = path if isinstance(path, str) else passage.filename or passage.file_id
    parts = [f"{passage.score:.3f}", printable(name)]
    if passage.page is not None:
        parts.append(f"page {passage.page}")
    if passage.section:
        parts.append(printable(passage.section))
    return "  ".join(parts)


def _refused(lines: list[str]) -> int:
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    return 1
