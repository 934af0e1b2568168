"""A server that must refuse everything before its model is asked, and what a refusal must look like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, httpx2
from treadle.settings import load
from treadle.testing.server import PROVIDER, RunningServer
from treadle.testing.upstream import ScriptedUpstream

ITEM = {"type": "message", "role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A server whose model must never be asked: every request here is refused before."""
    folder: Path = tmp_path_factory.mktemp("bad")
    with ScriptedUpstream() as upstream:
        file = folder / "treadle.yaml"
        # vLLM lists all it serves, so a name that is not listed is unknown before it is asked.
        lines = [f"data_dir: {folder}", f"models: {{{PROVIDER}: {{vendor: vllm, url: '{upstream.url}'}}}}"]
        file.write_text("\n".join(lines), encoding="utf-8")
        settings = load(file, environ={}).require()
        with RunningServer(settings) as running, httpx2.Client(timeout=20) as http:
            yield Driver(running, http)
        assert upstream.requests == []


def refused(
    reply: Any, status: int = 400, param: str | EllipsisType | None = None, code: str | None = None
) -> dict[str, Any]:
    """The error of a reply that must be the envelope, whole. `param` ... is any."""
    assert reply.status_code == status, reply.text[:500]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    body = reply.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert param is ... or error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    return error


def send(bad: Driver, body: bytes, path: str = "/responses", kind: str = "application/json", **headers: str) -> Any:
    return bad.http.post(bad.server.url + path, content=body, headers={"content-type": kind, **headers})
