"""When the reader leaves, work stops and the truth is stored. Connections are reused after ends, closed otherwise."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.behaviour.conftest import MODEL, Driver, text_of
from tests.behaviour.kit import LOOKUP, Lookup, eventually, final, kinds, serving
from tests.behaviour.manifest import behaviour
from treadle.testing.frames import parse_sse
from treadle.testing.gates import Gate
from treadle.testing.sequence import check_sequence
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream


@behaviour("bug-72", "also-connections")
def test_leaving_a_stream_stops_the_model_and_stores_what_there_was(api: Driver, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply(text="One two three.", held={3: never}))
    with leaving(api, input="Count.") as events:
        response_id = _read_until(events, "response.output_text.delta")[0]["response"]["id"]
    model.requests[0].disconnected.wait_blocking()
    stored = eventually(api, response_id, "cancelled")
    assert [item["status"] for item in stored["output"]] == ["incomplete"]
    assert "One " in text_of(stored)
    assert stored["error"] is None
    reply = api.post(input="Go on.", previous_response_id=response_id)
    assert reply.status_code == 400
    never.set()


@behaviour("bug-72")
def test_leaving_a_stream_in_a_tool_loop_stops_the_tool_and_calls_no_model_again(
    tmp_path: Path, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="Looking.", calls=[Call("look")]))
    tool = Lookup(gate=Gate())
    with serving(tmp_path, model, tool=tool) as api:
        with leaving(api, input="Look.", tools=[LOOKUP]) as events:
            response_id = _read_until(events, "response.function_call_arguments.done")[0]["response"]["id"]
            tool.running.wait_blocking()
        tool.stopped.wait_blocking()
        stored = eventually(api, response_id, "cancelled")
    assert kinds(stored) == ["message", "function_call"]
    assert stored["usage"]["total_tokens"] == 15
    assert len(model.requests) == 1


@behaviour("bug-72", "also-connections")
@pytest.mark.parametrize("where", ["first call", "tool", "second call"])
def test_leaving_a_whole_response_anywhere_in_a_tool_loop_stops_it(
    tmp_path: Path, model: ScriptedUpstream, where: str
) -> None:
    never = Gate()
    waits = {"before": never} if where == "first call" else {}
    model.script(Reply(calls=[Call("look")], **waits))
    if where == "second call":
        model.script(Reply(text="Found it.", held={2: never}))
    tool = Lookup(gate=never if where == "tool" else None)
    with serving(tmp_path, model, tool=tool) as api:
        with asking(api, input="Look.", tools=[LOOKUP]):
            if where == "tool":
                tool.running.wait_blocking()
            else:
                model.received_blocking(1 if where == "first call" else 2)
        if where == "tool":
            tool.stopped.wait_blocking()
        else:
            model.requests[-1].disconnected.wait_blocking()
        stored = _only(api, "cancelled")
    wanted = {"first call": [], "tool": ["function_call"], "second call": ["function_call", "function_call_output"]}
    assert kinds(stored)[: len(wanted[where])] == wanted[where]
    assert stored["status"] == "cancelled"
    never.set()


@behaviour("also-connections")
def test_one_connection_serves_all_turns_that_end_well(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(
        Reply(calls=[Call("look")]), Reply(text="Done."), Reply(text="Again."), Refuse(400), Reply(text="Well.")
    )
    with serving(tmp_path, model, tool=Lookup()) as api:
        api.stream(input="Look.", tools=[LOOKUP])
        api.create(input="Again.")
        assert api.post(input="Refuse.").status_code == 400
        api.stream(input="Well?")
        chat = [request.connection for request in model.requests]
        assert chat == [chat[0]] * 5
        assert model.open_connections == model.connections


@behaviour("also-connections")
def test_connections_of_turns_that_ended_early_are_closed(api: Driver, model: ScriptedUpstream) -> None:
    never = Gate()
    for number in range(3):
        model.script(Reply(text="One two three.", held={3: never}))
        with leaving(api, input="Count.") as events:
            _read_until(events, "response.output_text.delta")
        model.requests[number].disconnected.wait_blocking()
    model.script(Drop(after=3))
    assert final(api.stream(input="Break."))["status"] == "failed"
    until = monotonic() + 10
    while model.open_connections:
        assert monotonic() < until, "a connection was left open"
    never.set()


@behaviour("bug-36")
def test_a_running_response_can_be_read_with_what_is_done(tmp_path: Path, model: ScriptedUpstream) -> None:
    go_on = Gate()
    model.script(Reply(calls=[Call("look")]), Reply(text="Found it.", before=go_on))
    with serving(tmp_path, model, tool=Lookup()) as api, leaving(api, input="Look.", tools=[LOOKUP]) as events:
        before = _read_until(events, "response.output_item.done", 2)
        running = api.get(f"/responses/{before[0]['response']['id']}").json()
        assert (running["status"], kinds(running)) == ("in_progress", ["function_call", "function_call_output"])
        go_on.set()
        events.rest()
        assert api.get(f"/responses/{running['id']}").json() == final(events.events)


@behaviour("bug-36")
def test_a_failed_response_is_kept_with_its_error_and_its_input(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look")]), *[Refuse(500)] * 3)
    with serving(tmp_path, model, tool=Lookup()) as api:
        failed = final(api.stream(input="Look.", tools=[LOOKUP]))
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"
        stored = api.get(f"/responses/{failed['id']}").json()
        assert stored == failed
        items = api.get(f"/responses/{failed['id']}/input_items").json()["data"]
    assert items[0]["content"] == [{"type": "input_text", "text": "Look."}]


@contextmanager
def asking(api: Driver, **body: Any) -> Iterator[None]:
    """A request for a whole response whose sender hangs up at the end of the block."""
    address = urlsplit(api.server.url)
    content = json.dumps({"model": MODEL, **body}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port)) as line:
        line.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        yield


def _only(api: Driver, status: str) -> dict[str, Any]:
    """The only response there is, once it has `status`."""
    until = monotonic() + 10
    while True:
        found: list[dict[str, Any]] = api.get("/responses").json()["data"]
        if [response["status"] for response in found] == [status]:
            return found[0]
        assert monotonic() < until, f"not {status}: {found}"


@behaviour("bug-36")
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_refused_at_once_is_kept_with_its_error_and_its_input(
    api: Driver, model: ScriptedUpstream, stream: bool
) -> None:
    model.script(Refuse(400))
    assert api.post(input="Look.", stream=stream).status_code == 400
    stored = _only(api, "failed")
    assert "Scripted refusal." in stored["error"]["message"]
    assert stored["input"][0]["content"] == [{"type": "input_text", "text": "Look."}]


class _Events:
    """The events of a stream as they come."""

    def __init__(self, reply: Any) -> None:
        self._reads = reply.iter_bytes()
        self._bytes = b""
        self.events: list[dict[str, Any]] = []

    def more(self) -> None:
        self._bytes += next(self._reads)
        self.events = parse_sse(self._bytes, complete=False)

    def rest(self) -> None:
        self._bytes += b"".join(self._reads)
        self.events = parse_sse(self._bytes)
        check_sequence(self.events)


@contextmanager
def leaving(api: Driver, **body: Any) -> Iterator[_Events]:
    """A stream whose reader leaves at the end of the block."""
    with httpx2.Client(timeout=20) as http:
        request = {"model": MODEL, "stream": True, **body}
        with http.stream("POST", api.server.url + "/responses", json=request) as reply:
            assert reply.status_code == 200
            yield _Events(reply)


def _read_until(events: _Events, kind: str, count: int = 1) -> list[dict[str, Any]]:
    while sum(event["type"] == kind for event in events.events) < count:
        events.more()
    check_sequence(events.events, complete=False)
    return events.events
