"""The line of progress: what it says, and that it fits any terminal."""

import io
import os

import pytest

from treadle.cli.printable import width
from treadle.cli.progress import Progress

pty = pytest.importorskip("pty", reason="there are no such terminals here")


def sized(columns: int) -> tuple[int, io.TextIOWrapper]:
    """The far end of a terminal of that width, and a stream to it."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return ours, os.fdopen(theirs, "w", encoding="utf-8")


@pytest.mark.parametrize("columns", [1, 2, 5, 10, 20, 33, 50, 80, 200])
async def test_a_line_fits_its_terminal_whatever_the_name(columns: int) -> None:
    ours, stream = sized(columns)
    progress = Progress(stream, 7)
    with stream:
        async with progress.shown():
            progress.begin("漢字/" * 40 + "a\nb.md")
            progress.note("漢字/" * 40 + "a\nb.md", 123)
            progress._draw()
            stream.flush()
            sent = os.read(ours, 65_536).decode()
    os.close(ours)
    assert sent.startswith("\r")
    assert "\n" not in sent
    assert max(width(part) for part in sent.split("\r")) < max(columns, 2)
    if columns >= 50:
        assert "0/7   0% 0:00" in sent
        assert "b.md (123 chunks)" in sent


async def test_elsewhere_there_are_plain_lines() -> None:
    stream = io.StringIO()
    progress = Progress(stream, 3)
    async with progress.shown():
        for name, word, quiet in (("a\nb", "indexed", False), ("c", "unchanged", True)):
            progress.begin(name)
            progress.end(name, word, quiet=quiet)
        progress.begin("d")
        progress.fail("d", "It is damaged.\x1b")
    assert stream.getvalue() == "indexed a\\nb\nerror: d: It is damaged.\\x1b\n"
