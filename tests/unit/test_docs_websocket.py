"""The example of docs/websocket.md runs as it is written, and what the page says of an error is what is sent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.behaviour.socket_kit import opened
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Call, Reply, ScriptedUpstream

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = Path(__file__).parents[2] / "docs" / "websocket.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
ERRORS = re.findall(r"^```json\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = EXAMPLES
    script = (Reply(calls=[Call("clock", {})]), Reply(text="It is noon."))
    with (
        ScriptedUpstream(*script, models=["gpt-oss:20b"]) as model,
        RunningServer(settings_for(tmp_path, model.url)) as server,
    ):
        exec(compile(example.replace("http://127.0.0.1:8321/v1", server.url), str(PAGE), "exec"), {})
        model.assert_consumed()
    assert capsys.readouterr().out == "It is noon."
    assert [message["role"] for message in model.requests[1].body["messages"]] == ["user", "assistant", "tool"]


def test_the_error_is_the_one_that_is_sent(tmp_path: Path) -> None:
    (shown,) = ERRORS
    with (
        ScriptedUpstream() as model,
        RunningServer(settings_for(tmp_path, model.url)) as server,
        opened(server) as socket,
    ):
        socket.ask(input="Go on.", previous_response_id="resp_1")
        assert socket.next() == json.loads(shown)
