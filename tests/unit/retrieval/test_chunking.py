"""Chunks: nothing of the text is lost, none is too large, and they end where the document ends a part."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.retrieval.documents_kit import words
from treadle.errors import InvalidRequest
from treadle.ports import Chunk, ChunkRules
from treadle.retrieval.chunking import MIN_TOKENS, chunked
from treadle.retrieval.extract.blocks import Block, Code, Heading, Page, Paragraph, Section, Table
from treadle.retrieval.extract.markdown import markdown
from treadle.retrieval.units import Counter
from treadle.vocabularies import count_tokens, load_encoding


@pytest.fixture(scope="module")
def count() -> Counter:
    encoding = load_encoding("o200k_base")
    return lambda text: count_tokens(encoding, text)


def bare(text: str) -> str:
    return "".join(text.split())


def in_order(text: str, chunks: Iterable[str]) -> bool:
    """Every character but blanks stands in some chunk, and each chunk goes on where the text was, or before it."""
    reached = 0
    for chunk in map(bare, chunks):
        start = text.find(chunk, max(0, reached - len(chunk)))
        if start < 0 or start > reached:
            return False
        reached = max(reached, start + len(chunk))
    return reached == len(text)


# Words that differ, so that a place in the text is known by them; then what real texts are full of.
UNIQUE = st.integers(0, 10**6).map(lambda number: f"w{number}")
WORDS = st.one_of(
    UNIQUE,
    st.sampled_from(
        [
            "the",
            "Dr.",
            "e.g.",
            "—",
            "3.14",
            "https://example.org/a?b=c",
            "字典里的词。",
            "🤦🏽‍♂️",
            "ß" * 40,
            "|",
            "```",
            "#",
        ]
    ),
    st.text(min_size=1, max_size=12),
)
SENTENCES = st.builds(
    lambda parts, end: " ".join(parts) + end,
    st.lists(WORDS, min_size=1, max_size=30),
    st.sampled_from([".", "!", "。", "", ":", "…"]),
)
TEXTS = st.builds(
    lambda parts, gap: gap.join(parts),
    st.lists(SENTENCES, max_size=12),
    st.sampled_from([" ", "\n", "\n\n", " \n \n", "\t"]),
)
BLOCKS = st.lists(
    st.one_of(
        TEXTS.map(Paragraph),
        TEXTS.map(Code),
        st.builds(Heading, SENTENCES, st.integers(1, 6)),
        st.builds(
            Table,
            st.lists(SENTENCES.map(lambda line: " ".join(line.split())), max_size=20),
            SENTENCES.map(lambda line: " ".join(line.split())),
        ),
        st.integers(1, 9).map(Page),
        st.lists(SENTENCES, max_size=3).map(Section),
    ),
    max_size=12,
)
RULES = st.builds(ChunkRules, max_tokens=st.integers(MIN_TOKENS, 200), overlap_tokens=st.integers(0, 150))


@given(BLOCKS, RULES)
@settings(deadline=None, max_examples=150)
def test_chunks_are_bounded_numbered_and_the_same_each_time(
    count: Counter, blocks: list[Block], rules: ChunkRules
) -> None:
    chunks = list(chunked(blocks, rules, count))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert all(chunk.text.strip() and count(chunk.text) <= rules.max_tokens for chunk in chunks)
    assert chunks == list(chunked(blocks, rules, count))


@given(st.lists(UNIQUE, unique=True, min_size=1, max_size=600), st.randoms(), RULES)
@settings(deadline=None, max_examples=100)
def test_every_word_is_in_a_chunk_in_order_and_no_chunk_repeats_another(
    count: Counter, names: list[str], random: object, rules: ChunkRules
) -> None:
    draw = random.choice  # type: ignore[attr-defined]
    text = "".join(name + draw([" ", " ", " ", ", ", ". ", ".\n", "\n", "\n\n", "; "]) for name in names)
    for block in (Paragraph(text), Code(text)):
        chunks = [chunk.text for chunk in chunked([block], rules, count)]
        assert in_order(bare(text), chunks)
        assert not any(bare(later) in bare(earlier) for earlier, later in pairwise(chunks))


@given(TEXTS, RULES)
@settings(deadline=None, max_examples=150)
def test_no_character_is_lost_whatever_the_text(count: Counter, text: str, rules: ChunkRules) -> None:
    for blocks in ([Paragraph(text)], [Code(text)], list(markdown(text))):
        chunks = [chunk.text for chunk in chunked(blocks, ChunkRules(rules.max_tokens, 0), count)]
        assert bare("".join(chunks)) == bare(text)


@given(st.text(st.characters(categories=["L", "N", "P", "S", "M", "So"]), min_size=1, max_size=400))
@settings(deadline=None, max_examples=100)
def test_text_without_blanks_is_cut_anyway(count: Counter, text: str) -> None:
    chunks = [chunk.text for chunk in chunked([Paragraph(text)], ChunkRules(MIN_TOKENS, 8), count)]
    assert all(count(chunk) <= MIN_TOKENS for chunk in chunks)
    assert in_order(bare(text), chunks)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 50_000,
        "字" * 50_000,
        "\u0301" * 20_000,
        "🤦" * 20_000,
        "a," * 25_000,
        ". " * 25_000,
        "\n " * 25_000 + "end",
        "(" * 50_000,
    ],
    ids=["one word", "Chinese", "accents", "emoji", "commas", "stops", "blank lines", "brackets"],
)
def test_odd_texts_of_50_kb_are_cut_in_bounded_time(count: Counter, text: str) -> None:
    start = time.monotonic()
    chunks = [chunk.text for chunk in chunked([Paragraph(text)], ChunkRules(), count)]
    assert time.monotonic() - start < 10
    assert in_order(bare(text), chunks) or len(set(bare(text))) <= 2  # a text of one sign is its own overlap
    assert max(map(count, chunks)) <= 800


@pytest.mark.parametrize(("size", "overlap"), [(100, 100), (100, 1_000), (16, 16), (4_096, 4_096)])
def test_an_overlap_as_large_as_the_chunk_still_makes_progress(count: Counter, size: int, overlap: int) -> None:
    text = words(3_000)
    chunks = [chunk.text for chunk in chunked([Paragraph(text)], ChunkRules(size, overlap), count)]
    assert in_order(bare(text), chunks)
    assert len(chunks) < 3 * count(text) / size + 3


def test_chunks_too_small_for_anything_are_refused(count: Counter) -> None:
    with pytest.raises(InvalidRequest, match="at least 16"):
        list(chunked([Paragraph("x")], ChunkRules(8, 0), count))


def cut(blocks: list[Block], count: Counter, size: int = 100, overlap: int = 0) -> list[Chunk]:
    return list(chunked(blocks, ChunkRules(size, overlap), count))


def test_an_overlap_begins_with_a_sentence_and_is_as_long_as_allowed(count: Counter) -> None:
    chunks = cut([Paragraph(words(400))], count, 200, 100)
    for before, after in pairwise(chunks):
        shared = after.text[: after.text.index(before.text[-6:]) + 6]
        assert before.text.endswith(shared)
        assert 50 <= count(shared) <= 100
        assert before.text.removesuffix(shared).rstrip().endswith(".")


def test_an_overlap_begins_with_a_sentence_also_where_sentences_are_long(count: Counter) -> None:
    text = " ".join(
        "The " + " ".join(f"w{number}" for number in range(start, start + 30)) + "." for start in range(0, 900, 30)
    )
    chunks = cut([Paragraph(text)], count, 240, 120)
    assert all(chunk.text.startswith("The ") for chunk in chunks)
    assert count(text) * 1.4 < sum(count(chunk.text) for chunk in chunks)


def test_no_overlap_reaches_into_another_section(count: Counter) -> None:
    blocks = [Paragraph(words(10)), Heading("B", 1), Paragraph(words(18, start=50)), Paragraph(words(20, start=99))]
    first, second = cut(blocks, count, 100, 50)
    assert first.text.startswith("W0 ")
    assert second.text.startswith("W50 ")


def test_a_chunk_ends_with_a_paragraph_that_ends_late_enough(count: Counter) -> None:
    blocks = [Paragraph(words(30, start=start)) for start in range(0, 300, 30)]
    assert all(chunk.text.endswith("9.") and "\n\n" not in chunk.text for chunk in cut(blocks, count))


def test_headings_one_after_the_other_stay_together(count: Counter) -> None:
    blocks = [Paragraph(words(15)), Heading("A chapter of a book with a rather long title", 1), Heading("B", 2)]
    [chunk] = cut([*blocks, Paragraph(words(10, start=50))], count, 160)
    assert "## B" in chunk.text


def test_a_heading_stays_with_what_follows_it(count: Counter) -> None:
    blocks: list[Block] = []
    for number in range(12):
        blocks += [Heading(f"Part {number}", 1), Paragraph(words(37, start=100 * number))]
    for chunk in cut(blocks, count):
        assert not chunk.text.split("\n")[-1].startswith("#")


def test_a_section_begins_a_chunk_once_the_one_before_has_some_text(count: Counter) -> None:
    blocks = [
        Heading("A", 1),
        Paragraph(words(12)),
        Heading("B", 2),
        Paragraph(words(3)),
        Heading("C", 2),
        Paragraph("c"),
    ]
    chunks = cut(blocks, count, overlap=50)
    assert [(chunk.text.split("\n")[0], chunk.section) for chunk in chunks] == [("# A", "A"), ("## B", "A > B")]
    assert chunks[1].text.endswith("## C\n\nc")


def test_pages_and_sections_are_those_where_the_chunk_begins(count: Counter) -> None:
    blocks: list[Block] = [Page(1), Section(["Intro"]), Paragraph("short"), Page(2), Paragraph("also short")]
    blocks += [Page(3), Section(["Intro", "Details"]), Paragraph(words(200))]
    chunks = cut(blocks, count)
    assert (chunks[0].page, chunks[0].section) == (1, "Intro")
    assert {(chunk.page, chunk.section) for chunk in chunks[1:]} == {(3, "Intro > Details")}


def test_sections_end_with_the_heading_of_the_same_or_a_higher_level(count: Counter) -> None:
    blocks: list[Block] = []
    for title, level in (("A", 1), ("B", 2), ("C", 3), ("D", 2), ("E", 1)):
        blocks += [Heading(title, level), Paragraph(words(40))]
    sections = [chunk.section for chunk in cut(blocks, count, 150)]
    assert sections == ["A", "A > B", "A > B > C", "A > D", "E"]


def test_a_split_table_repeats_its_header(count: Counter) -> None:
    rows = [f"city {number} | {number * 7}" for number in range(100)]
    chunks = cut(
        [Table(rows[:50], "Name | People"), Table(rows[50:], "Name | People", continues=True)], count, overlap=50
    )
    assert len(chunks) > 5
    assert all(chunk.text.startswith("Name | People\n") for chunk in chunks)
    assert [line for chunk in chunks for line in chunk.text.split("\n")[1:]] == rows


def test_a_header_too_long_to_be_repeated_is_cut_like_any_row(count: Counter) -> None:
    header = " | ".join(f"column{number}" for number in range(200))
    chunks = cut([Table(["a | b"], header)], count)
    assert bare("".join(chunk.text for chunk in chunks)) == bare(header + "a | b")


def test_code_keeps_its_blanks_and_is_cut_between_its_parts(count: Counter) -> None:
    function = "def f{0}(x):\n    if x:\n        return   {0}\n\n    return None\n"
    code = "\n\n".join(function.format(number) for number in range(30))
    chunks = cut([Code(code)], count, 120)
    assert all(chunk.text.startswith("def f") for chunk in chunks)
    assert "\n\n\n".join(chunk.text for chunk in chunks) == code.rstrip("\n")


def test_a_sentence_is_not_cut_where_a_chunk_can_end_before_it(count: Counter) -> None:
    for chunk in cut([Paragraph(words(500))], count, 90, 20):
        assert chunk.text.endswith(".")


def test_abbreviations_and_numbers_do_not_end_sentences(count: Counter) -> None:
    text = "Dr. Smith paid 3.14 Euro, i.e. Too much. " * 40
    assert all(chunk.text.startswith("Dr. Smith") for chunk in cut([Paragraph(text)], count, 60, 0))
