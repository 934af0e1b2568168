"""The WebSocket connection of the official Python client, which checks no types by itself: the test does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.behaviour.conftest import MODEL, sent
from tests.behaviour.kit import FUNCTION
from treadle.testing.sequence import check_sequence
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream

openai = pytest.importorskip("openai", reason="the openai client comes with the test extra")

STEP = {"type": "response.create", "model": MODEL, "store": False}


def checked(event: Any) -> dict[str, Any]:
    """The event, which must match the type that the client gave it."""
    from openai.types.responses import ResponsesServerEvent

    found: dict[str, Any] = event.to_dict()
    again = TypeAdapter[Any](ResponsesServerEvent).validate_python(found, strict=True)
    assert type(again) is type(event), (type(again), type(event))
    return found


def turn(connection: Any, **body: Any) -> dict[str, Any]:
    """The response of the last event."""
    connection.response.create(model=MODEL, **body)
    events: list[dict[str, Any]] = []
    for event in connection:
        events.append(checked(event))
        if event.type in ("response.completed", "response.failed"):
            break
    check_sequence(events)
    found: dict[str, Any] = events[-1]["response"]
    return found


def test_a_tool_loop_without_storing_anything(client: Any, model: ScriptedUpstream) -> None:
    model.script(
        Reply(text="Let me see.", reasoning="Hm.", calls=[Call("get_weather", {"city": "Oslo"}, id="call_a")]),
        Reply(text="It rains."),
    )
    with client.responses.connect() as connection:
        warm = turn(connection, generate=False, store=False, tools=[FUNCTION], instructions="Be brief.")
        assert warm["output"] == []
        first = turn(
            connection, input="Weather?", store=False, tools=[FUNCTION], previous_response_id=warm["id"], stream=True
        )
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        second = turn(connection, input=[output], store=False, tools=[FUNCTION], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]


def test_errors_are_events_that_the_client_knows(client: Any, model: ScriptedUpstream) -> None:
    model.script(Refuse(400), Drop(after=3), Reply(text="Well."))
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="x", previous_response_id="resp_none", stream_id="a")
        event = connection.recv()
        checked(event)
        assert (event.type, event.status, event.stream_id) == ("error", 400, "a")
        assert event.error.code == "previous_response_not_found"
        connection.response.create(model=MODEL, input="x")
        event = connection.recv()
        checked(event)
        assert (event.status, event.error.type) == (400, "invalid_request_error")
        failed = turn(connection, input="Break.", store=False)
        assert failed["status"] == "failed"
        assert turn(connection, input="Again.", store=False)["status"] == "completed"


def test_streams_of_one_connection(client: Any, model: ScriptedUpstream) -> None:
    model.default = Reply(text="One two.")
    with client.responses.connect() as connection:
        for lane in ("a", "b", "c"):
            connection.response.create(model=MODEL, input=lane, store=False, stream_id=lane)
        lanes: dict[str, list[dict[str, Any]]] = {"a": [], "b": [], "c": []}
        while not all(events and events[-1]["type"] == "response.completed" for events in lanes.values()):
            event = checked(connection.recv())
            lanes[event["stream_id"]].append(event)
    for events in lanes.values():
        check_sequence(events)


async def test_the_async_client_connects_too(async_client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="One."), Reply(text="Two."))
    async with async_client.responses.connect() as connection:
        previous = None
        for _ in range(2):
            await connection.send({**STEP, "input": "Count.", "previous_response_id": previous})
            async for event in connection:
                checked(event)
                if event.type == "response.completed":
                    previous = event.response.id
                    break
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "user"]


def test_a_client_connects_again_after_the_time_limit(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Well."))
    codes: list[int] = []

    def again(lost: Any) -> None:
        codes.append(lost.close_code)
        connection.response.create(model=MODEL, input="x", store=False)

    with (
        RunningServer(settings_for(tmp_path, model.url, "websocket: {max_seconds: 0.5}")) as short,
        openai.OpenAI(base_url=short.url, api_key="none") as client,
        client.responses.connect(on_reconnecting=again, initial_delay=0.01) as connection,
    ):
        kinds: list[str] = []
        for event in connection:
            checked(event)
            kinds.append(event.type)
            if event.type == "response.completed":
                break
    assert codes == [1001]
    assert kinds[:2] == ["error", "response.created"]
