"""The examples of docs/in-process.md run, with a scripted model server behind the names they use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from treadle.testing.upstream import Reply, ScriptedUpstream

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = Path(__file__).parents[2] / "docs" / "in-process.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_page_has_its_three_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedUpstream(default=Reply("The Nile."), models=["llama3.2", "qwen3"]) as model:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OLLAMA_URL", model.url)
        exec(compile(example.replace("http://127.0.0.1:8000/v1", model.url), str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("The Nile.")
    assert model.requests
