"""Strangers' text on a terminal: names and passages may hold characters that would move the cursor or worse."""

from __future__ import annotations

import io
import sys
import unicodedata

_JOINERS = "\u200c\u200d"
"""They shape letters in Persian, Hindi and emoji."""


def printable(name: str) -> str:
    """A name on one line: what cannot be seen is written as an escape, bytes that are no UTF-8 too."""
    return "".join(char if char.isprintable() else _escaped(char) for char in name)


def readable(text: str) -> str:
    """A passage, with its lines: what cannot be seen is left out."""
    return "\n".join("".join(map(_shown, line)).rstrip() for line in text.splitlines()).strip("\n")


def width(text: str) -> int:
    """Columns that a printable text takes."""
    return sum(_columns(char) for char in text)


def cut(text: str, columns: int) -> str:
    """As much of a printable text as fits, its end kept, since that tells files apart."""
    if width(text) <= columns:
        return text
    left = columns - 1
    start = len(text)
    while start and (left := left - _columns(text[start - 1])) >= 0:
        start -= 1
    return f"…{text[start:]}" if columns > 0 else ""


def forgiving() -> None:
    """Lets standard output and error take characters that the terminal's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"  # how Python keeps a byte that is no UTF-8
    return char.encode("unicode_escape").decode("ascii")


def _shown(char: str) -> str:
    if char.isprintable() or char in _JOINERS:
        return char
    return " " if char.isspace() else ""


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
