"""Tool calls as model servers really send them, and turns that must end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, both, calls, error, final, fragment, kinds, raw, serving
from tests.behaviour.manifest import behaviour
from treadle.testing.turns import chunk
from treadle.testing.upstream import Call, Raw, Reply, ScriptedUpstream

ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo"}'
BOTH = [("get_weather", ROME), ("get_weather", OSLO)]


def called(name: str = "get_weather", arguments: str = "", **fields: Any) -> dict[str, Any]:
    """One entry of `tool_calls`, with exactly these fields."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def rest(arguments: str, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"function": {"arguments": arguments}, **fields}]}


SCRIPTS = {
    "every call has index 0": raw(
        {"tool_calls": [called(arguments=ROME, index=0, id="a")]},
        {"tool_calls": [called(arguments=OSLO, index=0, id="b")]},
    ),
    "index 0 and cut": raw(
        {"tool_calls": [called(index=0, id="a")]},
        rest(ROME, index=0),
        {"tool_calls": [called(index=0, id="b")]},
        rest(OSLO, index=0, id=None),
    ),
    "interleaved, later fields null": raw(
        {"tool_calls": [called(index=0, id="a"), called(index=1, id="b")]},
        {"tool_calls": [{"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": ROME[:5]}}]},
        {"tool_calls": [{"index": 1, "id": None, "type": None, "function": {"name": None, "arguments": OSLO[:5]}}]},
        {"tool_calls": [{"index": 0, "id": "", "type": None, "function": {"name": "", "arguments": ROME[5:]}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": OSLO[5:]}}]},
    ),
    "no index": raw(
        {"tool_calls": [called(arguments=ROME[:5], id="a")]},
        rest(ROME[5:]),
        {"tool_calls": [called(arguments=OSLO, id="b")]},
    ),
    "no index, ids interleaved": raw(
        {"tool_calls": [called(id="a")]},
        {"tool_calls": [called(id="b")]},
        rest(ROME, id="a"),
        rest(OSLO, id="b"),
    ),
    "no index, no id": raw({"tool_calls": [called(arguments=ROME)]}, {"tool_calls": [called(arguments=OSLO)]}),
    "one delta, no index, no id": raw({"tool_calls": [called(arguments=ROME), called(arguments=OSLO)]}),
    "name repeated in every fragment": raw(
        {"tool_calls": [called(arguments=ROME[:5], index=0, id="a")]},
        {"tool_calls": [called(arguments=ROME[5:], index=0, id="a")]},
        {"tool_calls": [called(arguments=OSLO, index=1, id="b")]},
    ),
    "another id in every fragment": raw(
        {"tool_calls": [called(arguments=ROME[:5], index=0, id="a")]},
        rest(ROME[5:], index=0, id="x"),
        {"tool_calls": [called(arguments=OSLO[:5], index=1, id="b")]},
        rest(OSLO[5:], index=1, id="y"),
    ),
    "arguments as objects": raw(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]},
    ),
    "an empty entry at the end": raw(
        {"tool_calls": [called(arguments=ROME, index=0, id="a"), called(arguments=OSLO, index=1, id="b")]},
        {"tool_calls": [{"index": 2, "function": {}}]},
    ),
}


@behaviour("bug-11")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_parallel_calls_stay_apart(api: Driver, model: ScriptedUpstream, script: Raw) -> None:
    response = both(api, model, script, input="Weather?", tools=[FUNCTION])
    found = [(name, json.loads(arguments)) for name, arguments in calls(response)]
    assert found == [(name, json.loads(arguments)) for name, arguments in BOTH]
    assert len({item["call_id"] for item in response["output"]}) == 2


@behaviour("bug-12")
@pytest.mark.parametrize("given", ["", None, "absent"])
def test_calls_without_ids_get_their_own_and_are_answered_by_them(
    api: Driver, model: ScriptedUpstream, given: str | None
) -> None:
    entries = [called(arguments=text, index=n) for n, text in enumerate((ROME, OSLO))]
    if given != "absent":
        entries = [entry | {"id": given} for entry in entries]
    model.script(raw({"tool_calls": entries}, finish="tool_calls"), Reply(text="Sunny."))
    first = api.create(input="Weather?", tools=[FUNCTION])
    ids = [item["call_id"] for item in first["output"]]
    assert len(set(ids)) == 2
    assert all(one.startswith("call_") for one in ids)
    outputs = [{"type": "function_call_output", "call_id": one, "output": f"out {one}"} for one in ids]
    api.create(input=outputs, previous_response_id=first["id"], tools=[FUNCTION])
    assistant, *results = sent(model, 2)[1:]
    assert [call["id"] for call in assistant["tool_calls"]] == ids
    assert [(result["tool_call_id"], result["content"]) for result in results] == [(one, f"out {one}") for one in ids]


@behaviour("bug-12")
def test_ids_that_a_server_uses_again_do_not_mix_up_answers(tmp_path: Path, model: ScriptedUpstream) -> None:
    again = raw(fragment(id="call_0", name="look", arguments="{}"), finish="tool_calls")
    model.script(again, again, Reply(text="Done."), again, Reply(text="Done again."))
    with serving(tmp_path, model, tool=Lookup("one", "two", "three")) as api:
        first = api.create(input="Look.", tools=[LOOKUP])
        second = api.create(input="Once more.", tools=[LOOKUP], previous_response_id=first["id"])
    ids = [item["call_id"] for item in first["output"] + second["output"] if item["type"] == "function_call"]
    assert len(set(ids)) == 3
    results = [message for message in sent(model, 5) if message["role"] == "tool"]
    assert [(one["tool_call_id"], one["content"]) for one in results] == list(
        zip(ids, ("one", "two", "three"), strict=True)
    )


@behaviour("bug-12")
def test_missing_arguments_are_an_empty_object_in_the_item_and_on_replay(api: Driver, model: ScriptedUpstream) -> None:
    script = raw(fragment(id="call_a", name="get_weather"), finish="tool_calls")
    response = both(api, model, script, input="Weather?", tools=[FUNCTION])
    assert calls(response) == [("get_weather", "{}")]
    model.script(Reply(text="Sunny."))
    output = {"type": "function_call_output", "call_id": "call_a", "output": "sun"}
    api.create(input=[output], previous_response_id=response["id"], tools=[FUNCTION])
    assert sent(model, 3)[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": "{}"}


@behaviour("bug-13")
def test_a_finish_reason_of_calls_without_calls_is_a_normal_end(api: Driver, model: ScriptedUpstream) -> None:
    response = both(api, model, Reply(text="No call.", finish="tool_calls"), input="Hi", tools=[FUNCTION])
    assert (response["status"], kinds(response)) == ("completed", ["message"])


@behaviour("bug-13")
@pytest.mark.parametrize("choice", ["required", {"type": "lookup"}], ids=["required", "named"])
def test_a_forced_tool_is_forced_for_the_first_call_only(tmp_path: Path, model: ScriptedUpstream, choice: Any) -> None:
    def obedient(request: Any) -> Reply:
        return Reply(calls=[Call("look")]) if request.body.get("tool_choice", "auto") != "auto" else Reply(text="Done.")

    model.default = obedient
    with serving(tmp_path, model, tool=Lookup()) as api:
        response = api.create(input="Look.", tools=[LOOKUP], tool_choice=choice)
    assert kinds(response) == ["function_call", "function_call_output", "message"]
    assert "tool_choice" in model.requests[0].body
    assert len(model.requests) == 2


@behaviour("bug-13")
def test_no_more_calls_run_than_max_tool_calls_and_the_turn_ends(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.default = Reply(calls=[Call("look")])
    tool = Lookup()
    with serving(tmp_path, model, "responses: {max_infer_iters: 5}", tool=tool) as api:
        response = api.create(input="Look.", tools=[LOOKUP], max_tool_calls=2)
        assert api.get(f"/responses/{response['id']}").json() == response
    assert len(tool.arguments) == 2
    assert len(model.requests) == 5
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_iterations_exceeded"}


@behaviour("bug-14")
@pytest.mark.parametrize("broken", ['{"path": "a', '"foo"', "[1]", "null", "{} {}"])
def test_a_tool_never_runs_on_arguments_that_are_no_object_and_the_model_is_told(
    tmp_path: Path, model: ScriptedUpstream, broken: str
) -> None:
    model.script(Reply(calls=[Call("look", broken)]), Reply(text="I see."), Reply(text="Still here."))
    tool = Lookup()
    with serving(tmp_path, model, tool=tool) as api:
        response = api.create(input="Look.", tools=[LOOKUP])
        assert (response["status"], text_of(response)) == ("completed", "I see.")
        assert calls(response) == [("look", broken)]
        assert response["output"][1]["status"] == "incomplete"
        again = api.create(input="And now?", tools=[LOOKUP], previous_response_id=response["id"])
    assert text_of(again) == "Still here."
    assert tool.arguments == []
    assert "not a JSON object" in sent(model, 2)[-1]["content"]
    for number in (2, 3):
        replayed = next(message for message in sent(model, number) if message.get("tool_calls"))
        assert isinstance(json.loads(replayed["tool_calls"][0]["function"]["arguments"]), dict)


@behaviour("bug-14")
def test_broken_arguments_of_a_client_function_reach_the_client_as_they_are(
    api: Driver, model: ScriptedUpstream
) -> None:
    response = both(api, model, Reply(calls=[Call("get_weather", '{"city": ')]), input="Hi", tools=[FUNCTION])
    assert calls(response) == [("get_weather", '{"city": ')]


@behaviour("bug-18")
def test_leaving_out_reasoning_keeps_the_calls_that_came_with_it(api: Driver, model: ScriptedUpstream) -> None:
    model.script(
        Reply(reasoning="I need the weather.", calls=[Call("get_weather", ROME, id="call_a")]), Reply(text="Sunny.")
    )
    first = api.create(input="Weather?", tools=[FUNCTION])
    assert kinds(first) == ["reasoning", "function_call"]
    kept = [item for item in first["output"] if item["type"] != "reasoning"]
    output = {"type": "function_call_output", "call_id": "call_a", "output": "sun"}
    api.create(input=[{"role": "user", "content": "Weather?"}, *kept, output], tools=[FUNCTION])
    _, assistant, result = sent(model, 2)
    assert assistant["role"] == "assistant"
    assert assistant["content"] == ""
    assert assistant["tool_calls"][0]["id"] == result["tool_call_id"] == "call_a"


@behaviour("bug-19")
@pytest.mark.parametrize("count", [1, 2])
def test_text_and_calls_of_one_round_are_kept_in_order_and_go_back_as_one_message(
    tmp_path: Path, model: ScriptedUpstream, count: int
) -> None:
    model.script(*[Reply(text="Let me look…", calls=[Call("look") for _ in range(count)]), Reply(text="Found.")] * 2)
    with serving(tmp_path, model, tool=Lookup()) as api:
        streamed = final(api.stream(input="Look.", tools=[LOOKUP]))
        whole = api.create(input="Look.", tools=[LOOKUP])
    wanted = ["message", *["function_call"] * count, *["function_call_output"] * count, "message"]
    assert kinds(streamed) == kinds(whole) == wanted
    for number in (2, 4):
        _, assistant, *results = sent(model, number)
        assert assistant["content"] == "Let me look…"
        assert len(assistant["tool_calls"]) == len(results) == count


@behaviour("bug-19")
def test_text_that_was_held_back_for_thinking_still_precedes_the_call(api: Driver, model: ScriptedUpstream) -> None:
    response = both(
        api, model, Reply(text="<thi is no tag", chunks=2, calls=[Call("get_weather")]), input="Hi", tools=[FUNCTION]
    )
    assert kinds(response) == ["message", "function_call"]


def test_a_call_that_never_gets_a_name_fails_the_response(api: Driver, model: ScriptedUpstream) -> None:
    model.script(raw(rest("{}", index=0, id="call_a"), finish="tool_calls"))
    assert "without a name" in error(api.post(input="Hi", tools=[FUNCTION]), 502)["message"]


def test_a_whole_reply_instead_of_a_stream_is_read(api: Driver, model: ScriptedUpstream) -> None:
    message = {
        "role": "assistant",
        "content": "Here.",
        "tool_calls": [called(arguments=ROME, id="a"), called(arguments=OSLO, id="b")],
    }
    body = {**chunk(), "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    script = Raw([json.dumps(body).encode()], headers={"content-type": "application/json"})
    response = both(api, model, script, input="Hi", tools=[FUNCTION])
    assert kinds(response) == ["message", "function_call", "function_call"]
    assert calls(response) == BOTH
