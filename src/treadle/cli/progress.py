"""How far a command is: one line on a terminal that is drawn again and again, and plain lines elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from treadle.cli.printable import cut, printable, width

_DRAW_SECONDS = 0.1
_USUAL_COLUMNS = 80
_BAR_COLUMNS = 24


class Progress:
    """Counts up to `total`. Written without colours and escape sequences, so that any terminal will do."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream = stream
        self._total = total
        self._terminal = stream.isatty()
        self._begun = time.monotonic()
        self._done = 0
        self._failed = 0
        self._running: dict[str, int] = {}
        self._drawn = 0
        """Columns of the line that stands there."""

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Keeps the line up to date for the block, and takes it away in the end."""
        drawing = asyncio.create_task(self._draw_on()) if self._terminal else None
        try:
            yield
        finally:
            if drawing is not None:
                drawing.cancel()
            self._clear()

    def begin(self, name: str) -> None:
        self._running[name] = 0

    def note(self, name: str, chunks: int) -> None:
        self._running[name] = chunks

    def end(self, name: str, word: str, *, quiet: bool) -> None:
        """`word` says what became of it; `quiet`: not worth a line of its own."""
        self._running.pop(name, None)
        self._done += 1
        if not self._terminal and not quiet:
            self.line(f"{word} {printable(name)}")

    def fail(self, name: str, reason: str) -> None:
        self._running.pop(name, None)
        self._done += 1
        self._failed += 1
        self.line(f"error: {printable(name)}: {printable(reason)}")

    def line(self, text: str) -> None:
        """A line that stays, above the one that is drawn again."""
        self._clear()
        print(text, file=self._stream, flush=True)

    async def _draw_on(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(_DRAW_SECONDS)

    def _draw(self) -> None:
        # One column stays free: some terminals go on to the next line when the last one is written to.
        columns = _columns(self._stream) - 1
        text = cut_right(self._text(columns), columns)
        blanks = " " * max(0, min(self._drawn, columns) - width(text))
        self._stream.write(f"\r{text}{blanks}")
        self._stream.flush()
        self._drawn = width(text)

    def _text(self, columns: int) -> str:
        share = self._done / self._total if self._total else 1.0
        length = min(_BAR_COLUMNS, columns // 4)
        filled = int(share * length)
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        bar = f"[{'#' * filled}{'.' * (length - filled)}] " if columns > _BAR_COLUMNS else ""
        text = f"{bar}{self._done}/{self._total} {share:4.0%} {minutes}:{seconds:02}"
        if self._failed:
            text += f", {self._failed} failed"
        name = next(iter(self._running), "")
        if not name:
            return text
        chunks = f" ({self._running[name]} chunks)" if self._running[name] else ""
        return f"{text}  {cut(printable(name), columns - width(text) - width(chunks) - 2)}{chunks}"

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write(f"\r{' ' * (_columns(self._stream) - 1)}\r")  # whole: Ctrl-C leaves its own mark
            self._stream.flush()
            self._drawn = 0


def cut_right(text: str, columns: int) -> str:
    """As much of a line as fits, its beginning kept."""
    while width(text) > max(columns, 0):
        text = text[:-1]
    return text


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS
