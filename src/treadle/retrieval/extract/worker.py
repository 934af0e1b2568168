"""The child process that reads documents: one at a time, by orders on its standard input, until that closes.

A document is a stranger's, and so may be what a parser makes of it: the process has limits of memory and CPU time,
no way to fill the disk, an environment without secrets, and it dies with its parent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import msgspec

from treadle.errors import InvalidRequest, UnreadableFile, UnsupportedFile
from treadle.ports import Chunk
from treadle.retrieval.chunking import chunked
from treadle.retrieval.extract.blocks import Block, rendered
from treadle.retrieval.extract.detect import detect
from treadle.retrieval.extract.document import Document, blocks_of
from treadle.retrieval.extract.frames import (
    BATCH_CHARACTERS,
    BATCH_CHUNKS,
    LENGTH,
    Answer,
    Batch,
    Bounds,
    Done,
    Fault,
    Order,
    Piece,
    Ready,
    packed,
)
from treadle.retrieval.units import Counter
from treadle.vocabularies import count_tokens, load_encoding

if sys.platform != "win32":
    import resource

ENCODING = "o200k_base"
_MAX_WRITTEN = 64 * 1024 * 1024
"""Bytes of a file that this process may write: an OCR program's intermediate images, never more."""
_NICE = 5
"""Less of the CPU than the server, whose answers somebody is waiting for."""


def main() -> None:
    """`worker FOLDER`: the folder of the documents, to be removed if the parent dies without doing so."""
    folder = Path(sys.argv[1])
    out = os.dup(1)
    orders: SimpleQueue[Order] = SimpleQueue()
    # A thread, so that the end of the parent is seen while a document is being read.
    threading.Thread(target=_listen, args=(orders, folder), daemon=True).start()
    try:
        _confine()
        encoding = load_encoding(ENCODING)
        _send(out, Ready())
        _silence()
        gc.freeze()
        while True:
            _serve(orders.get(), out, lambda text: count_tokens(encoding, text))
    except BrokenPipeError:
        _leave(folder)


def _listen(orders: SimpleQueue[Order], folder: Path) -> None:
    decoder = msgspec.msgpack.Decoder(Order)
    stream = sys.stdin.buffer
    try:
        while head := stream.read(LENGTH.size):
            orders.put(decoder.decode(stream.read(LENGTH.unpack(head)[0])))
    finally:
        _leave(folder)


def _leave(folder: Path) -> None:
    """An orderly parent kills us; this one is gone, and its documents are nobody's."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _serve(order: Order, out: int, count: Counter) -> None:
    _allow(order.bounds)
    try:
        for answer in _answers(order, count):
            _send(out, answer)
        last: Done | Fault = Done()
    except UnsupportedFile as fault:
        last = Fault("unsupported", fault.message)
    except UnreadableFile as fault:
        last = Fault("unreadable", fault.message)
    except InvalidRequest as fault:
        last = Fault("invalid", fault.message)
    except RecursionError:
        last = Fault("unreadable", "The document is nested too deeply.")
    except Exception as fault:  # noqa: BLE001 -- parsers fail in any way on what is no document of theirs
        last = _unforeseen(fault, order.bounds)
    finally:
        _relax()
    gc.collect()
    last.memory_mb = _statm_mb(1)
    _send(out, last)


def _unforeseen(fault: Exception, bounds: Bounds) -> Fault:
    trace = traceback.format_exc(limit=-8)
    # Native code says in its own words that it has no memory.
    if isinstance(fault, MemoryError) or "bad_alloc" in trace or "MemoryError" in trace:
        return Fault("unreadable", f"Reading the document takes more memory than allowed ({bounds.memory_mb} MB).")
    message = f"The document is damaged, or made in a way that is not supported ({type(fault).__name__})."
    return Fault("unreadable", message, detail=trace)


def _answers(order: Order, count: Counter) -> Iterator[Answer]:
    document = Document(Path(order.path), order.filename, order.bounds, order.limit)
    blocks = blocks_of(document, detect(document))
    if order.rules is None:
        yield from _pieces(blocks, order.limit)
        return
    batch: list[Chunk] = []
    size = 0
    for chunk in chunked(blocks, order.rules, count):
        batch.append(chunk)
        size += len(chunk.text)
        if len(batch) >= BATCH_CHUNKS or size >= BATCH_CHARACTERS:
            yield Batch(batch)
            batch, size = [], 0
    if batch:
        yield Batch(batch)


def _pieces(blocks: Iterator[Block], limit: int) -> Iterator[Piece]:
    left = limit
    for text in rendered(blocks):
        for start in range(0, min(len(text), left), BATCH_CHARACTERS):
            yield Piece(text[start : min(start + BATCH_CHARACTERS, left)])
        left -= len(text)
        if left <= 0:
            return


def _send(out: int, answer: Answer) -> None:
    data = memoryview(packed(answer))
    while data:
        data = data[os.write(out, data) :]


def _silence() -> None:
    """Native libraries print as they please."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _statm_mb(column: int) -> int:
    """What this process holds, in MB: 0 addresses, 1 memory. 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE") >> 20
    except (OSError, ValueError):
        return 0


def _confine() -> None:
    """The limits that hold for all documents."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.nice(_NICE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit(resource.RLIMIT_FSIZE, _MAX_WRITTEN)


def _allow(bounds: Bounds) -> None:
    """The limits of one document; they come on top of what the process has used."""
    if sys.platform != "win32":
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + bounds.seconds) + 1)
        held = _statm_mb(0)
        if held:
            _limit(resource.RLIMIT_AS, (held + bounds.memory_mb) << 20)


def _relax() -> None:
    """Room to report, and to be given the next order."""
    if sys.platform != "win32":
        _limit(resource.RLIMIT_CPU, resource.RLIM_INFINITY)
        _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)


if sys.platform != "win32":

    def _limit(kind: int, value: int) -> None:
        """Sets the soft limit, as far as the hard one lets us."""
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY and (value == resource.RLIM_INFINITY or value > hard):
            value = hard
        resource.setrlimit(kind, (value, hard))


if __name__ == "__main__":
    main()
