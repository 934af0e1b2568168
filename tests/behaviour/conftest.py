"""A server over real sockets with a scripted model behind it; every stream read here is checked for legal order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle.testing.frames import parse_sse
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.sequence import check_sequence
from treadle.testing.server import PROVIDER, RunningServer, settings_for
from treadle.testing.upstream import ScriptedUpstream

httpx2 = pytest.importorskip("httpx2", reason="httpx2 comes with the openai client of the dev extra")

MODEL = f"{PROVIDER}/scripted"
LOOPBACK = "outgoing: {allow: [127.0.0.1]}"
"""Lets callers name addresses of this machine."""


@dataclass
class Driver:
    """Raw HTTP to the server under test. For the official client, see `client`."""

    server: RunningServer
    http: Any

    def post(self, path: str = "/responses", **body: Any) -> Any:
        return self.http.post(self.server.url + path, json={"model": MODEL, **body})

    def create(self, **body: Any) -> dict[str, Any]:
        reply = self.post(**body)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def stream(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a streamed response, framing and order checked."""
        reply = self.post(stream=True, **body)
        assert reply.status_code == 200, reply.text
        events = parse_sse(reply.content)
        check_sequence(events)
        return events

    def get(self, path: str) -> Any:
        return self.http.get(self.server.url + path)

    def delete(self, path: str) -> Any:
        return self.http.delete(self.server.url + path)


@pytest.fixture
def model() -> Iterator[ScriptedUpstream]:
    """The model server, in a thread; after the test all that was scripted must have been asked for, and no more."""
    with ScriptedUpstream() as upstream:
        yield upstream
    upstream.assert_consumed()


@pytest.fixture
def server(tmp_path: Path, model: ScriptedUpstream) -> Iterator[RunningServer]:
    with RunningServer(settings_for(tmp_path, model.url)) as running:
        yield running


@pytest.fixture
def api(server: RunningServer) -> Iterator[Driver]:
    with httpx2.Client(timeout=20) as http:
        yield Driver(server, http)


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    """The official client, in its strict mode: every answer must match the SDK's types exactly."""
    from openai import OpenAI

    with OpenAI(base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True) as found:
        yield found


@pytest.fixture
def mcp() -> Iterator[FakeMcpServer]:
    """An MCP server that answers as long as the test runs."""
    with FakeMcpServer() as fake:
        yield fake


@pytest.fixture
def remote(tmp_path: Path, model: ScriptedUpstream) -> Iterator[Driver]:
    """A driver for a server that may connect to this machine, as MCP servers of tests are on it."""
    with (
        RunningServer(settings_for(tmp_path, model.url, LOOPBACK)) as running,
        httpx2.Client(timeout=20) as http,
    ):
        yield Driver(running, http)


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def sent(model: ScriptedUpstream, number: int = 1) -> list[dict[str, Any]]:
    """The messages of the `number`-th model request (from 1)."""
    found: list[dict[str, Any]] = json.loads(model.requests[number - 1].raw)["messages"]
    return found
