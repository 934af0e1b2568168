"""Keeping the whole of a tool's text: bounded, and never in the way of the turn."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.engine.support import Look, events_of, plan_of
from treadle.engine import dispatch
from treadle.engine.turn import Keep
from treadle.errors import StorageFault
from treadle.ports import FileRow, ToolOutcome
from treadle.testing.scripted import ScriptedModel, calls, says


def told(text: str, keep: Keep) -> str:
    model = ScriptedModel(calls("look"), says("I see."))
    plan = plan_of(model, tools=[{"type": "lookup"}], server_tools={"lookup": Look(ToolOutcome(text))})
    events, _ = events_of(dataclasses.replace(plan, keep=keep))
    assert events[-1]["response"]["status"] == "completed"
    found: str = events[-1]["response"]["output"][1]["output"]
    return found[dispatch.MAX_OUTPUT :]


class Kept:
    def __init__(self, fault: BaseException | None = None) -> None:
        self.given: list[tuple[str, str]] = []
        self.fault = fault

    async def __call__(self, filename: str, text: str) -> FileRow:
        self.given.append((filename, text))
        if self.fault is not None:
            raise self.fault
        return FileRow(id="file-1", filename=filename, purpose="user_data", bytes=len(text), created_at=1)


def test_all_of_it_is_kept() -> None:
    kept = Kept()
    text = "ä" * 300_000
    assert told(text, kept) == (
        "\n[37856 more characters were cut off. Full text: file-1, GET /v1/files/file-1/content]"
    )
    assert kept.given == [("look.txt", text)]


def test_what_is_kept_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_KEPT", 400_001)
    kept = Kept()
    assert "The first 400001 bytes: file-1, GET" in told("ä" * 300_000, kept)
    assert kept.given == [("look.txt", "ä" * 200_000)]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (StorageFault("The disk is full."), "Keeping the full text as a file failed: The disk is full."),
        (RuntimeError("secret"), "Keeping the full text as a file failed."),
        (TimeoutError(), "Keeping the full text as a file took longer than 30 seconds"),
    ],
)
def test_a_failure_to_keep_it_is_said_and_nothing_more(fault: BaseException, says: str) -> None:
    note = told("x" * 300_000, Kept(fault))
    assert says in note
    assert "37856 more characters were cut off." in note
    assert "secret" not in note
