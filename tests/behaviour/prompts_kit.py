"""What the tests of prompts share: a server in front of models that see and of ones that do not, and short hands."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import LOOPBACK, Driver, sent, text_of
from tests.behaviour.kit import error, serving
from treadle.testing.turns import Reply
from treadle.testing.upstream import ScriptedUpstream
from treadle.testing.web import FakeWeb

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
DATA = f"data:image/png;base64,{b64encode(PNG).decode()}"
UNKNOWN = "pmpt_" + "0" * 48


@dataclass
class Place:
    """A server that may go to `web`, in front of a model that sees and takes files, and of one that does not."""

    api: Driver
    model: ScriptedUpstream
    web: FakeWeb

    def put(self, path: str, **body: Any) -> Any:
        return self.api.http.put(self.api.server.url + path, json=body)

    def prompt(self, text: str, *variables: str) -> str:
        reply = self.api.post("/prompts", prompt=text, variables=list(variables))
        assert reply.status_code == 200, reply.text
        found: str = reply.json()["id"]
        return found

    def update(self, prompt: str, version: int, text: str, *variables: str, **more: Any) -> dict[str, Any]:
        reply = self.put(f"/prompts/{prompt}", prompt=text, version=version, variables=list(variables), **more)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def upload(self, content: bytes, name: str) -> str:
        files, form = {"file": (name, content)}, {"purpose": "user_data"}
        found: str = self.api.http.post(f"{self.api.server.url}/files", files=files, data=form).json()["id"]
        return found

    def ask(self, prompt: str, input: Any = "Hello", *, version: Any = None, **more: Any) -> dict[str, Any]:
        """The response; `values` are those of the variables."""
        self.model.script(Reply(text="Yes."))
        named = {"id": prompt, "variables": more.pop("values", None), "version": version}
        body = {"model": "able/scripted", "input": input, **more}
        response = self.api.create(prompt=named, **{name: value for name, value in body.items() if value is not None})
        assert text_of(response) == "Yes."
        return response

    def seen(self) -> list[dict[str, Any]]:
        """What the model was shown last."""
        return sent(self.model, len(self.model.requests))

    def refused(self, prompt: Any, status: int = 400, **more: Any) -> dict[str, Any]:
        asked = len(self.model.requests)
        found = error(self.api.post(**{"model": "able/scripted", "input": "Hello", "prompt": prompt, **more}), status)
        assert len(self.model.requests) == asked, "the model is not asked"
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("prompts")
    with ScriptedUpstream() as model, FakeWeb() as web:
        lines = [
            f"  able: {{kind: openai_chat, url: '{model.url}', capabilities: {{images: true, files: true}}}}",
            f"  plain: {{kind: openai_chat, url: '{model.url}', capabilities: {{images: false, files: false}}}}",
            LOOPBACK,
            "default_model: able/scripted",
            "files: {max_input_bytes: 3000000}",
        ]
        with serving(folder, model, *lines) as api:
            yield Place(api, model, web)


@pytest.fixture
def place(running: Place) -> Iterator[Place]:
    for left in (running.model.requests, running.model.unexpected, running.model.faults):
        left.clear()
    running.web.requests.clear()
    running.web._pages.clear()
    yield running
    running.model.assert_consumed()


def image(**given: Any) -> dict[str, Any]:
    return {"type": "input_image", **given}


def file(**given: Any) -> dict[str, Any]:
    return {"type": "input_file", **given}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}
