"""The examples of docs/batches.md and docs/webhooks.md run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from treadle.backends.webhooks import key_of, signature
from treadle.settings import load
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Reply, ScriptedUpstream

openai = pytest.importorskip("openai", reason="the openai client comes with the test extra")

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def test_the_example_of_batches_prints_the_answers(tmp_path: Path) -> None:
    (example,) = examples("batches.md", "python")
    echo = ScriptedUpstream(default=lambda request: Reply(request.body["messages"][-1]["content"].split()[-1]))
    with echo as model, RunningServer(settings_for(tmp_path, model.url)) as server:
        code = example.replace("http://127.0.0.1:8321/v1", server.url).replace("ollama/llama3.2", "scripted/scripted")
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "completed 3 of 3\nquestion-0 colour.\nquestion-1 fruit.\nquestion-2 river.\n"


def test_the_example_of_webhooks_receives_what_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = examples("webhooks.md", "python")
    secret = f"whsec_{b64encode(b'k' * 32).decode()}"
    there: dict[str, Any] = {}
    exec(
        compile(example.replace("whsec_…", secret).replace("OpenAI(", 'OpenAI(api_key="none", '), "page", "exec"), there
    )
    (sent,) = examples("webhooks.md", "json")
    body, now = sent.encode(), str(int(time.time()))
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": now,
        "webhook-signature": signature(key_of(secret), "evt_1", now, body),
    }

    class Shown:
        output_text = "It is done."

    there["client"].responses.retrieve = lambda _: Shown()
    there["receive"](body, headers)
    assert capsys.readouterr().out == "It is done.\n"


def test_the_settings_of_webhooks_are_settings(tmp_path: Path) -> None:
    (given,) = examples("webhooks.md", "yaml")
    path = tmp_path / "treadle.yaml"
    path.write_text(given, encoding="utf-8")
    found = load(str(path), environ={"TREADLE_WEBHOOK_SECRET": "s"}).require().webhooks
    assert (found.url, found.secret, len(found.events)) == ("https://app.lan/treadle", "s", 2)
