"""What several behaviour tests share: server tools, servers with other settings, scripts in raw chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2

from tests.behaviour.conftest import Driver
from treadle.ports import ModelFunction, ServerTool, ToolDeclaration, ToolOutcome
from treadle.scope import Scope
from treadle.testing.gates import Gate, Waitable
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.turns import Raw, Turn, chunk, sse
from treadle.testing.upstream import ScriptedUpstream

FUNCTION = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
LOOKUP = {"type": "lookup"}


class Lookup:
    """A server tool, declared as `{"type": "lookup"}`, that offers the function `look`.

    `answers` are returned in turn (an exception is raised); `running` opens when a call has begun, and a call goes on
    only once `gate`, if any, is open; `stopped` opens when one was cancelled.
    """

    exclusive = False

    def __init__(self, *answers: str | Exception, gate: Gate | None = None) -> None:
        self.arguments: list[str] = []
        self.running = Gate()
        self.stopped = Gate()
        self._answers = list(answers)
        self._gate = gate

    def declare(self, declaration: ToolDeclaration) -> list[ModelFunction]:
        return [ModelFunction(name="look")]

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        self.arguments.append(arguments)
        self.running.set()
        try:
            if self._gate is not None:
                await self._gate.wait()
        except BaseException:
            self.stopped.set()
            raise
        answer = self._answers.pop(0) if self._answers else "seen"
        if isinstance(answer, Exception):
            raise answer
        return ToolOutcome(answer)


@contextmanager
def serving(
    data: Path, model: ScriptedUpstream, *extra: str, tool: ServerTool | None = None, url: str = ""
) -> Iterator[Driver]:
    """A driver for a server with further YAML lines, with a tool, or with another model server's `url`."""
    tools = {"lookup": tool} if tool is not None else {}
    with (
        RunningServer(settings_for(data, url or model.url, *extra), server_tools=tools) as running,
        httpx2.Client(timeout=20) as http,
    ):
        yield Driver(running, http)


def raw(*deltas: Mapping[str, Any] | Waitable, finish: str | None = "stop", done: bool = True) -> Raw:
    """A stream of exactly these deltas, one TCP write each, and then the finish reason and `[DONE]`."""
    writes: list[bytes | Waitable] = [
        sse(chunk(delta), done=False) if isinstance(delta, Mapping) else delta for delta in deltas
    ]
    if finish is not None:
        writes.append(sse(chunk({}, finish=finish), done=False))
    return Raw([*writes, sse()] if done else writes)


def fragment(
    index: int | None = 0, id: str | None = None, name: str | None = None, arguments: str | None = None
) -> Any:
    """A delta with one fragment of a call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    found = {"index": index, "id": id, "type": "function", "function": function}
    return {"tool_calls": [{key: value for key, value in found.items() if value is not None}]}


def types(events: Sequence[Mapping[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def final(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The response in the terminal event."""
    found: dict[str, Any] = events[-1]["response"]
    return found


def kinds(response: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def calls(response: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of the response's function calls."""
    return [(item["name"], item["arguments"]) for item in response["output"] if item["type"] == "function_call"]


def thoughts(response: Mapping[str, Any]) -> str:
    items = [item for item in response["output"] if item["type"] == "reasoning"]
    return "".join(part["text"] for item in items for part in item.get("content") or ())


def shape(value: Any) -> Any:
    """An output without its ids, to compare two of them."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key not in ("id", "call_id")}
    return [shape(inner) for inner in value] if isinstance(value, list) else value


def both(api: Driver, model: ScriptedUpstream, *script: Turn, **body: Any) -> dict[str, Any]:
    """The response to `body`, streamed and whole: both must have the same output, and be stored as they were sent."""
    model.script(*script)
    streamed = final(api.stream(**body))
    assert api.get(f"/responses/{streamed['id']}").json() == streamed
    model.script(*script)
    whole = api.create(**body)
    assert api.get(f"/responses/{whole['id']}").json() == whole
    assert shape(whole["output"]) == shape(streamed["output"])
    assert whole["status"] == streamed["status"]
    return streamed


def eventually(api: Driver, response_id: str, status: str, *, seconds: float = 10) -> dict[str, Any]:
    """The stored response once it has `status`; what follows a client's departure has no other sign outside."""
    until = monotonic() + seconds
    while True:
        reply = api.get(f"/responses/{response_id}")
        if reply.status_code == 200 and reply.json()["status"] == status:
            found: dict[str, Any] = reply.json()
            return found
        assert monotonic() < until, f"not {status} after {seconds} s: {reply.text[:500]}"


def error(reply: Any, status: int) -> dict[str, Any]:
    """The error of a refused request; the envelope must be whole."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    found: dict[str, Any] = json.loads(reply.content)["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found
