"""Cancelling background responses, at whatever moment, and deleting them."""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.behaviour.background_kit import RUNNING, begin, cancel, outcome, resumed
from tests.behaviour.conftest import MODEL, Driver, text_of
from tests.behaviour.kit import LOOKUP, Lookup, error, serving
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

RACES = int(os.environ.get("TREADLE_TEST_CANCELS", "60"))
"""200 are the full measure; they take a while."""


class Pause:
    """What a chunk of a model's answer waits for, so that an answer has a length in time."""

    async def wait(self) -> None:
        await asyncio.sleep(0.01)


@behaviour("background-cancel")
def test_a_running_response_stops_and_keeps_what_it_had(api: Driver, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("One two three.", held={2: never}))
    response_id = begin(api, input="x")["id"]
    model.received_blocking(1)
    cancelled = cancel(api, response_id)
    assert cancelled.status_code == 200, cancelled.text
    assert (cancelled.json()["status"], cancelled.json()["id"]) == ("cancelled", response_id)
    model.received_blocking(1).disconnected.wait_blocking()
    again = cancel(api, response_id)
    assert (again.status_code, again.json()) == (200, cancelled.json())
    assert api.get(f"/responses/{response_id}").json() == cancelled.json()
    refused = api.post(input="and?", previous_response_id=response_id)
    assert error(refused, 400)["param"] == "previous_response_id"
    never.set()


@behaviour("background-cancel")
def test_a_waiting_response_never_begins(tmp_path: Path, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("First.", before=gate))
    with serving(tmp_path, model, "background: {workers: 1}") as api:
        first = begin(api, input="x")["id"]
        model.received_blocking(1)
        waiting = begin(api, input="y")["id"]
        cancelled = cancel(api, waiting).json()
        assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
        gate.set()
        assert outcome(api, first)["status"] == "completed"
        assert outcome(api, waiting) == cancelled
        assert api.get(f"/responses/{waiting}/input_items").json()["data"][0]["content"][0]["text"] == "y"
    assert len(model.requests) == 1


@behaviour("background-cancel")
def test_a_tool_that_runs_is_stopped(tmp_path: Path, model: ScriptedUpstream) -> None:
    tool = Lookup(gate=Gate())
    model.script(Reply(calls=[Call("look")]))
    with serving(tmp_path, model, tool=tool) as api:
        response_id = begin(api, input="x", tools=[LOOKUP])["id"]
        tool.running.wait_blocking()
        assert cancel(api, response_id).json()["status"] == "cancelled"
        assert tool.stopped.is_set()
        assert api.get(f"/responses/{response_id}").json()["status"] == "cancelled"


@behaviour("background-cancel")
def test_what_was_not_made_in_the_background_or_has_ended_cannot_be_cancelled(
    api: Driver, model: ScriptedUpstream
) -> None:
    model.script(Reply("One."), Reply("Two."), Reply("Cut.", finish="length"))
    foreground = api.create(input="x")["id"]
    done = outcome(api, begin(api, input="y")["id"])["id"]
    incomplete = outcome(api, begin(api, input="z")["id"])
    assert incomplete["status"] == "incomplete"
    for response_id in (foreground, done, incomplete["id"]):
        assert error(cancel(api, response_id), 400)["message"].startswith("Cannot cancel")
    for unknown in ("resp_none", "resp_" + "0" * 32, "no%20id"):
        assert error(cancel(api, unknown), 404)["param"] == "response_id"


@behaviour("background-cancel")
def test_a_conversation_gets_nothing_of_it_and_is_free_again(api: Driver, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("One two three.", held={2: never}), Reply("Yes."))
    conversation = api.http.post(f"{api.server.url}/conversations", json={}).json()["id"]
    response_id = begin(api, input="x", conversation=conversation)["id"]
    model.received_blocking(1)
    assert cancel(api, response_id).json()["conversation"] == {"id": conversation}
    assert api.get(f"/conversations/{conversation}/items").json()["data"] == []
    assert text_of(api.create(input="free?", conversation=conversation)) == "Yes."
    assert len(api.get(f"/conversations/{conversation}/items").json()["data"]) == 2
    never.set()


@behaviour("background-cancel")
def test_a_cancelled_stream_closes_what_it_opened_and_ends(api: Driver, model: ScriptedUpstream) -> None:
    shown, never = Gate(), Gate()
    model.script(Reply("One two three.", held={3: never}))
    body = {"model": MODEL, "input": "x", "background": True, "stream": True}
    content = b""
    with api.http.stream("POST", f"{api.server.url}/responses", json=body) as live:
        for data in live.iter_bytes():
            content += data
            if b"two" in content and not shown.is_set():
                shown.set()
                (listed,) = api.get("/responses").json()["data"]
                assert cancel(api, listed["id"]).status_code == 200
    assert resumed(api, listed["id"]) == content
    events = [frame for frame in content.split(b"\n\n") if frame.startswith(b"event: ")]
    names = [event.split(b"\n")[0].removeprefix(b"event: response.").decode() for event in events]
    assert names[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
    assert content.endswith(b"data: [DONE]\n\n")
    cancelled = api.get(f"/responses/{listed['id']}").json()
    assert (cancelled["status"], text_of(cancelled)) == ("cancelled", "One two ")
    never.set()


@behaviour("background-cancel")
@pytest.mark.parametrize("running", [True, False])
def test_deleting_one_that_is_not_done_cancels_it(tmp_path: Path, model: ScriptedUpstream, running: bool) -> None:
    never = Gate()
    model.script(Reply("One two three.", held={2: never}))
    with serving(tmp_path, model, "background: {workers: 1}") as api:
        response_id = begin(api, input="x", stream=None)["id"]
        model.received_blocking(1)
        deleted = response_id if running else begin(api, input="y")["id"]
        assert api.delete(f"/responses/{deleted}").json() == {"id": deleted, "object": "response", "deleted": True}
        assert api.get(f"/responses/{deleted}").status_code == 404
        if running:
            model.received_blocking(1).disconnected.wait_blocking()
    never.set()


@behaviour("background-cancel")
def test_cancelled_at_any_moment_it_stays_cancelled(tmp_path: Path, model: ScriptedUpstream) -> None:
    chance = random.Random(4)
    model.default = Reply("one two three four five six seven eight", chunks=8, held=dict.fromkeys(range(9), Pause()))

    def race(number: int) -> tuple[str, dict[str, Any], bool]:
        response_id = begin(api, input=f"{number}", stream=None)["id"]
        sleep(moments[number])
        reply = cancel(api, response_id)
        if reply.status_code == 200:
            assert reply.json()["status"] == "cancelled"
        else:
            assert error(reply, 400)["message"] == "Cannot cancel a response that is completed."
        return response_id, api.get(f"/responses/{response_id}").json(), reply.status_code == 200

    moments = [chance.uniform(0, 0.15) for _ in range(RACES)]
    with serving(tmp_path, model) as api, ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(race, range(RACES)))
        sleep(0.2)
        assert any(cancelled for _, _, cancelled in ended)
        for response_id, seen, cancelled in ended:
            assert seen["status"] == ("cancelled" if cancelled else "completed")
            assert api.get(f"/responses/{response_id}").json() == seen
        assert all(one["status"] not in RUNNING for one in api.get("/responses?limit=100").json()["data"])
    assert all(request.disconnected.is_set() or request.answered.is_set() for request in model.requests)


@behaviour("background-cancel")
def test_many_cancels_of_one_response_agree(api: Driver, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("One two three.", held={2: never}))
    response_id = begin(api, input="x")["id"]
    model.received_blocking(1)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: cancel(api, response_id), range(8)))
    assert [reply.status_code for reply in replies] == [200] * 8
    assert len({reply.content for reply in replies}) == 1
    never.set()
