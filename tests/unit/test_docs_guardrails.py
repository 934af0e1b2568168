"""The examples of docs/guardrails.md run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.behaviour.guard_kit import FakeModeration
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Reply, ScriptedUpstream

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = (Path(__file__).parents[2] / "docs" / "guardrails.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
RULES, SERVICE = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def printed(number: int, folder: Path, *lines: str) -> str:
    head, _, _ = EXAMPLES[0].partition("response = ")
    example = EXAMPLES[number] if number == 0 else head + EXAMPLES[number]
    with (
        ScriptedUpstream(default=Reply(text="With a stone.")) as model,
        RunningServer(settings_for(folder, model.url, *lines)) as server,
    ):
        code = example.replace("http://127.0.0.1:8321/v1", server.url).replace("ollama/qwen3:8b", "scripted/scripted")
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=50, check=False
        )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_rules_block(tmp_path: Path) -> None:
    assert printed(0, tmp_path, RULES) == "I may not talk about that."


def test_a_service_blocks_and_scores(tmp_path: Path) -> None:
    with FakeModeration("sword") as service:
        address = re.search(r'"(http://[^"]*)"', service.line)
        assert address is not None
        lines = SERVICE.replace("http://127.0.0.1:9000/v1/moderations", address.group(1))
        lines = lines.replace("${env.MODERATION_KEY}", "hush")
        assert printed(1, tmp_path, lines) == "refusal"
        assert service.headers[0]["authorization"] == "Bearer hush"
        assert printed(2, tmp_path, lines) == "True"
