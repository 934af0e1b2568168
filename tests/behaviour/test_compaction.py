"""A context that grows over its threshold is compacted before a round, in the response that it belongs to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, final, kinds, serving, types
from tests.behaviour.manifest import behaviour
from treadle.models.tokens import estimate
from treadle.testing import Call, Reply, ScriptedUpstream
from treadle.testing.turns import Refuse, Tokens

LONG = "The ship sails on and nothing much happens on this day either. " * 20
AUTO = [{"type": "compaction", "compact_threshold": 300}]
NOTES = "NOTES: the word is heron."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def contents(model: ScriptedUpstream, number: int) -> list[Any]:
    return [message["content"] for message in sent(model, number)]


@behaviour("compact-auto")
def test_a_context_over_the_threshold_is_compacted_in_the_same_response(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=LONG, usage=Tokens(20, 290)), Reply(text=NOTES))
    model.script(Reply(text="Heron."), Reply(text="Still heron."))
    first = api.create(input="The word is heron.", context_management=AUTO)
    assert kinds(first) == ["message"]
    second = api.create(input="The word?", previous_response_id=first["id"], context_management=AUTO)
    assert kinds(second) == ["compaction", "message"]
    assert text_of(second) == "Heron."
    assert contents(model, 2)[1].startswith("The record:\n\nUser: The word is heron.")
    said, notes, question = contents(model, 3)
    assert (said, question) == ("The word is heron.", "The word?")
    assert notes.endswith(NOTES)
    assert second["usage"]["input_tokens"] == 20  # the summary's and the answer's
    # The next turn loads what is left, and has no need to do it again.
    third = api.create(input="Again?", previous_response_id=second["id"], context_management=AUTO)
    assert kinds(third) == ["message"]
    assert contents(model, 4) == ["The word is heron.", notes, "The word?", "Heron.", "Again?"]


@behaviour("compact-auto")
def test_the_snapshot_is_what_the_next_turn_loads(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model) as api:
        model.script(Reply(text=LONG), Reply(text=NOTES), Reply(text="Heron."))
        first = api.create(input=[{"role": "developer", "content": "Be brief."}, user("The word is heron.")])
        second = api.create(input="The word?", previous_response_id=first["id"], context_management=AUTO)
        listed = api.get(f"/responses/{second['id']}/input_items").json()["data"]
        assert [item["content"][0]["text"] for item in listed] == ["The word?"]
        assert api.get(f"/responses/{second['id']}").json() == second
        # What was summarised is not needed any more.
        assert api.delete(f"/responses/{first['id']}").status_code == 200
    with serving(tmp_path, model) as api:  # nothing is remembered but what is stored
        model.script(Reply(text="Still heron."))
        api.create(input="Again?", previous_response_id=second["id"])
    shown = contents(model, 4)
    assert shown[:2] == ["Be brief.", "The word is heron."]
    assert [NOTES in shown[2], *shown[3:]] == [True, "The word?", "Heron.", "Again?"]


@behaviour("compact-auto")
def test_events_come_in_order_and_the_item_can_be_sent_back(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=NOTES), Reply(text="Heron."), Reply(text="Yes."))
    talk = [user("The word is heron."), {"role": "assistant", "content": LONG}, user("The word?")]
    events = api.stream(input=talk, store=False, context_management=AUTO)
    assert types(events)[2:5] == ["output_item.added", "compaction.compacting", "output_item.done"]
    item = events[4]["item"]
    assert events[3]["item_id"] == item["id"] == final(events)["output"][0]["id"]
    assert item["type"] == "compaction"
    assert "heron" not in json.dumps(item)
    # A client without a store sends everything again, or only what came from the item on: the model sees the same.
    answer = final(events)["output"]
    api.create(input=[*talk, *answer, user("Sure?")], store=False)
    model.script(Reply(text="Yes."))
    api.create(input=[*answer, user("Sure?")], store=False)
    whole, short = contents(model, 3), contents(model, 4)
    assert whole[0] == short[0] == "The word is heron."
    assert NOTES in whole[1]
    assert NOTES in short[1]
    assert LONG not in whole
    assert whole[-2:] == short[-2:] == ["Heron.", "Sure?"]


@behaviour("compact-auto")
def test_it_happens_between_the_rounds_of_one_turn(tmp_path: Path, model: ScriptedUpstream) -> None:
    looked = Lookup(*(f"Sight {n}. " + LONG for n in range(3)))
    model.script(
        Reply(calls=[Call("look", {"at": 0})], usage=Tokens(50, 5)),
        Reply(calls=[Call("look", {"at": 1})], usage=Tokens(280, 5)),
        Reply(text=NOTES),
        Reply(text="Nothing to be seen.", usage=Tokens(90, 5)),
    )
    with serving(tmp_path, model, tool=looked) as api:
        limit = [{"type": "compaction", "compact_threshold": 500}]
        made = api.create(input="Look twice.", tools=[LOOKUP], context_management=limit)
    assert kinds(made)[-1] == "message"
    assert kinds(made).count("compaction") == 1
    roles = [message["role"] for message in sent(model, 4)]
    assert roles == ["user", "user", "assistant", "tool"]
    assert NOTES in sent(model, 4)[0]["content"]
    assert sent(model, 4)[1]["content"] == "Look twice."
    assert "Sight 1" in sent(model, 4)[3]["content"]
    assert "Sight 0" in contents(model, 3)[1]


@behaviour("bug-44")
@pytest.mark.parametrize("answered", ["here", "next"])
def test_no_call_is_parted_from_its_output(api: Driver, model: ScriptedUpstream, answered: str) -> None:
    calls = [Call("get_weather", {"at": LONG}, id=f"call_{n}") for n in range(2)]
    model.script(Reply(text=LONG), Reply(calls=calls), Reply(text=NOTES), Reply(text="Rain."))
    first = api.create(input="One.")
    second = api.create(input="Weather?", tools=[FUNCTION], previous_response_id=first["id"])
    outputs = [{"type": "function_call_output", "call_id": f"call_{n}", "output": "rain"} for n in range(2)]
    if answered == "next":
        # The newest turn of the user follows the calls, so a cut in front of it would part them.
        outputs = [user("Well?"), *outputs]
    limit = [{"type": "compaction", "compact_threshold": 1000}]
    api.create(input=outputs, tools=[FUNCTION], previous_response_id=second["id"], context_management=limit)
    messages = sent(model, 4)
    made = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    said = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert made == said == ["call_0", "call_1"]
    assert NOTES in json.dumps(messages)


@behaviour("bug-43")
def test_usage_of_zero_is_no_report_and_tools_count(api: Driver, model: ScriptedUpstream) -> None:
    tools = [FUNCTION | {"name": f"tool_{n}", "description": "It does nothing at all. " * 20} for n in range(3)]
    none = Tokens(0, 0)
    model.script(Reply(text=LONG, usage=none), Reply(text="Yes."), Reply(text="N."), Reply(text="Yes."))
    limit = [{"type": "compaction", "compact_threshold": 500}]
    first = api.create(input="Hello.", tools=tools, context_management=limit)
    body = {"previous_response_id": first["id"], "context_management": limit}
    assert kinds(api.create(input="More?", **body)) == ["message"]
    body["tools"] = tools
    assert kinds(api.create(input="More?", **body)) == ["compaction", "message"]


@behaviour("bug-43")
def test_notes_that_are_longer_than_the_history_are_not_used(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hi."), Reply(text=LONG * 9), Reply(text="Fine."))
    talk = [user("Hello."), {"role": "assistant", "content": "Hi. " * 90}, user("How are you?")]
    tiny = [{"type": "compaction", "compact_threshold": 20}]
    first = api.create(input="x")
    made = api.create(input=talk, previous_response_id=first["id"], context_management=tiny)
    assert kinds(made) == ["message"]
    assert contents(model, 3) == ["x", "Hi.", "Hello.", "Hi. " * 90, "How are you?"]


@behaviour("compact-auto")
def test_a_writer_that_fails_costs_the_summary_only(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=LONG), Refuse(401), Reply(text="Heron."))
    first = api.create(input="The word is heron.")
    made = api.create(input="The word?", previous_response_id=first["id"], context_management=AUTO)
    assert kinds(made) == ["message"]
    assert contents(model, 3) == ["The word is heron.", LONG, "The word?"]


@behaviour("compact-auto")
def test_the_answer_has_all_of_its_own_tokens(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=LONG), Reply(text=NOTES, usage=Tokens(400, 90)), Reply(text="Heron."))
    first = api.create(input="The word is heron.")
    body = {"previous_response_id": first["id"], "context_management": AUTO, "max_output_tokens": 50}
    api.create(input="The word?", **body)
    assert (model.requests[2].body.get("max_tokens") or model.requests[2].body["max_completion_tokens"]) == 50


@behaviour("compact-auto")
@pytest.mark.parametrize(("threshold", "compacted"), [(300, True), (100_000, False), (0, False)])
def test_the_server_can_want_it_for_all(
    tmp_path: Path, model: ScriptedUpstream, threshold: int, compacted: bool
) -> None:
    model.script(Reply(text=LONG, usage=Tokens(20, 290)), *([Reply(text=NOTES)] if compacted else []))
    model.script(Reply(text="Heron."))
    with serving(tmp_path, model, f"compaction: {{default_compact_threshold: {threshold}}}") as api:
        first = api.create(input="The word is heron.")
        made = api.create(input="The word?", previous_response_id=first["id"])
    assert ("compaction" in kinds(made)) == compacted


@behaviour("compact-auto")
def test_a_conversation_is_compacted_too(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=LONG), Reply(text=NOTES), Reply(text="Heron."), Reply(text="Still."))
    conversation = api.post("/conversations").json()["id"]
    for question in ("The word is heron.", "The word?", "Again?"):
        api.create(input=question, conversation=conversation, context_management=AUTO)
    shown = contents(model, 4)
    assert [shown[0], NOTES in shown[1], *shown[2:]] == ["The word is heron.", True, "The word?", "Heron.", "Again?"]


@behaviour("compact-auto")
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([{"type": "summary"}], "context_management[0].type"),
        ([{"type": "compaction", "compact_threshold": 0}], "context_management[0].compact_threshold"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(api: Driver, given: Any, param: str) -> None:
    reply = api.post(input="x", context_management=given)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@behaviour("compact-auto")
def test_a_refusal_is_answered_by_compacting_first_and_then_by_dropping(api: Driver, model: ScriptedUpstream) -> None:
    too_long = Refuse(400, {"error": {"message": "Too long.", "code": "context_length_exceeded"}})

    def answer(request: Any) -> Reply | Refuse:
        messages = request.body["messages"]
        if messages[0]["role"] == "system":
            return Reply(text=NOTES)
        return too_long if len(messages) > 1 else Reply(text="Heron.")

    model.script(Reply(text=LONG))
    model.default = answer
    first = api.create(input="The word is heron.")
    later = [{"type": "compaction", "compact_threshold": 100_000}]
    body = {"previous_response_id": first["id"], "context_management": later, "truncation": "auto"}
    made = api.create(input="The word?", **body)
    assert kinds(made)[0] == "compaction"
    assert text_of(made) == "Heron."
    asked = [contents(model, number) for number in range(2, len(model.requests) + 1)]
    assert asked[0] == ["The word is heron.", LONG, "The word?"]
    assert NOTES in json.dumps(asked[2])
    assert asked[-1] == ["The word?"]


# ------------------------------------------------------------------------------------------ 400 turns


def _small_model(window: int) -> Callable[[Any], Reply | Refuse]:
    """Refuses more than `window` tokens and orphans; writes down, answers with and finds code words; calls a tool."""

    def answer(request: Any) -> Reply | Refuse:
        messages = request.body["messages"]
        size = sum(4 + estimate(json.dumps(message)) for message in messages)
        if size > window:
            message = f"This model's maximum context length is {window} tokens, but {size} were requested."
            return Refuse(400, {"error": {"message": message, "type": "invalid_request_error", "code": None}})
        calls: set[str] = set()
        for message in messages:
            calls |= {call["id"] for call in message.get("tool_calls") or ()}
            if message["role"] == "tool" and message["tool_call_id"] not in calls:
                return Refuse(400, {"error": {"message": "An orphan."}})
        usage = Tokens(size, 20)
        text = json.dumps(messages)
        if messages[0]["role"] == "system" and messages[0]["content"].startswith("You write the notes"):
            found = sorted(set(re.findall(r"code-\d+-[a-z]+", text)))
            return Reply(text="Words: " + " ".join(found), usage=usage)
        question = next(m["content"] for m in reversed(messages) if m["role"] == "user")
        if found := re.search(r"Which is code word (\d+)\?", question):
            word = re.search(rf"code-{found[1]}-[a-z]+", text)
            return Reply(text=word[0] if word else "I do not know.", usage=usage)
        if messages[-1]["role"] == "user" and "Look" in question:
            return Reply(calls=[Call("look")], usage=usage)
        return Reply(text="Noted. " + "The ship sails on. " * 10, usage=usage)

    return answer


@behaviour("compact-auto", "bug-43", "bug-44")
def test_four_hundred_turns_with_a_small_window(tmp_path: Path) -> None:
    words = ("heron", "osier", "tansy", "quoin", "gannet")
    sizes: list[int] = []
    with (
        ScriptedUpstream(default=_small_model(4_000)) as model,
        serving(tmp_path, model, tool=Lookup(*["A long look. " * 15] * 200)) as api,
    ):
        body = {"tools": [LOOKUP], "context_management": [{"type": "compaction", "compact_threshold": 3_000}]}
        previous = None
        for turn in range(400):
            question = f"Look around on day {turn} and tell what you see." if turn % 2 else f"Day {turn} goes by."
            if turn % 80 == 0:
                question = f"Remember code-{turn // 80}-{words[turn // 80]} for later."
            asked = len(model.requests)
            made = api.create(input=question, previous_response_id=previous, **body)
            assert made["status"] == "completed"
            sizes.append(sum(len(request.raw) for request in model.requests[asked:]))
            previous = made["id"]
        for number, word in enumerate(words):
            made = api.create(input=f"Which is code word {number}?", previous_response_id=previous, **body)
            assert text_of(made) == f"code-{number}-{word}"
    early, late = sizes[100:200], sizes[300:400]
    assert sum(late) < 1.3 * sum(early)  # the cost of a turn does not grow
