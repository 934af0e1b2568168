"""Where a history is cut: at turns, at steps, at the end; never between a call and its output."""

from __future__ import annotations

import random

import pytest

from treadle.engine.cut import cut_at
from treadle.wire.content import InputText
from treadle.wire.items import FunctionCall, FunctionCallOutput, Message, Reasoning, TypedItem


def items(kinds: str) -> list[TypedItem]:
    """u: user, d: developer, a: assistant, r: reasoning, 1-9: a call, and its output when it comes again."""
    made: list[TypedItem] = []
    called: set[str] = set()
    for index, kind in enumerate(kinds):
        item_id = f"item_{index}"
        if kind == "r":
            made.append(Reasoning(id=item_id))
        elif kind.isdigit() and kind in called:
            called.discard(kind)
            made.append(FunctionCallOutput(id=item_id, call_id=kind, output="x"))
        elif kind.isdigit():
            called.add(kind)
            made.append(FunctionCall(id=item_id, call_id=kind, name="f", arguments="{}"))
        else:
            role = {"u": "user", "d": "developer", "a": "assistant"}[kind]
            made.append(Message(id=item_id, role=role, content=[InputText("x")]))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("kinds", "level", "at"),
    [
        ("uaua", 0, 2),
        ("uau", 0, 2),
        ("u", 0, 0),
        ("ua11u", 0, 4),
        ("u1u1", 0, 1),  # the output came late: the call stays with it
        ("uar12u12", 0, 1),  # and so does all of its step
        ("u11a22a", 1, 6),  # the answer is the newest step
        ("u11r22", 1, 3),
        ("u11", 1, 1),
        ("u11r22", 2, 6),
        ("u11r2", 2, 5),
    ],
)
def test_cuts_fall_where_nothing_is_parted(kinds: str, level: int, at: int) -> None:
    assert cut_at(items(kinds), 0, level) == at


def test_what_leads_always_stays() -> None:
    assert cut_at(items("ddu"), 3, 0) == 3


@pytest.mark.parametrize("seed", range(200))
def test_no_call_is_ever_parted_from_its_output(seed: int) -> None:
    """Random histories with late, early and repeated calls."""
    chance = random.Random(seed)
    history = items("".join(chance.choice("uar123") for _ in range(30)))
    for level in (0, 1, 2):
        at = cut_at(history, 0, level)
        open_calls = {one.call_id for one in history[:at] if isinstance(one, FunctionCall)}
        open_calls -= {one.call_id for one in history[:at] if isinstance(one, FunctionCallOutput)}
        inside = {one.call_id for one in history[at:] if isinstance(one, FunctionCall)}
        outputs = {one.call_id for one in history[at:] if isinstance(one, FunctionCallOutput)} - inside
        assert not outputs & open_calls
