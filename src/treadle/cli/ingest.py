"""`treadle ingest`: brings files and folders into a vector store, and of these only what is new or has changed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from treadle.cli.channel import Channel, Unreachable
from treadle.cli.choosing import NoSuchStore, known_or_new
from treadle.cli.indexing import Indexer, Monotony, Wanted
from treadle.cli.outcome import Result
from treadle.cli.printable import forgiving, printable
from treadle.cli.progress import Progress
from treadle.cli.reach import CannotWork, Wish, reach, why
from treadle.cli.stores import Refused, Stores
from treadle.cli.walk import Document, walk

_AT_ONCE = 4
"""Files on their way at the same time: while the server indexes some, others are read and sent."""

_MOST_ATTRIBUTES = 14
"""Besides the two that are ours."""


class _GivenUp(Exception):
    """There is no point in going on; the message says why."""


def ingest(arguments: argparse.Namespace) -> int:
    """The exit code: 1 if anything failed, 2 for arguments that do not go together, 130 after Ctrl-C."""
    forgiving()
    attributes = dict(arguments.attribute)
    base = Path(arguments.base or ".")
    try:
        chunking = sizes(arguments.chunk_tokens, arguments.overlap_tokens)
        if len(attributes) > _MOST_ATTRIBUTES:
            raise ValueError(f"--attribute: at most {_MOST_ATTRIBUTES} of them")
        if not base.is_dir():
            raise ValueError(f"--base: {printable(str(base))} is not a folder")
    except ValueError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    found = walk(arguments.paths, base)
    result = Result(found)
    for outcome in result.outcomes:
        print(f"error: {printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)
    if found.documents:
        try:
            asyncio.run(_work(arguments, Wanted(attributes, chunking), found.documents, result))
        except KeyboardInterrupt:
            result.interrupted = True
    for line in [result.as_json()] if arguments.json else result.lines():
        print(line, flush=True)
    return result.exit_code


def sizes(size: int | None, overlap: int | None) -> Mapping[str, int] | None:
    """The rules of the static chunking strategy, complete; None if the server's will do. ValueError if they do not
    fit together."""
    if size is None:
        if overlap is not None:
            raise ValueError("--overlap-tokens goes with --chunk-tokens")
        return None
    if not 100 <= size <= 4096:
        raise ValueError("--chunk-tokens: between 100 and 4096")
    overlap = min(400, size // 2) if overlap is None else overlap
    if not 0 <= overlap <= size // 2:
        raise ValueError(f"--overlap-tokens: at most half of --chunk-tokens, here {size // 2}")
    return {"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap}


async def _work(arguments: argparse.Namespace, wanted: Wanted, documents: Sequence[Document], result: Result) -> None:
    """Does it all; what keeps it from going on is printed."""
    lines: list[str] = []
    try:
        async with reach(Wish(arguments.url, arguments.api_key, arguments.config)) as channel:
            await _fill(channel, arguments.store, wanted, documents, result)
    except (CannotWork, Unreachable, Refused) as fault:
        lines = why(fault)
    except (NoSuchStore, _GivenUp) as fault:
        lines = [str(fault)]
    for line in lines:
        result.stopped = True
        print(f"error: {line}", file=sys.stderr)


async def _fill(channel: Channel, called: str, wanted: Wanted, documents: Sequence[Document], result: Result) -> None:
    stores = Stores(channel)
    store, new = await known_or_new(stores, called)
    if store.status == "expired":
        raise _GivenUp(f"the vector store {store.id} has expired; changing it brings it back, for example its expiry")
    result.store = store
    print(f"Store {printable(store.name or store.id)}{' (new)' if new else ''}, {channel.place}", file=sys.stderr)
    progress = Progress(sys.stderr, len(documents))
    indexer = Indexer(stores, store.id, wanted, [] if new else await stores.files(store.id), progress.note)
    waiting = iter(documents)
    monotony = Monotony()

    async def work() -> None:
        for document in waiting:  # shared by all who work
            progress.begin(document.key)
            outcome = await indexer.index(document)
            result.outcomes.append(outcome)
            if outcome.status == "failed":
                progress.fail(outcome.path, outcome.message)
            else:
                progress.end(outcome.path, outcome.status, quiet=outcome.status == "unchanged")
            if monotony.is_reached(outcome):
                raise _GivenUp("one file after another fails for the same reason; the others are left alone")

    async with progress.shown():
        log = _LogLines(progress)
        logging.getLogger().addHandler(log)
        workers = [asyncio.create_task(work()) for _ in range(min(_AT_ONCE, len(documents)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            result.underway = sorted(indexer.underway)
            logging.getLogger().removeHandler(log)


class _LogLines(logging.Handler):
    """Shows what a server in this process logs above the line of progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.line(f"{record.levelname.lower()}: {printable(record.getMessage())}")
