"""Citation marks leave the text, wherever it was cut, and become positions in what is left."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.citations import CitationScanner, span
from treadle.ports import SearchResult

SOURCES = {n: SearchResult(f"https://example.org/{n}", f"Page {n}", "", n) for n in (1, 2)}
TEXT = "Water boils at 100 °C【1】. It freezes at 0 °C 【2†source】【1】. Nothing says 【9】 this. 【not a mark"
PLAIN = "Water boils at 100 °C. It freezes at 0 °C . Nothing says  this. 【not a mark"


def _read(pieces: list[str]) -> tuple[str, list[tuple[int, int]]]:
    scanner = CitationScanner(SOURCES)
    text, cited = "", []
    for found in [*(part for piece in pieces for part in scanner.feed(piece)), *scanner.finish()]:
        if isinstance(found, str):
            text += found
        else:
            cited.append((found.number, len(text)))
    return text, cited


@given(st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_however_the_text_is_cut_marks_leave_it_and_point_at_the_same_places(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[a:b] for a, b in pairwise(edges)]
    assert _read(pieces) == (PLAIN, [(1, 21), (2, 42), (1, 42)])


def test_a_bracket_that_becomes_no_mark_is_text_before_long() -> None:
    scanner = CitationScanner(SOURCES)
    held = scanner.feed("【" + "x" * 30)
    assert held == []
    assert scanner.feed("y" * 30) == ["【" + "x" * 30 + "y" * 30]


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("Only one sentence", "Only one sentence"),
        ("First. Second one", "Second one"),
        ("First. Second one.", "Second one."),
        ("A title\nA line ", "A line"),
        ("", ""),
    ],
)
def test_a_citation_covers_the_sentence_before_it(text: str, cited: str) -> None:
    start, end = span(text)
    assert text[start:end] == cited
