"""The examples of docs/background.md run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from treadle.testing.gates import Gate
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Reply, ScriptedUpstream

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = Path(__file__).parents[2] / "docs" / "background.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = EXAMPLES
    never = Gate()
    report, held = Reply(text="A long report."), Reply(text="A long report.", before=never)
    with (
        ScriptedUpstream(report, report, held, models=["gpt-oss:20b"]) as model,
        RunningServer(settings_for(tmp_path, model.url)) as server,
    ):
        names: dict[str, Any] = {}
        for example in (first, second, third):
            exec(compile(example.replace("http://127.0.0.1:8321/v1", server.url), str(PAGE), "exec"), names)
        names["client"].close()
    never.set()
    printed = capsys.readouterr().out
    assert printed.startswith("queued\ncompleted A long report.\nlong report.")
    assert printed.endswith("cancelled\n")
