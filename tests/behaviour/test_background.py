"""Background responses: made without their client, bounded, as whoever asked, and never without an outcome."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.behaviour.background_kit import begin, cancel, outcome
from tests.behaviour.conftest import Driver, text_of
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, error, serving
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.turns import Call, Refuse, Reply
from treadle.testing.upstream import ScriptedUpstream


def rows(data: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(data / "treadle.sqlite3")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@behaviour("background")
def test_answers_at_once_and_works_on_without_the_client(api: Driver, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("Done.", before=gate))
    queued = begin(api, input="Take your time.", metadata={"a": "b"})
    assert api.get(f"/responses/{queued['id']}").json()["status"] in ("queued", "in_progress")
    listed = api.get("/responses").json()["data"]
    assert [one["id"] for one in listed] == [queued["id"]]
    gate.set()
    done = outcome(api, queued["id"])
    assert (done["status"], text_of(done), done["created_at"]) == ("completed", "Done.", queued["created_at"])
    assert done["background"] is True
    assert done["metadata"] == {"a": "b"}
    assert done["usage"]["total_tokens"] == 15
    assert (
        api.get(f"/responses/{queued['id']}/input_items").json()["data"][0]["content"][0]["text"] == "Take your time."
    )


@behaviour("background")
def test_says_the_same_as_a_response_in_the_foreground(api: Driver, model: ScriptedUpstream) -> None:
    script = Reply("An answer.", reasoning="Hm.", calls=[Call("get_weather", {"city": "Rome"})])
    body = {"input": "Hello.", "tools": [FUNCTION], "temperature": 0.5, "instructions": "Be brief."}
    model.script(script, script)
    foreground = api.create(**body)
    background = outcome(api, begin(api, **body)["id"])
    assert {key for key in foreground if foreground[key] != background[key]} <= {
        "id", "created_at", "completed_at", "output", "background"
    }  # fmt: skip
    assert [item["type"] for item in background["output"]] == [item["type"] for item in foreground["output"]]
    first, second = (request.body for request in model.requests)
    assert {**first, "stream": None} == {**second, "stream": None}


@behaviour("background-bounds")
def test_refuses_at_once_what_can_be_refused(api: Driver) -> None:
    assert error(api.post(input="x", background=True, store=False), 400)["param"] == "background"
    assert error(api.post(background=True), 400)["param"] == "input"
    assert error(api.post(input="x", background=True, previous_response_id="resp_none"), 400)["code"] == (
        "previous_response_not_found"
    )
    refused = api.http.post(
        f"{api.server.url}/responses", json={"model": "local/nothing", "input": "x", "background": True}
    )
    assert error(refused, 404)["code"] == "model_not_found"
    assert api.get("/responses").json()["data"] == []


@behaviour("background-bounds")
def test_as_many_work_and_wait_as_the_settings_say(tmp_path: Path, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.default = Reply("Done.", before=gate)
    with serving(tmp_path, model, "background: {workers: 2, queued: 3}") as api:
        ids = [begin(api, input=f"{n}")["id"] for n in range(2)]
        model.received_blocking(2)
        ids += [begin(api, input=f"{n}")["id"] for n in range(3)]
        refused = api.post(input="one too many", background=True)
        fault = error(refused, 429)
        assert "background.queued" in fault["message"]
        assert "3 background responses" in fault["message"]
        assert refused.headers["retry-after"]
        assert [api.get(f"/responses/{one}").json()["status"] for one in ids] == ["in_progress"] * 2 + ["queued"] * 3
        assert len(model.requests) == 2
        gate.set()
        assert [outcome(api, one)["status"] for one in ids] == ["completed"] * 5
        assert outcome(api, begin(api, input="there is room again")["id"])["status"] == "completed"


@behaviour("background-bounds")
def test_what_takes_too_long_has_failed_and_its_model_call_is_closed(tmp_path: Path, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("Too late.", held={1: never}))
    with serving(tmp_path, model, "background: {timeout_seconds: 0.5}") as api:
        failed = outcome(api, begin(api, input="x")["id"])
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"
        assert "0.5 seconds" in failed["error"]["message"]
        assert "background.timeout_seconds" in failed["error"]["message"]
        model.received_blocking(1).disconnected.wait_blocking()
    never.set()


@behaviour("bug-70")
def test_a_model_that_refuses_fails_the_response_with_the_cause(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Refuse(400, {"error": {"message": "Not this.", "type": "x", "code": "x"}}))
    failed = outcome(api, begin(api, input="x")["id"])
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert "Not this." in failed["error"]["message"]
    assert [one["status"] for one in api.get("/responses").json()["data"]] == ["failed"]


@behaviour("bug-70")
def test_links_to_the_past_are_kept_and_a_conversation_may_go_meanwhile(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply("One."))
    first = api.create(input="1")
    conversation = api.http.post(f"{api.server.url}/conversations", json={}).json()["id"]
    gate = Gate()
    model.script(Reply("Two.", before=gate))
    chained = begin(api, input="2", previous_response_id=first["id"])
    model.received_blocking(2)
    model.script(Reply("Three.", before=gate))
    held = begin(api, input="3", conversation=conversation)
    model.received_blocking(3)
    assert api.delete(f"/conversations/{conversation}").status_code == 200
    gate.set()
    done = outcome(api, chained["id"])
    assert (done["status"], done["previous_response_id"]) == ("completed", first["id"])
    assert [message["content"] for message in model.requests[1].body["messages"]] == ["1", "One.", "2"]
    done = outcome(api, held["id"])
    assert (done["status"], done["conversation"], text_of(done)) == ("completed", {"id": conversation}, "Three.")


@behaviour("bug-70")
def test_a_conversation_deleted_before_the_job_begins_does_not_fail_it(tmp_path: Path, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("First.", before=gate), Reply("Second."))
    with serving(tmp_path, model, "background: {workers: 1}") as api:
        begin(api, input="x")
        model.received_blocking(1)
        conversation = api.http.post(f"{api.server.url}/conversations", json={}).json()["id"]
        waiting = begin(api, input="y", conversation=conversation)
        assert api.delete(f"/conversations/{conversation}").status_code == 200
        gate.set()
        done = outcome(api, waiting["id"])
        assert (done["status"], done["conversation"], text_of(done)) == ("completed", {"id": conversation}, "Second.")


@behaviour("bug-38", "background")
def test_a_conversation_has_one_turn_at_a_time_also_while_one_waits(tmp_path: Path, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("First.", before=gate), Reply("Second."), Reply("Third."))
    with serving(tmp_path, model, "background: {workers: 1}") as api:
        begin(api, input="x")
        model.received_blocking(1)
        conversation = api.http.post(f"{api.server.url}/conversations", json={}).json()["id"]
        waiting = begin(api, input="one", conversation=conversation)
        for background in (False, True):
            fault = error(api.post(input="two", conversation=conversation, background=background), 409)
            assert fault["code"] == "conversation_locked"
        gate.set()
        assert outcome(api, waiting["id"])["status"] == "completed"
        assert text_of(api.create(input="two", conversation=conversation)) == "Third."
        items = api.get(f"/conversations/{conversation}/items?order=asc").json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["one", "Second.", "two", "Third."]


@behaviour("bug-39")
def test_forks_see_their_own_past_and_what_is_deleted_is_gone(api: Driver, model: ScriptedUpstream) -> None:
    model.default = lambda request: Reply(f"Answer to {request.body['messages'][-1]['content']}.")
    first = outcome(api, begin(api, input="A")["id"])
    left = outcome(api, begin(api, input="B", previous_response_id=first["id"])["id"])
    right = outcome(api, begin(api, input="C", previous_response_id=first["id"])["id"])
    begun = begin(api, input="D", previous_response_id=left["id"])
    outcome(api, begun["id"])
    assert [message["content"] for message in model.requests[-1].body["messages"]] == [
        "A", "Answer to A.", "B", "Answer to B.", "D"
    ]  # fmt: skip
    assert api.delete(f"/responses/{left['id']}").status_code == 200
    assert api.get(f"/responses/{left['id']}").status_code == 404
    assert cancel(api, left["id"]).status_code == 404
    refused = api.post(input="E", background=True, previous_response_id=left["id"])
    assert error(refused, 400)["code"] == "previous_response_not_found"
    assert outcome(api, begin(api, input="F", previous_response_id=begun["id"])["id"])["status"] == "completed"
    assert right["status"] == "completed"


@behaviour("background")
@pytest.mark.parametrize("waits", [True, False])
def test_what_is_not_done_cannot_be_continued(tmp_path: Path, model: ScriptedUpstream, waits: bool) -> None:
    gate = Gate()
    model.script(*[Reply("Done.", before=gate)] * (2 if waits else 1))
    with serving(tmp_path, model, "background: {workers: 1}") as api:
        last = begin(api, input="x")
        model.received_blocking(1)
        if waits:
            last = begin(api, input="y")
        fault = error(api.post(input="and?", previous_response_id=last["id"]), 400)
        assert fault["param"] == "previous_response_id"
        gate.set()
        outcome(api, last["id"])


@behaviour("background-secrets", "bug-75")
def test_credentials_are_sealed_while_they_wait_and_gone_afterwards(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    gate = Gate()
    model.script(Reply("First.", before=gate), Reply("Second."))
    secret = "sk-very-secret-4711"
    tool = {"type": "mcp", "server_label": "s", "server_url": mcp.url, "authorization": secret}
    with serving(tmp_path, model, "background: {workers: 1}", "outgoing: {allow: [127.0.0.1]}") as api:
        begin(api, input="x")
        model.received_blocking(1)
        waiting = begin(api, input="y", tools=[tool])
        assert "authorization" not in str(api.get(f"/responses/{waiting['id']}").json()["tools"])
        assert rows(tmp_path, "SELECT COUNT(*) FROM jobs") == [(2,)]
        assert not any(secret.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        gate.set()
        assert outcome(api, waiting["id"])["status"] == "completed"
        assert any(f"Bearer {secret}" in str(request.headers) for request in mcp.requests)
        assert rows(tmp_path, "SELECT COUNT(*) FROM jobs") == [(0,)]
    assert not any(secret.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@behaviour("background")
def test_tools_of_the_server_run_in_the_background_too(tmp_path: Path, model: ScriptedUpstream) -> None:
    tool = Lookup("seen")
    model.script(Reply(calls=[Call("look", {"at": "it"})]), Reply("I saw it."))
    with serving(tmp_path, model, tool=tool) as api:
        done = outcome(api, begin(api, input="x", tools=[LOOKUP])["id"])
        assert [item["type"] for item in done["output"]] == ["function_call", "function_call_output", "message"]
    assert tool.arguments == ['{"at":"it"}'] or tool.arguments == ['{"at": "it"}']


@behaviour("bug-72", "background")
def test_a_client_that_leaves_before_the_answer_leaves_nothing_stranded(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply("Done."))
    with api.http.stream(
        "POST",
        f"{api.server.url}/responses",
        json={"model": "scripted/scripted", "input": "x", "background": True, "stream": True},
    ) as live:
        next(live.iter_bytes())
    (listed,) = api.get("/responses").json()["data"]
    assert outcome(api, listed["id"])["status"] == "completed"
