"""Repairs: to which call a fragment belongs, and characters that were escaped in halves."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.models.repair import CallSlots, SurrogateMender

Fragment = tuple[int | None, str | None, str | None, str]


def gathered(*deltas: list[Fragment]) -> list[tuple[str | None, str]]:
    """Name and arguments of each call that the fragments of `deltas` make."""
    slots, made = CallSlots(), dict[int, tuple[str | None, str]]()
    for delta in deltas:
        slots.next_delta()
        for fragment in delta:
            placed = slots.place(*fragment)
            name, arguments = made.get(placed.slot, (None, ""))
            made[placed.slot] = (name or placed.name, arguments + placed.arguments)
    return [made[slot] for slot in sorted(made)]


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([[(0, "a", "f", "{")], [(0, None, None, "}")], [(1, "b", "g", "{}")]], [("f", "{}"), ("g", "{}")]),
        ([[(0, "a", "f", "{}")], [(0, "b", "f", "{}")]], [("f", "{}"), ("f", "{}")]),
        ([[(0, "", "f", "{}")], [(0, "", "f", "{}")]], [("f", "{}"), ("f", "{}")]),
        ([[(0, "", "f", ""), (0, "", "f", "")]], [("f", ""), ("f", "")]),
        ([[(0, "a", "f", "")], [(0, "a", "f", "{")], [(0, "a", "f", "}")]], [("f", "{}")]),
        ([[(0, None, "f", "")], [(0, None, "f", '{"a":')], [(0, None, "f", "1}")]], [("f", '{"a":1}')]),
        ([[(0, "a", "f", "{")], [(0, "z", None, "}")]], [("f", "{}")]),
        ([[(None, "a", "f", "{")], [(None, "b", "g", "[")], [(None, "a", None, "}")]], [("f", "{}"), ("g", "[")]),
        (
            [[(0, "a", "f", "{"), (1, "b", "g", "[")], [(1, None, None, "]"), (0, None, None, "}")]],
            [("f", "{}"), ("g", "[]")],
        ),
        ([[(0, "a", "f", "{")], [(None, None, None, "}")]], [("f", "{}")]),
        ([[(5, "a", "f", "{}")], [(3, "b", "g", "{}")]], [("f", "{}"), ("g", "{}")]),
        ([[(0, "a", None, "")], [(0, None, "f", "{}")]], [("f", "{}")]),
    ],
)
def test_fragments_find_their_call(deltas: list[list[Fragment]], expected: list[tuple[str | None, str]]) -> None:
    assert gathered(*deltas) == expected


FRAGMENTS = st.tuples(
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, "", "a", "b"]),
    st.sampled_from([None, "", "f", "g"]),
    st.sampled_from(["", "{", "}", "1"]),
)


@given(st.lists(st.lists(FRAGMENTS, max_size=3), max_size=8))
def test_nothing_of_any_fragments_is_lost(deltas: list[list[Fragment]]) -> None:
    made = gathered(*deltas)
    sent = "".join(arguments for delta in deltas for *_, arguments in delta)
    assert sorted("".join(arguments for _, arguments in made)) == sorted(sent)


def mended(*texts: str) -> str:
    mender = SurrogateMender()
    return "".join(json.loads(mender.mend(json.dumps({"a": text, "b": [1, "x"]}).encode()))["a"] for text in texts)


def test_halves_of_a_character_are_joined_over_two_events() -> None:
    assert mended("Hi \ud83d", "\ude00!") == "Hi \U0001f600!"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["\ud83dx"], "\ufffdx"),
        (["x\ude00"], "x\ufffd"),
        (["\ud83d\ud83d\ude00"], "\ufffd\U0001f600"),
        (["a\ud83d", "b"], "ab"),
        (["\\ud83d is an escape", '\n\t"\\'], '\\ud83d is an escape\n\t"\\'),
    ],
)
def test_halves_that_find_no_other_half_do_no_harm(texts: list[str], expected: str) -> None:
    assert mended(*texts) == expected


@given(st.text(max_size=20), st.integers(0, 40))
def test_any_text_cut_between_any_two_utf16_units_is_whole_again(text: str, at: int) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    halves = (units[: 2 * at], units[2 * at :])
    assert mended(*(half.decode("utf-16-be", "surrogatepass") for half in halves if half)) == text


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_can_be_mended(data: bytes) -> None:
    mender = SurrogateMender()
    mender.mend(data)
    mender.mend(b"\\ud83d" + data + b"\\ude00")


def test_a_name_repeated_with_every_fragment_costs_time_in_proportion() -> None:
    """Each fragment ends like a value; to read all of them again for each took more than a minute."""
    slots = CallSlots()
    begun = time.perf_counter()
    for start, fragment in (('{"k":[', '{"a":"' + "x" * 500 + '"},'[:-1] + ', {"b":"}'), ("x", "{" + "x" * 500 + "}")):
        slots.next_delta()
        slots.place(0, None, start, start)
        for _ in range(20_000):
            slots.next_delta()
            assert slots.place(0, None, start, fragment).arguments == fragment
    assert time.perf_counter() - begun < 5


@given(st.recursive(st.text() | st.none(), lambda some: st.lists(some) | st.dictionaries(st.text(), some)), st.data())
def test_the_end_of_a_value_is_found_however_it_was_cut(value: object, data: st.DataObject) -> None:
    text = json.dumps([value])
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    pieces = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    deltas: list[list[Fragment]] = [[(0, None, "f", piece)] for piece in [*pieces, "{}"]]
    assert gathered(*deltas) == [("f", text), ("f", "{}")]
