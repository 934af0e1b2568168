"""Splits `<think>` blocks out of a model's text, wherever the network cut it (bug case 17).

A block counts only at the very start of the answer: a tag in a later code sample is text. Some chat templates put the
opening tag into the prompt, so only the closing one arrives. Text before it can then be told from an answer only
once it has come; `hold` waits for that, at the price of the deltas, and is used where nobody watches them or where the
model is known to do it.
"""

from __future__ import annotations

import re
from typing import Literal

_OPEN = ("<think>", "<thinking>", "[THINK]")
_CLOSE = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
_LONE_CLOSE = "</think>"

Piece = tuple[Literal["text", "reasoning"], str]


class ThinkSplitter:
    """Feed it text deltas; it gives back what is answer and what is reasoning, in order."""

    def __init__(self, *, hold: bool = False) -> None:
        self._hold = hold
        self._state: Literal["start", "inside", "open", "after", "plain"] = "start"
        self._close = ""
        self._buffer = ""
        self._held: list[str] = []
        self._code = _CodeTracker()
        self._thought = False
        self.lone_close = False
        """Only a closing tag came: this model's template opens the block in the prompt."""

    def feed(self, text: str) -> list[Piece]:
        if self._state == "plain":
            return [("text", text)]
        self._buffer += text
        out: list[Piece] = []
        if self._state == "start":
            self._start()
        if self._state == "inside":
            self._inside(out)
        if self._state == "open":
            self._open(out)
        if self._state == "after":
            self._after(out)
        return out

    def finish(self) -> list[Piece]:
        """What was still undecided, at the end or before a call. An unclosed block stays reasoning; it is no answer."""
        text = "".join(self._held) + self._buffer
        if self._state == "open":
            self._code.read(self._buffer)
        self._held, self._buffer = [], ""
        if not text:
            return []
        return [("reasoning" if self._state == "inside" else "text", text)]

    def _start(self) -> None:
        """Waits while the text so far could still become an opening tag."""
        stripped = self._buffer.lstrip()
        for tag in _OPEN:
            if stripped.startswith(tag):
                self._state, self._close = "inside", _CLOSE[tag]
                self._buffer = stripped[len(tag) :]
                return
        if not any(tag.startswith(stripped) for tag in _OPEN):
            self._state = "open"

    def _inside(self, out: list[Piece]) -> None:
        if not self._thought:
            # The line break after the opening tag belongs to the tag.
            self._buffer = self._buffer.lstrip("\n")
            self._thought = bool(self._buffer)
        at = self._buffer.find(self._close)
        end = at if at >= 0 else len(self._buffer) - _overlap(self._buffer, self._close)
        if thought := self._buffer[:end]:
            out.append(("reasoning", thought))
        self._buffer = self._buffer[end:]
        if at >= 0:
            self._buffer = self._buffer[len(self._close) :]
            self._state = "after"

    def _open(self, out: list[Piece]) -> None:
        """No opening tag came. A lone closing tag outside of code still ends reasoning."""
        while (at := self._buffer.find(_LONE_CLOSE)) >= 0:
            self._pass(self._buffer[:at], out)
            if not self._code.inside:
                self.lone_close = True
                if before := "".join(self._held):
                    out.append(("reasoning", before))
                self._held = []
                self._buffer = self._buffer[at + len(_LONE_CLOSE) :]
                self._state = "after"
                return
            self._pass(_LONE_CLOSE, out)
            self._buffer = self._buffer[at + len(_LONE_CLOSE) :]
        end = len(self._buffer) - _overlap(self._buffer, _LONE_CLOSE)
        self._pass(self._buffer[:end], out)
        self._buffer = self._buffer[end:]

    def _pass(self, text: str, out: list[Piece]) -> None:
        if text:
            self._code.read(text)
            if self._hold:
                self._held.append(text)
            else:
                out.append(("text", text))

    def _after(self, out: list[Piece]) -> None:
        """The white space between the block and the answer belongs to neither; from then on all is text."""
        text = self._buffer.lstrip()
        self._buffer = ""
        if text:
            self._state = "plain"
            out.append(("text", text))


class _CodeTracker:
    """Whether what it has read so far ends inside a code fence or an inline code span."""

    _marks = re.compile(r"`+|\n")

    def __init__(self) -> None:
        self._fenced = False
        self._span = 0
        """The backticks that opened a span in this line, and that will close it."""
        self._run = 0
        """Backticks at the very end, which the next text may continue."""

    @property
    def inside(self) -> bool:
        fenced, span = self._after_run()
        return fenced or span > 0

    def read(self, text: str) -> None:
        if not text or ("`" not in text and not self._run and not self._span):
            return
        at = 0
        for mark in self._marks.finditer(text):
            if mark.start() > at or mark[0] == "\n":
                self._end_run()
            at = mark.end()
            if mark[0] == "\n":
                self._span = 0
            else:
                self._run += len(mark[0])
        if at < len(text):
            self._end_run()

    def _end_run(self) -> None:
        self._fenced, self._span = self._after_run()
        self._run = 0

    def _after_run(self) -> tuple[bool, int]:
        """Three or more backticks open and close a fence; fewer open a span that as many close."""
        if self._run >= 3 and not self._span:
            return not self._fenced, 0
        if self._run and not self._fenced:
            return False, self._run if not self._span else 0 if self._span == self._run else self._span
        return self._fenced, self._span


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` could be the beginning of `tag`."""
    if tag[0] not in text[-len(tag) :]:
        return 0
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
