"""The examples of docs/context.md run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import counting
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.turns import Refuse, Tokens
from treadle.testing.upstream import Reply, ScriptedUpstream

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = (Path(__file__).parents[2] / "docs" / "context.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def printed(number: int, folder: Path, model: ScriptedUpstream) -> list[str]:
    """What example `number` prints last; they all begin with the client of the first."""
    head, _, _ = EXAMPLES[0].partition("counted = ")
    example = EXAMPLES[number] if number == 0 else head + EXAMPLES[number]
    with RunningServer(settings_for(folder, model.url)) as server:
        code = example.replace("http://127.0.0.1:8321/v1", server.url).replace("ollama/qwen3:8b", "scripted/scripted")
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=50, check=False
        )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_first_example_counts(tmp_path: Path) -> None:
    with ScriptedUpstream() as model:
        assert 8 < int(printed(0, tmp_path, model)[0]) < 20
        assert model.requests == []


def test_the_second_example_compacts_before_the_last_answer(tmp_path: Path) -> None:
    with ScriptedUpstream() as model:
        model.script(Reply(text="Noted."), Reply(text="Once upon a time. " * 500, usage=Tokens(30, 2500)))
        model.script(Reply(text="The word is heron; a story was told."), Reply(text="Heron."))
        assert printed(1, tmp_path, model) == ["['message']", "['message']", "['compaction', 'message']"]
        model.assert_consumed()


def test_the_third_example_compacts_and_goes_on(tmp_path: Path) -> None:
    with ScriptedUpstream() as model:
        model.script(Reply(text="Launch on Tuesday."), Reply(text="On Tuesday."))
        assert printed(2, tmp_path, model) == ["['message', 'compaction']", "On Tuesday."]
        model.assert_consumed()


def test_the_fourth_example_drops_the_old_turn(tmp_path: Path) -> None:
    def answer(request: Any) -> Reply | Refuse:
        fits = len(request.raw) < 10_000
        return Reply(text="Yes.") if fits else Refuse(400, {"error": {"message": "prompt is too long: 9 tokens > 8"}})

    with ScriptedUpstream(default=answer) as model:
        assert printed(3, tmp_path, model) == ["completed auto"]
        assert [message["content"] for message in model.requests[-1].body["messages"]] == [
            "Be brief.",
            "A new question.",
        ]


def test_the_numbers_are_as_the_page_says() -> None:
    assert len(EXAMPLES) == 4
    text = " ".join(PAGE.split())
    assert f"{counting.PER_MESSAGE} tokens for each message and each call, and {counting.PER_ANSWER} for" in text
    assert f"{counting.LOW_IMAGE} tokens, and {counting.TILE} for each tile" in text
    assert f"{counting.UNKNOWN_IMAGE} if its size is not to be seen" in text
    assert f"a token for {counting.BYTES_PER_FILE_TOKEN} bytes" in text
    assert f"one for {counting.BYTES_PER_AUDIO_TOKEN:,}" in text
