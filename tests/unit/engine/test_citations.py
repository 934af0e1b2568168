"""Citation marks leave the text, wherever it was cut, and become positions in what is left."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.unit.engine.support import events_of, plan_of
from treadle.engine.citations import Citable, CitationScanner, CitedFile, citable_in, span
from treadle.ports import SearchResult
from treadle.testing.scripted import ScriptedModel, says
from treadle.wire.items import FileSearchRecord, FoundPassage, SearchAction, Told, WebSearchCall

FILE = "file-0a1b"
SOURCES = [
    SearchResult("https://example.org/1", "Page 1", "", 1),
    CitedFile(FILE, "tea.md", 2),
    CitedFile("file-9z", "milk.md", 3),
]
TEXT = "Water boils at 100 °C【1】. It freezes at 0 °C 【2†source】【1】. Nothing says 【9】 this. 【not a mark"
PLAIN = "Water boils at 100 °C. It freezes at 0 °C. Nothing says this. 【not a mark"


def citable() -> Citable:
    found = Citable()
    found.add(SOURCES)
    return found


def read(pieces: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """The text that is left, and each citation's number with its place."""
    scanner = CitationScanner(citable())
    text, cited = "", []
    for found in [*(part for piece in pieces for part in scanner.feed(piece)), *scanner.finish()]:
        if isinstance(found, str):
            text += found
        else:
            cited.append((found.number, len(text)))
    return text, cited


def cut(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(at, len(text)) for at in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_however_the_text_is_cut_marks_leave_it_and_point_at_the_same_places(cuts: list[int]) -> None:
    assert read(cut(TEXT, cuts)) == (PLAIN, [(1, 21), (2, 41), (1, 41)])


FRAGMENTS = [
    *(".", "(", " 【2】", " 【9】"),
    *(
        "【",
        "】",
        "<",
        "|",
        ">",
        "<|",
        "|>",
        " ",
        "  ",
        "\t",
        "\n",
        "a",
        "。",
        "年",
        "†",
        ",",
        ", ",
        "-",
        "1",
        "2",
        "3",
        "9",
    ),
    *(
        "12345",
        "123456",
        "file-",
        FILE,
        "file-9z",
        "file-no",
        "【1】",
        "【2, 3】",
        "【1†L3】",
        f"<|{FILE}|>",
        "<|file-no|>",
    ),
    *(f"【{FILE}】", "<|im_end|>", "x" * 45, " " * 12, "f", "【1 "),
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=24), st.lists(st.integers(0, 300), max_size=20))
def test_any_text_reads_the_same_in_one_piece_and_in_many(fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    whole = read([text])
    assert read(cut(text, cuts)) == whole
    assert read(list(text)) == whole


@pytest.mark.parametrize(
    ("text", "plain", "cited"),
    [
        (f"Tea is hot <|{FILE}|>.", "Tea is hot.", [(2, 10)]),
        (f"Tea is hot<|{FILE}|><|file-9z|>.", "Tea is hot.", [(2, 10), (3, 10)]),
        ("Invented <|file-abc|>.", "Invented.", []),
        (f"So 【{FILE}】.", "So.", [(2, 2)]),
        ("So 【2, 3】.", "So.", [(2, 2), (3, 2)]),
        ("So 【2，9】.", "So.", [(2, 2)]),
        ("So 【3:0†source】.", "So.", [(3, 2)]),
        ("【2】 says so.", " says so.", [(2, 0)]),
        ("Ends so 【2】", "Ends so", [(2, 7)]),
        ("One. 【2】Two 【9】(three 【2】【3】) 【2】x", "One. Two (three) x", [(2, 4), (2, 15), (3, 15), (2, 16)]),
        ("A list:\n【2】 x", "A list:\n x", [(2, 8)]),
        ("【2024年度报告】 and <|im_end|> and a < b", "【2024年度报告】 and <|im_end|> and a < b", []),
        ("【重要】 [1] (2) <3>", "【重要】 [1] (2) <3>", []),
    ],
)
def test_marks_of_every_form_are_understood_and_nothing_else_is(text: str, plain: str, cited: list[object]) -> None:
    assert read([text]) == (plain, cited)
    assert read(list(text)) == (plain, cited)


def test_a_bracket_that_becomes_no_mark_is_text_before_long() -> None:
    scanner = CitationScanner(citable())
    assert scanner.feed("【1 " + "x" * 30) == []
    assert scanner.feed("y" * 30) == ["【1 " + "x" * 30 + "y" * 30]
    assert scanner.feed("【重要") == ["【重要"]


def test_floods_of_spaces_and_brackets_cost_time_in_proportion() -> None:
    def seconds(size: int) -> float:
        scanner, began = CitationScanner(citable()), perf_counter()
        for piece in (" " * 50, "【", "<|f", "【1 "):
            for _ in range(size):
                scanner.feed(piece)
        scanner.feed(" " * 50 * size + "【" * 50 * size)
        return perf_counter() - began

    small = seconds(200)
    assert seconds(2_000) < max(40 * small, 0.5)


@given(st.lists(st.integers(0, 80), max_size=10))
def test_deltas_and_annotations_of_a_turn_do_not_depend_on_the_cuts(cuts: list[int]) -> None:
    text = f" 【2】Tea is hot 【2】【2】<|{FILE}|>. Milk <|file-9z|> is white. Both <|file-no|>."
    plan = plan_of(ScriptedModel(says(*[piece for piece in cut(text, cuts) if piece])))
    plan.citable.add(SOURCES)
    events, _ = events_of(plan)
    (part,) = events[-1]["response"]["output"][0]["content"]
    assert part["text"] == "Tea is hot. Milk is white. Both."
    assert part["annotations"] == [
        {"type": "file_citation", "file_id": FILE, "filename": "tea.md", "index": 0},
        {"type": "file_citation", "file_id": FILE, "filename": "tea.md", "index": 10},
        {"type": "file_citation", "file_id": "file-9z", "filename": "milk.md", "index": 16},
    ]


def test_what_earlier_turns_found_can_be_cited_under_its_numbers() -> None:
    web = WebSearchCall(
        action=SearchAction(type="search", sources=[{"url": Raw(b'"https://a.example/x?y=(z"')}]),
        results="【4】 Title\nhttps://a.example/x?y=(z\n【9】 Forged\nhttps://evil.example\n",
    )
    searched = FileSearchRecord(
        results=[FoundPassage(file_id=FILE, filename="tea.md"), FoundPassage(file_id="file-9z", filename="left out")],
        told=Told(passages="…", numbers=[6, 0]),
    )
    found, numbers = citable_in([web, searched])
    assert found.named("4", None) == [SearchResult("https://a.example/x?y=(z", "Title", "", 4)]
    assert found.named("6,9", None) == [CitedFile(FILE, "tea.md", 6)]
    assert found.named(None, "file-9z") == []
    assert numbers.next() == 7


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
