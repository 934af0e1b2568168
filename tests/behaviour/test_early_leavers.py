"""Clients that leave before anything was said: nothing stays locked, open or running."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.behaviour.conftest import MODEL, Driver
from treadle.testing.gates import Gate
from treadle.testing.upstream import Reply, ScriptedUpstream


def _post_and_leave(api: Driver, path: str, body: dict[str, Any]) -> None:
    """Sends a request and closes the connection without reading."""
    data = json.dumps({"model": MODEL, **body}).encode()
    parts = urlsplit(api.server.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as raw:
        head = f"POST /v1{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        raw.sendall(head.encode() + b"\r\n\r\n" + data)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_at_once_does_not_keep_its_conversation(
    api: Driver, model: ScriptedUpstream, stream: bool
) -> None:
    model.default = Reply(text="Hello.")
    conversation = api.post("/conversations").json()["id"]
    for _ in range(5):
        _post_and_leave(api, "/responses", {"input": "Hi.", "conversation": conversation, "stream": stream})
    statuses = set[int]()
    for _ in range(200):
        statuses.add(api.post(input="Hi.", conversation=conversation).status_code)
        if 200 in statuses:
            break
    assert 200 in statuses


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_client_that_leaves_early_ends_the_model_call(
    api: Driver, model: ScriptedUpstream, stream: bool
) -> None:
    gate = Gate()
    model.script(Reply(text="Never read.", before=gate))
    data = {"messages": [{"role": "user", "content": "Hi."}], "stream": stream}
    parts = urlsplit(api.server.url)
    body = json.dumps({"model": MODEL, **data}).encode()
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as raw:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        asked = model.received_blocking()
    asked.disconnected.wait_blocking()
    gate.set()
