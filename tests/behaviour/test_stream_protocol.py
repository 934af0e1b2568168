"""The order, the ids and the completeness of streams, whatever the model server and the tools do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, text_of
from tests.behaviour.kit import (
    FUNCTION,
    LOOKUP,
    Lookup,
    both,
    calls,
    error,
    final,
    fragment,
    kinds,
    raw,
    serving,
    types,
)
from tests.behaviour.manifest import behaviour
from treadle.testing.frames import parse_sse
from treadle.testing.gates import Gate
from treadle.testing.sequence import check_sequence
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream


@behaviour("bug-01")
def test_created_and_in_progress_come_first_before_any_tool_work(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look")]), Reply(text="Done."))
    with serving(tmp_path, model, tool=Lookup()) as api:
        events = api.stream(input="Look.", tools=[LOOKUP])
    assert types(events)[:2] == ["created", "in_progress"]
    assert kinds(final(events)) == ["function_call", "function_call_output", "message"]


@behaviour("bug-02")
def test_a_refused_first_call_of_a_stream_is_an_http_error_with_the_servers_words(
    tmp_path: Path, model: ScriptedUpstream
) -> None:
    body = {"error": {"message": "No cats allowed.", "type": "invalid_request_error", "code": "no_cats"}}
    model.script(Refuse(400, body))
    with serving(tmp_path, model, tool=Lookup()) as api:
        found = error(api.post(input="Hi", stream=True, tools=[LOOKUP]), 400)
    assert "No cats allowed." in found["message"]
    assert found["code"] == "no_cats"


@behaviour("bug-02")
def test_a_stream_that_continues_an_unknown_response_is_an_http_error(api: Driver) -> None:
    reply = api.post(input="Hi", stream=True, previous_response_id="resp_unknown")
    assert error(reply, reply.status_code)["code"] == "previous_response_not_found"
    assert reply.status_code in (400, 404)


@behaviour("bug-02")
def test_a_refusal_that_comes_after_the_stream_began_ends_it_as_failed(api: Driver, model: ScriptedUpstream) -> None:
    answer = Gate()
    model.script(Refuse(400, before=answer))
    with api.http.stream("POST", api.server.url + "/responses", json=_body(input="Hi", stream=True)) as reply:
        reads = reply.iter_bytes()
        sent = next(reads)  # after a second the stream opens without word from the model server
        answer.set()
        events = parse_sse(sent + b"".join(reads))
    check_sequence(events)
    assert types(events) == ["created", "in_progress", "error", "failed"]


@behaviour("bug-02")
def test_a_refused_second_call_ends_the_stream_as_failed_and_keeps_the_items(
    tmp_path: Path, model: ScriptedUpstream
) -> None:
    model.script(Reply(calls=[Call("look")]), Refuse(400))
    with serving(tmp_path, model, tool=Lookup()) as api:
        events = api.stream(input="Look.", tools=[LOOKUP])
        assert types(events)[-2:] == ["error", "failed"]
        assert kinds(final(events)) == ["function_call", "function_call_output"]
        assert api.get(f"/responses/{final(events)['id']}").json() == final(events)


@behaviour("bug-03", "bug-04")
@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="Plain text."),
        Reply(reasoning="Let me see.", text="The answer."),
        Reply(refusal="I will not."),
        Reply(reasoning="Hm.", text="Calling.", calls=[Call("get_weather", {"city": "Rome"}), Call("get_weather")]),
        Reply(text="All in one write.", reasoning="Hm.", burst=True),
        Reply(text=""),
    ],
    ids=["text", "reasoning and text", "refusal", "everything", "burst", "nothing"],
)
def test_every_item_is_opened_filled_and_closed_once(api: Driver, model: ScriptedUpstream, reply: Reply) -> None:
    response = both(api, model, reply, input="Hi", tools=[FUNCTION])
    wanted = ["reasoning"] * bool(reply.reasoning) + ["message"] * bool(reply.text or reply.refusal)
    assert kinds(response) == wanted + ["function_call"] * len(reply.calls)
    assert text_of(response) == reply.text
    assert {item["status"] for item in response["output"]} <= {"completed"}


@behaviour("bug-04")
def test_text_after_a_call_has_an_index_of_its_own(api: Driver, model: ScriptedUpstream) -> None:
    script = raw(
        fragment(id="call_a", name="get_weather", arguments="{}"), {"content": "Called it."}, finish="tool_calls"
    )
    response = both(api, model, script, input="Hi", tools=[FUNCTION])
    assert kinds(response) == ["function_call", "message"]
    assert text_of(response) == "Called it."


@behaviour("bug-05")
def test_ids_are_the_same_in_events_final_object_get_and_later_input(tmp_path: Path, model: ScriptedUpstream) -> None:
    first = Reply(reasoning="Hm.", text="Looking.", calls=[Call("look")])
    model.script(first, Reply(text="Found."), Reply(text="You are welcome."))
    with serving(tmp_path, model, tool=Lookup()) as api:
        events = api.stream(input="Look.", tools=[LOOKUP])
        response = final(events)
        announced = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
        assert [item["id"] for item in response["output"]] == announced
        assert len(set(announced)) == 5
        for event in events:
            if "item_id" in event:
                assert event["item_id"] == announced[event["output_index"]]
        assert api.get(f"/responses/{response['id']}").json() == response
        replayed = api.create(input=[*response["output"], {"role": "user", "content": "Thanks."}])
        items = api.get(f"/responses/{replayed['id']}/input_items?order=asc").json()["data"]
    assert [item["id"] for item in items][:-1] == announced
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@behaviour("bug-06")
def test_the_terminal_event_is_the_whole_response(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."))
    response = final(api.stream(input="Hi", temperature=0.5, metadata={"a": "b"}, instructions="Be kind."))
    assert response["id"].startswith("resp_")
    assert (response["object"], response["model"], response["status"]) == ("response", MODEL, "completed")
    assert (response["temperature"], response["metadata"], response["instructions"]) == (0.5, {"a": "b"}, "Be kind.")
    assert response["usage"]["total_tokens"] == 15
    assert response["created_at"] <= response["completed_at"]
    assert text_of(response) == "Hello."


@behaviour("bug-07")
@pytest.mark.parametrize("between", [{"content": "Hm."}, {"reasoning_content": "Hm."}], ids=["content", "reasoning"])
def test_a_call_that_something_else_interrupts_comes_out_whole(
    api: Driver, model: ScriptedUpstream, between: dict[str, str]
) -> None:
    script = raw(
        fragment(id="call_a", name="get_weather", arguments='{"city": '),
        between,
        fragment(arguments='"Rome"}'),
        finish="tool_calls",
    )
    response = both(api, model, script, input="Hi", tools=[FUNCTION])
    assert calls(response) == [("get_weather", '{"city": "Rome"}')]
    assert len(response["output"]) == 2


@behaviour("bug-07")
@pytest.mark.parametrize("parallel", [True, False])
def test_two_calls_in_one_delta_are_two_items(api: Driver, model: ScriptedUpstream, parallel: bool) -> None:
    one, two = (fragment(n, f"call_{n}", "get_weather", f'{{"n": {n}}}')["tool_calls"][0] for n in (0, 1))
    script = raw({"tool_calls": [one, two]}, finish="tool_calls")
    response = both(api, model, script, input="Hi", tools=[FUNCTION], parallel_tool_calls=parallel)
    assert calls(response) == [("get_weather", '{"n": 0}'), ("get_weather", '{"n": 1}')]


@behaviour("bug-08")
def test_a_stream_that_is_done_without_a_finish_reason_is_completed(api: Driver, model: ScriptedUpstream) -> None:
    response = both(api, model, raw({"content": "Bye."}, finish=None), input="Hi")
    assert (response["status"], text_of(response)) == ("completed", "Bye.")


@behaviour("bug-08")
def test_a_finish_reason_is_enough_without_the_done_mark(api: Driver, model: ScriptedUpstream) -> None:
    response = both(api, model, raw({"content": "Bye."}, done=False), input="Hi")
    assert (response["status"], text_of(response)) == ("completed", "Bye.")


@behaviour("bug-08")
def test_a_stream_that_just_stops_is_failed(api: Driver, model: ScriptedUpstream) -> None:
    model.script(raw({"content": "Half an ans"}, finish=None, done=False), Drop(after=3))
    for _ in range(2):
        events = api.stream(input="Hi")
        assert types(events)[-2:] == ["error", "failed"]
        assert final(events)["output"][0]["status"] == "incomplete"
        assert api.get(f"/responses/{final(events)['id']}").json() == final(events)


def _body(**body: Any) -> dict[str, Any]:
    return {"model": MODEL, **body}


@behaviour("bug-03", "bug-04", "bug-05", "bug-07")
@pytest.mark.parametrize(
    "script",
    [
        Reply(reasoning="Hm.", text="Calling.", calls=[Call("get_weather", {"city": "Rome"}), Call("get_weather")]),
        raw(
            fragment(id="call_a", name="get_weather", arguments="{"),
            {"content": "In between."},
            {"reasoning_content": "Hm."},
            fragment(arguments="}"),
            finish="tool_calls",
        ),
        raw({"content": "Yes."}, {"refusal": "But no."}),
        raw({"reasoning_content": "Hm."}, {"content": "Half an"}, finish="length"),
    ],
    ids=["everything", "interrupted call", "refusal", "cut"],
)
def test_the_official_clients_accumulator_arrives_at_the_stored_response(
    client: Any, api: Driver, model: ScriptedUpstream, script: Any
) -> None:
    model.script(script)
    with client.responses.stream(model=MODEL, input="Hi", tools=[FUNCTION]) as stream:
        ended = [event for event in stream if event.type in ("response.completed", "response.incomplete")]
    gathered = ended[-1].response
    stored = api.get(f"/responses/{gathered.id}").json()
    assert [item.id for item in gathered.output] == [item["id"] for item in stored["output"]]
    assert gathered.output_text == text_of(stored)


def test_events_of_items_and_parts_name_their_response(api: Driver, model: ScriptedUpstream) -> None:
    """OGX's own clients cannot read them otherwise."""
    model.script(Reply(text="Hello."))
    events = api.stream(input="Hi.")
    named = [event["response_id"] for event in events if ".output_item." in event["type"] or "_part." in event["type"]]
    assert named == [events[0]["response"]["id"]] * 4
