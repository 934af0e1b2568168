"""Splits `<think>` blocks out of a model's text, wherever the network cut it (bug case 17).

A block counts only at the very start of the answer: a tag in a later code sample is text. Some chat templates put the
opening tag into the prompt, so only the closing one arrives. Text before it can then be told from an answer only
once it has come; `hold` waits for that, at the price of the deltas, and is used where nobody watches them or where the
model is known to do it.
"""

from __future__ import annotations

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
        self._seen = ""
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
        """What was still undecided. An unclosed block stays reasoning; it is not an answer."""
        text, self._buffer = self._buffer, ""
        if not text:
            return []
        return [("reasoning" if self._state == "inside" else "text", text)]

    def _start(self) -> None:
        """Waits while the text so far could still become an opening tag."""
        stripped = self._buffer.lstrip()
        for tag in _OPEN:
            if stripped.startswith(tag):
                self._state, self._close = "inside", _CLOSE[tag]
                self._buffer = stripped[len(tag) :].lstrip("\n")
                return
        if not any(tag.startswith(stripped) for tag in _OPEN):
            self._state = "open"

    def _inside(self, out: list[Piece]) -> None:
        at = self._buffer.find(self._close)
        if at >= 0:
            if thought := self._buffer[:at]:
                out.append(("reasoning", thought))
            self._buffer = self._buffer[at + len(self._close) :]
            self._state = "after"
            return
        keep = _overlap(self._buffer, self._close)
        if thought := self._buffer[: len(self._buffer) - keep]:
            out.append(("reasoning", thought))
        self._buffer = self._buffer[len(self._buffer) - keep :]

    def _open(self, out: list[Piece]) -> None:
        """No opening tag came. A lone closing tag outside of code still ends reasoning."""
        at = self._buffer.find(_LONE_CLOSE)
        if at >= 0 and not _in_code(self._seen + self._buffer[:at]):
            self.lone_close = True
            if before := self._buffer[:at]:
                out.append(("reasoning" if self._hold else "text", before))
            self._buffer = self._buffer[at + len(_LONE_CLOSE) :]
            self._state = "after"
            return
        if self._hold:
            return
        keep = 0 if at >= 0 else _overlap(self._buffer, _LONE_CLOSE)
        if text := self._buffer[: len(self._buffer) - keep]:
            out.append(("text", text))
            if "`" in text or self._seen:
                self._seen += text
        self._buffer = self._buffer[len(self._buffer) - keep :]

    def _after(self, out: list[Piece]) -> None:
        """The white space between the block and the answer belongs to neither; from then on all is text."""
        text = self._buffer.lstrip()
        self._buffer = ""
        if text:
            self._state = "plain"
            out.append(("text", text))


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` could be the beginning of `tag`."""
    if tag[0] not in text[-len(tag) :]:
        return 0
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0


def _in_code(before: str) -> bool:
    """Whether the end of `before` stands inside a code fence or an inline code span."""
    if before.count("```") % 2:
        return True
    line = before.rsplit("\n", 1)[-1]
    return line.count("`") % 2 == 1
