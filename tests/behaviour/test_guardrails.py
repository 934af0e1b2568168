"""Guardrails: what is flagged is neither shown nor stored, whichever way a response is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.behaviour.background_kit import begin, outcome
from tests.behaviour.conftest import MODEL, Driver, sent, text_of
from tests.behaviour.guard_kit import FakeModeration
from tests.behaviour.kit import FUNCTION, final, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.socket_kit import opened
from treadle.app import create_app
from treadle.settings import load
from treadle.testing import Call, Reply, ScriptedUpstream

BLOCKING = {"model": "m", "policy": {"input": {"mode": "block"}}}
RULES = "guardrails: {words: [mandrake, dark art], message: Blocked here.}"
LONG = "We walk along the river and talk about the weather of the week. " * 20


@pytest.fixture
def guarded(tmp_path: Path, model: ScriptedUpstream) -> Iterator[Driver]:
    """A server that blocks words of its own."""
    with serving(tmp_path, model, RULES) as api:
        yield api


def answered(api: Driver, way: str, **body: Any) -> dict[str, Any]:
    """The final response. What was streamed adds up to it: `check_sequence` sees to that."""
    match way:
        case "stream":
            return final(api.stream(**body))
        case "background":
            return outcome(api, begin(api, **body)["id"])
        case "socket":
            with opened(api.server) as socket:
                socket.ask(**body)
                found: dict[str, Any] = socket.until("response.completed")[-1]["response"]
                return found
        case _:
            return api.create(**body)


WAYS = pytest.mark.parametrize("way", ["plain", "stream", "background", "socket"])


@behaviour("guardrails", "bug-78")
@WAYS
def test_flagged_output_becomes_one_refusal_and_is_not_stored(
    guarded: Driver, model: ScriptedUpstream, way: str, tmp_path: Path
) -> None:
    model.default = Reply(text="You take a mandrake and boil it.")
    made = answered(guarded, way, input="How?")
    assert made["status"] == "completed"
    [message] = made["output"]
    assert message["content"] == [{"type": "refusal", "refusal": "Blocked here."}]
    assert b"mandrake" not in b"".join(file.read_bytes() for file in tmp_path.glob("*.sqlite3*"))


@behaviour("guardrails")
@WAYS
def test_flagged_input_never_reaches_the_model_nor_the_store(
    guarded: Driver, model: ScriptedUpstream, way: str
) -> None:
    made = answered(guarded, way, input=[{"role": "user", "content": "Tell me of the DARK  art."}])
    assert made["output"][0]["content"] == [{"type": "refusal", "refusal": "Blocked here."}]
    assert model.requests == []
    listed = guarded.get(f"/responses/{made['id']}/input_items").text
    assert "DARK" not in listed
    assert "Removed by a guardrail" in listed
    model.default = Reply(text="Fine.")
    again = guarded.create(input="Something else?", previous_response_id=made["id"])
    assert text_of(again) == "Fine."
    assert "DARK" not in json.dumps(sent(model, 1))


@behaviour("guardrails")
def test_what_came_before_is_shown_and_the_refusal_follows_it(guarded: Driver, model: ScriptedUpstream) -> None:
    model.default = Reply(text=f"{LONG}And then the mandrake screams, and everyone goes home.")
    events = guarded.stream(input="Go on")
    [message] = final(events)["output"]
    said, refusal = message["content"]
    assert LONG.startswith(said["text"].rstrip()[:900])
    assert len(said["text"]) >= 600
    assert refusal == {"type": "refusal", "refusal": "Blocked here."}
    assert "mandrake" not in json.dumps(events)
    assert [event["type"] for event in events].count("response.refusal.done") == 1


@behaviour("guardrails")
def test_an_answer_that_passes_is_whole_and_its_first_words_come_early(
    guarded: Driver, model: ScriptedUpstream
) -> None:
    model.default = Reply(text=LONG)
    events = guarded.stream(input="Go on")
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == LONG == text_of(final(events))


@behaviour("guardrails", "bug-78")
@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="Nothing.", reasoning="The mandrake, of course."),
        Reply(calls=[Call("get_weather", {"place": "under the mandrake"})]),
    ],
)
def test_reasoning_and_arguments_are_judged_too(guarded: Driver, model: ScriptedUpstream, reply: Reply) -> None:
    model.default = reply
    events = guarded.stream(input="Go on", tools=[FUNCTION])
    assert "mandrake" not in json.dumps(events)
    output = final(events)["output"]
    assert [item["type"] for item in output] == ["message"]
    assert output[0]["content"] == [{"type": "refusal", "refusal": "Blocked here."}]


@behaviour("guardrails")
def test_outputs_of_the_callers_functions_are_input(guarded: Driver, model: ScriptedUpstream) -> None:
    model.default = Reply(calls=[Call("get_weather", {})])
    first = guarded.create(input="Weather?", tools=[FUNCTION])
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "a mandrake"}
    made = guarded.create(input=[output], previous_response_id=first["id"], tools=[FUNCTION])
    assert made["output"][0]["content"][0]["type"] == "refusal"
    assert len(model.requests) == 1
    assert "mandrake" not in guarded.get(f"/responses/{made['id']}/input_items").text


@behaviour("guardrails")
def test_there_is_no_way_around_for_what_a_model_sees_later(guarded: Driver, model: ScriptedUpstream) -> None:
    flagged = [{"role": "user", "content": "A mandrake."}]
    made = guarded.http.post(f"{guarded.server.url}/conversations", json={"items": flagged})
    empty = guarded.http.post(f"{guarded.server.url}/conversations", json={}).json()
    added = guarded.http.post(f"{guarded.server.url}/conversations/{empty['id']}/items", json={"items": flagged})
    compacted = guarded.post("/responses/compact", input=flagged)
    for reply, param in ((made, "items"), (added, "items"), (compacted, "input")):
        assert reply.status_code == 400
        assert reply.json()["error"] == {
            "message": "Blocked here.",
            "type": "invalid_request_error",
            "param": param,
            "code": "blocked_by_guardrail",
        }
    prompt = guarded.http.post(
        f"{guarded.server.url}/prompts", json={"prompt": "About {{what}}.", "variables": ["what"]}
    ).json()
    for body in (
        {"prompt": {"id": prompt["id"], "variables": {"what": "a mandrake"}}, "input": "Go on"},
        {"prompt": {"id": prompt["id"], "variables": {"what": "a mandrake"}}},
        {"instructions": "Praise the mandrake.", "input": "Go on"},
    ):
        assert guarded.create(**body)["output"][0]["content"][0]["type"] == "refusal"
    assert model.requests == []


@behaviour("guardrails")
def test_an_unstored_turn_over_a_socket_leaves_nothing_flagged_to_the_next(
    guarded: Driver, model: ScriptedUpstream
) -> None:
    model.default = Reply(text="Fine.")
    with opened(guarded.server) as socket:
        socket.ask(input="A mandrake!", store=False, generate=False)
        first = socket.until("response.completed")[-1]["response"]
        socket.ask(input="And now?", store=False, previous_response_id=first["id"])
        assert text_of(socket.until("response.completed")[-1]["response"]) == "Fine."
    assert "mandrake" not in json.dumps(sent(model, 1))


@behaviour("guardrails")
@pytest.mark.parametrize(("wanted", "models"), [(True, [None]), (["strict", "mild"], ["strict", "mild"])])
def test_a_request_can_ask_for_guardrails(
    tmp_path: Path, model: ScriptedUpstream, wanted: Any, models: list[str | None]
) -> None:
    model.default = Reply(text="A sword.")
    with FakeModeration("sword") as service, serving(tmp_path, model, service.line) as api:
        made = final(api.stream(input="What?", guardrails=wanted))
        assert made["output"][0]["content"] == [{"type": "refusal", "refusal": "This was blocked by a guardrail."}]
        assert sorted(str(body.get("model")) for body in service.asked[: len(models)]) == sorted(map(str, models))
        assert set(service.texts) == {"What?", "A sword."}
        assert service.headers[0]["authorization"] == "Bearer hush"
        assert text_of(api.create(input="What?", guardrails=False)) == "A sword."
        assert "hush" not in api.get(f"/responses/{made['id']}").text


@behaviour("guardrails")
def test_guardrails_without_a_service_are_refused(api: Driver) -> None:
    for body in ({"guardrails": True}, {"guardrails": ["x"]}, {"moderation": BLOCKING}):
        reply = api.post(input="Hi", **body)
        assert reply.status_code == 503
        assert reply.json()["error"]["param"] == next(iter(body))
        assert reply.json()["error"]["code"] == "moderation_unavailable"


@behaviour("moderation")
def test_verdicts_that_nobody_can_give_are_told_as_errors(api: Driver, model: ScriptedUpstream) -> None:
    model.default = Reply(text="Fine.")
    made = api.create(input="Hi", moderation={"model": "m"})
    assert text_of(made) == "Fine."
    for side in ("input", "output"):
        assert made["moderation"][side]["type"] == "error"
        assert made["moderation"][side]["code"] == "moderation_unavailable"
    assert "moderation" not in api.create(input="Hi")


@behaviour("guardrails", "bug-78")
def test_a_service_that_is_down_fails_the_response(tmp_path: Path, model: ScriptedUpstream) -> None:
    with FakeModeration(status=500) as service, serving(tmp_path, model, service.line) as api:
        reply = api.post(input="Hi", guardrails=True)
        assert reply.status_code == 503
        assert reply.json()["error"]["message"] == "The moderation service answered with status 500."
    assert model.requests == []


@behaviour("guardrails", "bug-78")
def test_a_service_that_goes_down_in_between_lets_nothing_through(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.default = Reply(text=f"{LONG}Unjudged words.")
    with FakeModeration(good=2) as service, serving(tmp_path, model, service.line) as api:
        events = api.stream(input="Hi", guardrails=True)
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert 0 < len("".join(deltas)) < len(LONG)
        assert "Unjudged" not in json.dumps(events)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-2]["code"] == "moderation_unavailable"


@behaviour("guardrails")
def test_failing_open_is_a_setting(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.default = Reply(text="Words.")
    lines = "guardrails: {fail_open: true}"
    with FakeModeration(status=500) as service, serving(tmp_path, model, service.line, lines) as api:
        assert text_of(api.create(input="Hi", guardrails=True)) == "Words."


@behaviour("guardrails")
def test_the_servers_own_guardrails_cannot_be_switched_off(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.default = Reply(text="A sword.")
    lines = "guardrails: {always: true, models: [house]}"
    with FakeModeration("sword") as service, serving(tmp_path, model, service.line, lines) as api:
        for wanted in (False, [], None, True):
            made = api.create(input="What?", guardrails=wanted)
            assert made["output"][0]["content"][0]["type"] == "refusal", wanted
        assert {body["model"] for body in service.asked} == {"house"}
        for path in ("/chat/completions", "/completions"):
            reply = api.post(path, messages=[{"role": "user", "content": "Hi"}], prompt="Hi")
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied")


@behaviour("moderation")
def test_moderation_tells_verdicts_in_the_form_of_the_official_client(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.default = Reply(text="A sword.")
    with (
        FakeModeration("sword") as service,
        serving(tmp_path, model, service.line) as api,
        OpenAI(base_url=api.server.url, api_key="none", max_retries=0, _strict_response_validation=True) as client,
    ):
        made = client.responses.create(model=MODEL, input="What?", moderation={"model": "omni"})
        assert made.output_text == "A sword."
        assert made.moderation is not None
        assert made.moderation.input.type == "moderation_result"
        assert not made.moderation.input.flagged
        assert made.moderation.output.type == "moderation_result"
        assert made.moderation.output.flagged
        assert made.moderation.output.categories == {"violence": True, "hate/threatening": False}
        assert made.moderation.output.model == "judge-1"
        assert client.responses.retrieve(made.id).moderation == made.moderation
        policy: Any = {"output": {"mode": "block"}}
        blocked = client.responses.create(model=MODEL, input="What?", moderation={"model": "omni", "policy": policy})
        assert blocked.output[0].content[0].type == "refusal"  # type: ignore[union-attr]
        assert blocked.moderation is not None
        service.status = 500
        unheard = client.responses.create(model=MODEL, input="What?", moderation={"model": "omni"})
        assert unheard.output_text == "A sword."
        assert unheard.moderation is not None
        assert unheard.moderation.input.type == "error"


@behaviour("guardrails")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guardrails": "yes"}, "guardrails"),
        ({"guardrails": [""]}, "guardrails[0]"),
        ({"guardrails": ["x"] * 17}, "guardrails"),
        ({"moderation": {}}, "moderation.model"),
        ({"moderation": {"model": "m", "policy": {"input": {"mode": "x"}}}}, "moderation.policy.input.mode"),
    ],
)
def test_what_is_no_guardrail_is_a_400(api: Driver, body: dict[str, Any], param: str) -> None:
    reply = api.post(input="Hi", **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("guardrails: {always: true}", "guardrails.always"),
        ("guardrails: {models: [x]}", "guardrails.models"),
        ("guardrails: {patterns: ['(']}", "guardrails.patterns"),
    ],
)
def test_settings_that_cannot_work_are_named_at_the_start(tmp_path: Path, lines: str, named: str) -> None:
    file = tmp_path / "treadle.yaml"
    file.write_text(f"data_dir: {tmp_path}\n{lines}")
    with pytest.raises(ValueError, match=f"`{named}`"):
        create_app(load(file, environ={}).require())
