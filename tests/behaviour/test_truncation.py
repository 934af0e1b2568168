"""`truncation`: what happens to a context that the model refuses as too long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.kit import final
from tests.behaviour.manifest import behaviour
from treadle.testing import Call, Reply, ScriptedUpstream
from treadle.testing.turns import Refuse


def limited(messages: int) -> Any:
    """A model that takes so many messages beside system ones, refuses orphans, and counts what it refused."""
    refused: list[int] = []

    def answer(request: Any) -> Reply | Refuse:
        shown = [message for message in request.body["messages"] if message["role"] != "system"]
        calls = {call["id"] for message in shown for call in message.get("tool_calls") or ()}
        if any(message["role"] == "tool" and message["tool_call_id"] not in calls for message in shown):
            return Refuse(400, {"error": {"message": "A tool message without its call."}})
        if len(shown) <= messages:
            return Reply(text="Fine.")
        refused.append(len(shown))
        return Refuse(400, {"error": {"message": "This model's maximum context length is 4097 tokens."}})

    answer.refused = refused  # type: ignore[attr-defined]
    return answer


def talk(turns: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "developer", "content": "Stay."}]
    for turn in range(turns):
        call = {"call_id": f"c{turn}", "name": "look", "arguments": "{}"}
        found += [
            {"role": "user", "content": f"Question {turn}"},
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": f"Seen {turn}"},
            {"role": "assistant", "content": f"Answer {turn}"},
        ]
    return [*found, {"role": "user", "content": "The newest"}]


@behaviour("truncation", "bug-44")
@pytest.mark.parametrize("stream", [False, True])
def test_the_oldest_turns_go_whole_and_what_is_protected_stays(
    api: Driver, model: ScriptedUpstream, stream: bool
) -> None:
    model.default = limited(10)
    body: dict[str, Any] = {"input": talk(5), "truncation": "auto", "instructions": "Be brief."}
    made = final(api.stream(**body)) if stream else api.create(**body)
    assert (made["status"], made["truncation"], text_of(made)) == ("completed", "auto", "Fine.")
    shown = sent(model, len(model.requests))
    assert [m["content"] for m in shown if m["role"] == "system"] == ["Be brief.\n\nStay."]
    rest = [message for message in shown if message["role"] != "system"]
    assert [message["role"] for message in rest] == ["user", "assistant", "tool", "assistant"] * 2 + ["user"]
    assert [rest[0]["content"], rest[-1]["content"]] == ["Question 3", "The newest"]
    # What is dropped is not forgotten.
    listed = api.get(f"/responses/{made['id']}/input_items?limit=100").json()["data"]
    assert len(listed) == 22


@behaviour("truncation")
def test_a_long_history_takes_few_refusals(api: Driver, model: ScriptedUpstream) -> None:
    model.default = answer = limited(20)
    assert api.create(input=talk(200), truncation="auto")["status"] == "completed"
    assert len(answer.refused) < 30


@behaviour("truncation")
@pytest.mark.parametrize("truncation", [None, "disabled"])
def test_without_it_the_error_says_what_is_wrong(api: Driver, model: ScriptedUpstream, truncation: str | None) -> None:
    model.default = limited(3)
    reply = api.post(input=talk(2), truncation=truncation)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "context_length_exceeded",
        "invalid_request_error",
        "input",
    )
    streamed = api.post(input=talk(2), truncation=truncation, stream=True)
    assert (streamed.status_code, streamed.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert len(model.requests) == 2


@behaviour("truncation")
def test_when_nothing_may_go_the_error_is_the_end(api: Driver, model: ScriptedUpstream) -> None:
    model.default = limited(0)
    reply = api.post(input=talk(3), truncation="auto")
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert [m["content"] for m in sent(model, len(model.requests)) if m["role"] != "system"] == ["The newest"]


@behaviour("truncation")
def test_a_turn_that_has_grown_in_its_rounds_loses_older_turns_too(api: Driver, model: ScriptedUpstream) -> None:
    too_long = Refuse(400, {"error": {"message": "prompt is too long: 5000 tokens > 4096 maximum"}})
    model.script(Reply(text="One."), Reply(calls=[Call("look", id="c9")]), too_long, Reply(text="Two."))
    first = api.create(input="a")
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    second = api.create(input="b", previous_response_id=first["id"], tools=[tool])
    output = {"type": "function_call_output", "call_id": "c9", "output": "long " * 50}
    body = {"previous_response_id": second["id"], "tools": [tool], "truncation": "auto"}
    third = api.create(input=[output], **body)
    assert text_of(third) == "Two."
    assert [message["role"] for message in sent(model, 4)] == ["user", "assistant", "tool"]
    assert "One." not in json.dumps(sent(model, 4))
