"""Responses over WebSocket: the same events, continuation of what is not stored, requests in order (contract §9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, error, kinds, serving, shape
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import answer, asked, declared
from tests.behaviour.socket_kit import Socket, opened
from treadle.testing.gates import Gate
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.server import RunningServer
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream


@pytest.fixture
def socket(server: RunningServer) -> Iterator[Socket]:
    with opened(server) as found:
        yield found


def said(model: ScriptedUpstream, number: int) -> list[str]:
    """The contents of the messages of a model request."""
    return [message["content"] for message in sent(model, number)]


# ---------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/responses/"])
def test_a_turn_has_the_same_events_as_a_stream(
    api: Driver, server: RunningServer, model: ScriptedUpstream, path: str
) -> None:
    replies = [Reply(text="One two.", reasoning="Hm.", calls=[Call("get_weather", {})]) for _ in range(2)]
    model.script(*replies)
    streamed = api.stream(input="Count.", tools=[FUNCTION])
    with opened(server, path) as socket:
        socket.ask(input="Count.", tools=[FUNCTION])
        events = socket.events()
    assert [event["type"] for event in events] == [event["type"] for event in streamed]
    for one, other in zip(events, streamed, strict=True):
        assert list(one) == list(other)
        assert one["sequence_number"] == other["sequence_number"]
    assert shape(events[-1]["response"]["output"]) == shape(streamed[-1]["response"]["output"])
    assert api.get(f"/responses/{events[-1]['response']['id']}").json() == events[-1]["response"]


def test_line_separators_are_escaped_as_in_a_stream(socket: Socket, model: ScriptedUpstream) -> None:
    model.script(Reply(text="a\u2028b\x85c"))
    socket.ask(input="Hi")
    raw = ""
    while "response.completed" not in raw:
        text = socket.raw.recv(timeout=10)
        assert isinstance(text, str)
        raw = text
        assert "\u2028" not in raw
        assert "\x85" not in raw
    assert "a\\u2028b\\u0085c" in raw


@pytest.mark.parametrize(
    "ignored", [{"stream": False}, {"stream": True}, {"background": True}, {"stream_options": {"include_usage": True}}]
)
def test_what_only_means_something_over_http_is_ignored(
    socket: Socket, model: ScriptedUpstream, ignored: dict[str, Any]
) -> None:
    model.script(Reply(text="Hello."))
    response = socket.turn(input="Hi", **ignored)
    assert text_of(response) == "Hello."
    assert response["background"] is False


def test_a_model_server_that_refuses_at_once_makes_one_error_event(socket: Socket, model: ScriptedUpstream) -> None:
    model.script(Refuse(400), Reply(text="Well."))
    assert "Scripted refusal." in socket.refused(400, input="Hi")["message"]
    assert text_of(socket.turn(input="Again")) == "Well."


def test_a_failure_in_the_middle_is_an_error_event_and_a_failed_response(
    socket: Socket, model: ScriptedUpstream
) -> None:
    model.script(Drop(after=3))
    socket.ask(input="Hi", stream_id="a")
    events = socket.events()
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["status"] == 502
    assert events[-2]["stream_id"] == "a"
    assert events[-2]["error"]["code"] == events[-2]["code"]


def test_a_response_that_begins_slowly_is_announced_all_the_same(socket: Socket, model: ScriptedUpstream) -> None:
    later = Gate()
    model.script(Reply(text="Late.", before=later))
    socket.ask(input="Hi")
    events = socket.until("response.in_progress")
    later.set()
    assert text_of(socket.until("response.completed")[-1]["response"]) == "Late."
    assert [event["sequence_number"] for event in events] == [0, 1]


# --------------------------------------------------------------------------------------- continuation


@behaviour("bug-73", "bug-37")
def test_turns_that_are_not_stored_continue_on_their_connection(
    api: Driver, socket: Socket, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="Hello Ann."), Reply(calls=[Call("get_weather", {}, id="call_a")]), Reply(text="Sunny."))
    first = socket.turn(input="I am Ann.", store=False)
    second = socket.turn(input="Weather?", store=False, previous_response_id=first["id"], tools=[FUNCTION])
    output = {"type": "function_call_output", "call_id": "call_a", "output": "sun"}
    third = socket.turn(input=[output], store=False, previous_response_id=second["id"], tools=[FUNCTION])
    assert [first["previous_response_id"], second["previous_response_id"], third["previous_response_id"]] == [
        None,
        first["id"],
        second["id"],
    ]
    assert [message["role"] for message in sent(model, 3)] == ["user", "assistant", "user", "assistant", "tool"]
    assert said(model, 3)[:3] == ["I am Ann.", "Hello Ann.", "Weather?"]
    assert said(model, 3)[4] == "sun"
    ids = [item["id"] for response in (first, second, third) for item in response["output"]]
    assert len(set(ids)) == len(ids)
    for response in (first, second, third):
        error(api.get(f"/responses/{response['id']}"), 404)
    assert error(api.post(input="Go on.", previous_response_id=third["id"]), 400)["code"] == (
        "previous_response_not_found"
    )


def test_a_chain_can_be_taken_up_again_at_an_earlier_turn(socket: Socket, model: ScriptedUpstream) -> None:
    model.script(Reply(text="A."), Reply(text="B."), Reply(text="C."))
    first = socket.turn(input="1", store=False)
    socket.turn(input="2", store=False, previous_response_id=first["id"])
    socket.turn(input="3", store=False, previous_response_id=first["id"])
    assert said(model, 3) == ["1", "A.", "3"]


@behaviour("bug-73")
def test_what_another_connection_made_is_not_found(
    server: RunningServer, socket: Socket, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="A."), Reply(text="B."))
    first = socket.turn(input="1", store=False)
    with opened(server) as other:
        other.ask(input="2", store=False, previous_response_id=first["id"])
        found = other.next()
        assert found == {
            "type": "error",
            "status": 400,
            "error": {
                "type": "invalid_request_error",
                "code": "previous_response_not_found",
                "message": found["error"]["message"],
                "param": "previous_response_id",
            },
        }
        assert first["id"] in found["error"]["message"]
        assert text_of(other.turn(input="Anew")) == "B."


@pytest.mark.parametrize("unknown", ["resp_abc", "resp_" + "0" * 32, "nonsense", "\x00", "resp_" + "x" * 5000])
def test_an_id_that_nobody_made_is_not_found(socket: Socket, unknown: str) -> None:
    found = socket.refused(400, input="2", previous_response_id=unknown)
    assert found["param"] == "previous_response_id"


def test_stored_turns_continue_across_connections_and_http(
    api: Driver, server: RunningServer, socket: Socket, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="A."), Reply(text="B."), Reply(text="C."))
    first = socket.turn(input="1")
    second = api.create(input="2", previous_response_id=first["id"])
    with opened(server) as other:
        third = other.turn(input="3", previous_response_id=second["id"])
    assert said(model, 3) == ["1", "A.", "2", "B.", "3"]
    assert third["previous_response_id"] == second["id"]
    api.delete(f"/responses/{second['id']}")
    assert socket.refused(400, input="4", previous_response_id=second["id"])["code"] == "previous_response_not_found"


def test_a_turn_that_is_not_stored_may_continue_a_stored_one(socket: Socket, model: ScriptedUpstream) -> None:
    model.script(Reply(text="A."), Reply(text="B."), Reply(text="C."))
    first = socket.turn(input="1")
    second = socket.turn(input="2", store=False, previous_response_id=first["id"])
    socket.turn(input="3", store=False, previous_response_id=second["id"])
    assert said(model, 3) == ["1", "A.", "2", "B.", "3"]


@behaviour("bug-37")
def test_a_stored_turn_behind_one_that_is_not_writes_nothing_of_that_one_down(
    api: Driver, server: RunningServer, socket: Socket, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="A."), Reply(text="B."), Reply(text="C."), Reply(text="D."))
    first = socket.turn(input="1", store=False)
    second = socket.turn(input="2", previous_response_id=first["id"])
    third = socket.turn(input="3", previous_response_id=second["id"])
    assert said(model, 3) == ["1", "A.", "2", "B.", "3"]
    assert api.get(f"/responses/{third['id']}").json() == third
    items = api.get(f"/responses/{third['id']}/input_items").json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["3"]
    # What only the connection knows cannot be left out in silence.
    for response in (second, third):
        refused = error(api.post(input="4", previous_response_id=response["id"]), 400)
        assert (refused["code"], refused["param"]) == ("previous_response_not_found", "previous_response_id")
    with opened(server) as other:
        other.refused(400, input="4", previous_response_id=third["id"])
    assert text_of(socket.turn(input="4", previous_response_id=third["id"])) == "D."


@behaviour("bug-73")
@pytest.mark.parametrize("how", ["output without a call", "bad value", "model server", "stream breaks off"])
def test_a_failed_continuation_forgets_what_it_continued(socket: Socket, model: ScriptedUpstream, how: str) -> None:
    model.script(Reply(text="A."))
    first = socket.turn(input="1", store=False)["id"]
    if how == "output without a call":
        output = {"type": "function_call_output", "call_id": "call_none", "output": "x"}
        assert "call_none" in socket.refused(400, input=[output], store=False, previous_response_id=first)["message"]
    elif how == "bad value":
        refused = socket.refused(400, input="2", temperature=7, previous_response_id=first)
        assert refused["param"] == "temperature"
    elif how == "model server":
        model.script(Refuse(400))
        socket.refused(400, input="2", store=False, previous_response_id=first)
    else:
        model.script(Drop(after=2))
        assert socket.turn(input="2", store=False, previous_response_id=first)["status"] == "failed"
    refused = socket.refused(400, input="3", store=False, previous_response_id=first)
    assert refused["code"] == "previous_response_not_found"


def test_a_failed_turn_cannot_be_continued(socket: Socket, model: ScriptedUpstream) -> None:
    model.script(Drop(after=2))
    failed = socket.turn(input="1", store=False)
    assert failed["status"] == "failed"
    socket.refused(400, input="2", previous_response_id=failed["id"])


def test_an_incomplete_turn_can_be_continued(socket: Socket, model: ScriptedUpstream) -> None:
    model.script(Reply(text="A", finish="length"), Reply(text="B."))
    first = socket.turn(input="1", store=False)
    assert first["status"] == "incomplete"
    socket.turn(input="2", store=False, previous_response_id=first["id"])
    assert said(model, 2) == ["1", "A", "2"]


def test_references_to_items_that_only_the_connection_knows_are_followed(
    socket: Socket, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="A."), Reply(text="B."))
    first = socket.turn(input="1", store=False)
    again = [{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "2"}]
    socket.turn(input=again, store=False, previous_response_id=first["id"])
    assert said(model, 2) == ["1", "A.", "2"]


# -------------------------------------------------------------------------------------------- prewarm


@pytest.mark.parametrize("store", [True, False])
def test_a_turn_without_generation_asks_no_model_and_can_be_continued(
    api: Driver, socket: Socket, model: ScriptedUpstream, store: bool
) -> None:
    socket.ask(input=[{"role": "developer", "content": "Be brief."}], generate=False, store=store)
    events = socket.events()
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    warm = events[-1]["response"]
    assert (warm["output"], warm["status"], model.requests) == ([], "completed", [])
    assert api.get(f"/responses/{warm['id']}").status_code == (200 if store else 404)
    model.script(Reply(text="Hi."))
    response = socket.turn(input="Hello", store=False, previous_response_id=warm["id"])
    assert said(model, 1)[-2:] == ["Be brief.", "Hello"]
    assert response["previous_response_id"] == warm["id"]


def test_a_turn_without_generation_may_say_nothing_yet(socket: Socket, model: ScriptedUpstream) -> None:
    warm = socket.turn(generate=False, store=False, tools=[FUNCTION])
    assert warm["tools"][0]["name"] == "get_weather"
    model.script(Reply(text="Hi."))
    socket.turn(input="Hello", store=False, previous_response_id=warm["id"])
    assert said(model, 1) == ["Hello"]


def test_a_turn_without_generation_is_checked_like_any(socket: Socket) -> None:
    assert socket.refused(400, input="x", generate=False, top_p=2)["param"] == "top_p"


def test_a_turn_without_generation_adds_nothing_to_a_conversation(
    api: Driver, socket: Socket, model: ScriptedUpstream
) -> None:
    conversation = api.http.post(api.server.url + "/conversations", json={}).json()["id"]
    socket.turn(input="Hello", generate=False, conversation=conversation)
    model.script(Reply(text="Hi."))
    socket.turn(input="Hello", conversation=conversation)
    items = api.get(f"/conversations/{conversation}/items?order=asc").json()["data"]
    assert [item["role"] for item in items] == ["user", "assistant"]


# ----------------------------------------------------------------------------------------------- order


@behaviour("bug-73")
def test_requests_are_answered_one_after_the_other_in_order(socket: Socket, model: ScriptedUpstream) -> None:
    first = Gate()
    model.script(Reply(text="A.", before=first), Reply(text="B."), Reply(text="C."))
    socket.ask(input="1")
    socket.ask(input="2", temperature=7)
    socket.raw.send("nonsense")
    socket.ask(input="3")
    socket.ask(input="4")
    model.received_blocking(1)
    socket.settled()
    assert len(model.requests) == 1
    first.set()
    assert text_of(socket.events()[-1]["response"]) == "A."
    assert socket.error(400)["param"] == "temperature"
    assert socket.error(400)["code"] == "invalid_json"
    assert text_of(socket.events()[-1]["response"]) == "B."
    assert text_of(socket.events()[-1]["response"]) == "C."
    assert [said(model, number) for number in (1, 2, 3)] == [["1"], ["3"], ["4"]]


def test_more_waiting_requests_than_allowed_are_refused_at_once(tmp_path: Path, model: ScriptedUpstream) -> None:
    first = Gate()
    model.script(Reply(text="A.", before=first), Reply(text="B."))
    with serving(tmp_path, model, "websocket: {max_waiting: 1}") as api, opened(api.server) as socket:
        for number in range(3):
            socket.ask(input=str(number), store=False)
        refused = socket.error(429)
        assert (refused["type"], refused["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        first.set()
        assert [text_of(socket.events()[-1]["response"]) for _ in range(2)] == ["A.", "B."]


def test_what_waits_is_bounded_in_bytes_too(tmp_path: Path, model: ScriptedUpstream) -> None:
    first = Gate()
    model.script(Reply(text="A.", before=first), Reply(text="B."))
    with serving(tmp_path, model, "server: {max_body_bytes: 4096}") as api, opened(api.server) as socket:
        for _ in range(3):
            socket.ask(input="x" * 2500, store=False)
        socket.error(429)
        first.set()
        assert [text_of(socket.events()[-1]["response"]) for _ in range(2)] == ["A.", "B."]


def test_streams_of_different_ids_run_side_by_side(socket: Socket, model: ScriptedUpstream) -> None:
    held = Gate()
    model.script(Reply(text="Slow one.", held={2: held}), Reply(text="Fast."), Reply(text="On."))
    socket.ask(input="1", stream_id="a", store=False)
    slow = socket.until("response.output_text.delta")
    socket.ask(input="2", stream_id="b", store=False)
    fast = socket.until("response.completed")
    assert {event["stream_id"] for event in fast} == {"b"}
    # A third stream goes on from what the second has said.
    socket.ask(input="3", stream_id="c\u2028", store=False, previous_response_id=fast[-1]["response"]["id"])
    fork = socket.until("response.completed")
    assert {event["stream_id"] for event in fork} == {"c\u2028"}
    assert said(model, 3) == ["2", "Fast.", "3"]
    held.set()
    slow += socket.until("response.completed")
    assert {event["stream_id"] for event in slow} == {"a"}
    assert text_of(slow[-1]["response"]) == "Slow one."


def test_requests_of_one_stream_wait_for_each_other(socket: Socket, model: ScriptedUpstream) -> None:
    held = Gate()
    model.script(Reply(text="A.", before=held), Reply(text="B."))
    socket.ask(input="1", stream_id="a")
    socket.ask(input="2", stream_id="a", top_p=9)
    socket.ask(input="3", stream_id="a")
    model.received_blocking(1)
    held.set()
    assert text_of(socket.events()[-1]["response"]) == "A."
    assert socket.error(400, stream_id="a")["param"] == "top_p"
    assert text_of(socket.events()[-1]["response"]) == "B."


def test_a_response_that_still_runs_cannot_be_continued_from_another_stream(
    socket: Socket, model: ScriptedUpstream
) -> None:
    held = Gate()
    model.script(Reply(text="A b c.", held={2: held}))
    socket.ask(input="1", stream_id="a", store=False)
    running = socket.until("response.output_text.delta")[0]["response"]["id"]
    socket.ask(input="2", stream_id="b", previous_response_id=running)
    assert "in progress" in socket.error(400, stream_id="b")["message"]
    held.set()
    socket.until("response.completed")


def test_more_streams_than_allowed_are_refused(tmp_path: Path, model: ScriptedUpstream) -> None:
    held = Gate()
    model.script(Reply(text="A.", before=held), Reply(text="C."))
    with serving(tmp_path, model, "websocket: {max_streams: 1}") as api, opened(api.server) as socket:
        socket.ask(input="1", stream_id="a")
        model.received_blocking(1)
        socket.ask(input="2", stream_id="b")
        assert socket.error(429, stream_id="b")["param"] == "stream_id"
        held.set()
        socket.events()
        socket.ask(input="3", stream_id="b")
        assert text_of(socket.events()[-1]["response"]) == "C."


def test_tools_of_the_server_run_as_they_do_over_http(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look")]), Reply(text="Seen."), Reply(text="Yes."))
    with serving(tmp_path, model, tool=Lookup("a tree")) as api, opened(api.server) as socket:
        first = socket.turn(input="Look.", tools=[LOOKUP], store=False)
        assert kinds(first) == ["function_call", "function_call_output", "message"]
        socket.turn(input="Sure?", tools=[LOOKUP], store=False, previous_response_id=first["id"])
    assert [message["role"] for message in sent(model, 3)] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_refusal_that_may_be_tried_again_says_when(api: Driver, socket: Socket, model: ScriptedUpstream) -> None:
    conversation = api.http.post(api.server.url + "/conversations", json={}).json()["id"]
    held = Gate()
    model.script(Reply(text="A.", before=held))
    socket.ask(input="1", stream_id="a", conversation=conversation)
    model.received_blocking(1)
    socket.ask(input="2", stream_id="b", conversation=conversation)
    refused = socket.until("error")[-1]
    assert (refused["status"], refused["error"]["code"], refused["stream_id"]) == (409, "conversation_locked", "b")
    assert refused["error"]["headers"] == {"retry-after": "1"}
    held.set()
    socket.until("response.completed")


@behaviour("bug-55")
def test_an_approval_counts_once_although_nothing_is_stored(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    tools = [declared(mcp, require_approval="always")]
    model.script(Reply(calls=[Call("echo", {"text": "careful"})]), Reply(text="Done."))
    with opened(remote.server) as socket:
        first = socket.turn(input="Do it.", tools=tools, store=False)
        yes = [answer(asked(first))]
        second = socket.turn(input=yes, tools=tools, store=False, previous_response_id=first["id"])
        assert text_of(second) == "Done."
        again = socket.refused(400, input=yes, tools=tools, store=False, previous_response_id=first["id"])
        assert "answered already" in again["message"]
    assert mcp.calls == [("echo", {"text": "careful"})]
