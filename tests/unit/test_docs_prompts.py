"""The examples of docs/prompts.md run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.engine import prompting
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Reply, ScriptedUpstream
from treadle.wire import base, prompts

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def printed(example: str, folder: Path, model: ScriptedUpstream) -> str:
    with RunningServer(settings_for(folder, model.url)) as server:
        code = example.replace("http://127.0.0.1:8321/v1", server.url).replace("ollama/qwen3:8b", "scripted/scripted")
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=50, check=False
        )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_first_example_puts_values_into_the_system_message(tmp_path: Path) -> None:
    with ScriptedUpstream() as model:
        model.script(Reply(text="Ash."))
        assert printed(EXAMPLES[0], tmp_path, model) == "1 You are a geologist. Answer in English.\n"
        assert model.requests[0].body["messages"] == [
            {"role": "system", "content": "You are a geologist. Answer in English."},
            {"role": "user", "content": "What is tuff?"},
        ]


def test_the_second_example_shows_the_model_a_file(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(b"A report that is really text.")
    with ScriptedUpstream() as model:
        model.script(Reply(text="None."))
        assert printed(EXAMPLES[1], tmp_path, model) == "None.\n"
        [message] = model.requests[0].body["messages"]
        assert message["role"] == "user"
        assert message["content"].startswith("Check [File: report] for mistakes.\n[File: report]\n[File: report.pdf]\n")
        assert "A report that is really text." in message["content"]


def test_the_bounds_are_as_the_page_says() -> None:
    for number in (prompts.MAX_PROMPT, base.MAX_STRING):
        assert f"{number:,} characters" in PAGE
    assert len(EXAMPLES) == 2
    assert prompting.placeholders("{{ a.b }} {% if %} {{ role }} {{role}}") == ["role"]
