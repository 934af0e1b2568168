"""A log that breaks off anywhere is closed into a stream that the protocol allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2

from tests.behaviour.background_kit import frames
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, serving
from treadle.api.broken_off import BrokenOff
from treadle.testing.frames import parse_sse
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.sequence import check_sequence
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

CUSTOM = {"type": "custom", "name": "write"}


def frame(kind: str, number: int, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **fields})}\n\n".encode()


def test_wherever_it_breaks_off(tmp_path: Path) -> None:
    with FakeMcpServer() as mcp, ScriptedUpstream() as model:
        remote = {"type": "mcp", "server_label": "s", "server_url": mcp.url, "allowed_tools": ["echo"]}
        model.script(
            Reply("I look \u2028 about.", reasoning="First this.", calls=[Call("look", {"at": "it"})]),
            Reply(calls=[Call("echo", {"text": "once"})]),
            Reply(refusal="No, I will not."),
        )
        model.script(
            Reply("And now.", calls=[Call("get_weather", {"city": "Rome"}), Call("write", {"input": "some text"})])
        )
        with serving(tmp_path, model, "outgoing: {allow: [127.0.0.1]}", tool=Lookup("seen")) as api:
            tools = [LOOKUP, FUNCTION, CUSTOM, remote]
            logs = [
                frames(
                    httpx2.post(
                        f"{api.server.url}/responses",
                        json={"model": "scripted/m", "input": "x", "background": True, "stream": True, "tools": tools},
                        timeout=20,
                    ).content
                )
                for _ in range(2)
            ]
    for log in logs:
        checked = 0
        for cut in range(3, len(log)):
            broken = BrokenOff()
            for n in range(0, cut, 4):  # in chunks, as it is kept
                broken.read(b"".join(log[n : min(n + 4, cut)]))
            closing, number = broken.close(cut)
            output = [json.loads(data) for _, data in sorted(broken.items.items())]
            begun = json.loads(log[2].split(b"data: ")[1])["response"]
            error = {"code": "server_error", "message": "It stopped."}
            fault = {**error, "type": "server_error", "param": None}
            end = frame("error", number, **error, param=None, error=fault) + frame(
                "response.failed", number + 1, response={**begun, "status": "failed", "error": error, "output": output}
            )
            events = parse_sse(b"".join(log[:cut]) + closing + end + b"data: [DONE]\n\n")
            check_sequence(events)
            checked += len(events) > cut + 2
        assert checked > 5
