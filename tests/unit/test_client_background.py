"""Background responses inside the process: made while the client is open, and again by the next one if need be."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from treadle.client import client
from treadle.testing.gates import Gate
from treadle.testing.upstream import Reply, ScriptedUpstream

pytest.importorskip("openai", reason="the openai client comes with the test extra")

MODEL = "scripted/scripted"


def outcome(opened: Any, response_id: str) -> Any:
    until = monotonic() + 15
    while (found := opened.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert monotonic() < until, found.status
        sleep(0.01)
    return found


def test_they_are_made_streamed_again_and_taken_up_by_the_next_client(tmp_path: Path) -> None:
    never = Gate()
    with ScriptedUpstream(Reply("One."), Reply("Two."), Reply("Never.", before=never)) as model:
        setup: dict[str, Any] = {
            "data_dir": str(tmp_path),
            "models": {"scripted": {"kind": "openai_chat", "url": model.url, "retries": 0}},
        }
        with client(**setup) as opened:
            queued = opened.responses.create(model=MODEL, input="x", background=True)
            assert queued.status == "queued"
            assert outcome(opened, queued.id).output_text == "One."
            seen = list(opened.responses.create(model=MODEL, input="y", background=True, stream=True))
            rest = list(opened.responses.retrieve(seen[0].response.id, stream=True, starting_after=2))
            assert [event.model_dump() for event in rest] == [event.model_dump() for event in seen[3:]]
            left = opened.responses.create(model=MODEL, input="z", background=True).id
            model.received_blocking(3)
        model.script(Reply("Three."))
        with client(**setup) as opened:
            assert outcome(opened, left).output_text == "Three."
        model.assert_consumed()
    never.set()
