"""Filenames and media types."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from treadle.wire.files import MAX_NAME, clean_filename, media_type_of


@given(st.text())
@example("../../x")
@example("\x00.\u202e..")
@example("." * 300)
@example("😀" * 100 + ".txt")
@example("a." + "b" * 300)
def test_a_clean_name_is_safe_and_stays_so(given: str) -> None:
    name = clean_filename(given)
    assert 0 < len(name.encode()) <= MAX_NAME
    assert not name.startswith(".")
    assert not set(name) & set("/\\")
    assert all(unicodedata.category(char) not in ("Cc", "Cs") for char in name)
    assert name == name.strip()
    assert clean_filename(name) == name


def test_an_ending_survives_a_long_name() -> None:
    assert clean_filename("x" * 300 + ".pdf") == "x" * 251 + ".pdf"
    assert clean_filename("😀" * 100 + ".txt").endswith("😀.txt")


def test_types_are_known_on_every_machine() -> None:
    assert media_type_of("a.DOCX").endswith("wordprocessingml.document")
    assert media_type_of("a.md") == "text/markdown"
    assert media_type_of("a.txt") == "text/plain"
    assert media_type_of("a.html") == "text/html"
    assert media_type_of("a.tar.bz2") == "application/octet-stream"
    assert media_type_of("") == "application/octet-stream"
