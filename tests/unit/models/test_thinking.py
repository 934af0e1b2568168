"""The think splitter: what is thought and what is answered, wherever the text was cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.models.thinking import ThinkSplitter


def split(*texts: str, hold: bool = False) -> tuple[str, str]:
    """The reasoning and the answer."""
    splitter = ThinkSplitter(hold=hold)
    pieces = [piece for text in texts for piece in splitter.feed(text)] + splitter.finish()
    assert all(text for _, text in pieces)
    return tuple("".join(text for kind, text in pieces if kind == wanted) for wanted in ("reasoning", "text"))  # type: ignore[return-value]


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", ("", "Hello.")),
        ("<think>Hm.</think>\n\nHello.", ("Hm.", "Hello.")),
        ("\n <think>\n\nHm.\n</think>Hello.", ("Hm.\n", "Hello.")),
        ("<thinking>Hm.</thinking>Hello.", ("Hm.", "Hello.")),
        ("[THINK]Hm.[/THINK]Hello.", ("Hm.", "Hello.")),
        ("<think></think>Hello.", ("", "Hello.")),
        ("<think>\n\n</think>\n\nHello.", ("", "Hello.")),
        ("<think>Hm", ("Hm", "")),
        ("<think>a < b </thin", ("a < b </thin", "")),
        ("<thi", ("", "<thi")),
        ("<thing> Hello.", ("", "<thing> Hello.")),
        ("Say <think>x", ("", "Say <think>x")),
        ("<think>a</think>b</think>c<think>d</think>", ("a", "b</think>c<think>d</think>")),
        ("See `</think>` there.", ("", "See `</think>` there.")),
        (
            "See ``</think>`` there.",
            ("", "See ``</think>`` there."),
        ),
        ("```\n</think>\n```\nend", ("", "```\n</think>\n```\nend")),
        ("a ` b\n", ("", "a ` b\n")),
        ("  ", ("", "  ")),
    ],
)
def test_blocks_at_the_start_are_reasoning_and_all_else_is_text(
    text: str, expected: tuple[str, str], hold: bool
) -> None:
    assert split(text, hold=hold) == expected
    assert split(*text, hold=hold) == expected


def test_a_lone_closing_tag_makes_all_before_it_reasoning_if_it_was_held() -> None:
    assert split("Hm.</think>\nHello.", hold=True) == ("Hm.", "Hello.")
    assert split("Hm.</think>\nHello.", hold=False) == ("", "Hm.Hello.")


def test_a_lone_closing_tag_is_remembered_as_the_models_habit() -> None:
    for text, lone in (("Hm.</think>Hi", True), ("<think>Hm.</think>Hi", False), ("`</think>`", False)):
        splitter = ThinkSplitter()
        splitter.feed(text)
        assert splitter.lone_close is lone


def test_deltas_leave_at_once_but_for_what_may_become_a_tag() -> None:
    splitter = ThinkSplitter()
    assert splitter.feed("<thi") == []
    assert splitter.feed("nk>Well") == [("reasoning", "Well")]
    assert splitter.feed(", so</") == [("reasoning", ", so")]
    assert splitter.feed("think>") == []
    assert splitter.feed(" Yes") == [("text", "Yes")]
    assert splitter.feed(" no") == [("text", " no")]


PIECES = [
    "<think>",
    "</think>",
    "<thinking>",
    "</thinking>",
    "[THINK]",
    "[/THINK]",
    "<",
    ">",
    "think",
    "`",
    "```",
    "\n",
    " ",
    "a",
    "é",
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.lists(st.integers(0, 60), max_size=8), st.booleans()
)
def test_any_cut_of_any_text_gives_the_same_two_texts(text: str, cuts: list[int], hold: bool) -> None:
    points = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert split(*(text[start:end] for start, end in pairwise(points)), hold=hold) == split(text, hold=hold)
