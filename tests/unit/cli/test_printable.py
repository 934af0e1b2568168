"""Strangers' text on a terminal."""

import unicodedata

from treadle.cli.printable import cut, printable, readable, width


def test_names_stay_on_one_line_and_show_what_cannot_be_seen() -> None:
    assert printable("größe 漢.md") == "größe 漢.md"
    assert printable("a\nb\x1b[2J\u202e\udcff") == "a\\nb\\x1b[2J\\u202e\\xff"
    assert printable("\ud800") == "\\ud800"


def test_passages_keep_their_lines_and_lose_what_moves_the_cursor() -> None:
    assert readable("\n\na\tb\r\n\x1b[31mc\x00\x9b\u202ed  \n\n") == "a b\n[31mcd"
    assert readable("می\u200cخواهم") == "می\u200cخواهم"
    every = "".join(map(chr, range(0x300)))
    assert not [char for char in readable(every) if unicodedata.category(char) == "Cc" and char != "\n"]


def test_width_counts_columns_and_cutting_keeps_the_end() -> None:
    assert (width("abc"), width("漢字"), width("e\u0301")) == (3, 4, 1)
    assert cut("folder/name.md", 8) == "…name.md"
    assert cut("name.md", 7) == "name.md"
    assert cut("漢字漢字", 6) == "…漢字"
    assert [cut("abc", columns) for columns in (2, 1, 0, -3)] == ["…c", "…", "", ""]
