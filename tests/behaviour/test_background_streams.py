"""Streams of background responses: taken up again anywhere, by anyone, byte for byte."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from tests.behaviour.background_kit import begin, checked, frames, outcome, resumed
from tests.behaviour.conftest import MODEL, Driver
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, error, final, serving, types
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.turns import Call, Refuse, Reply
from treadle.testing.upstream import ScriptedUpstream

FOLLOWERS = 100


def started(api: Driver, **body: Any) -> Any:
    """A streamed background response, read by `with`."""
    sent = {"model": MODEL, "input": "x", "background": True, "stream": True, **body}
    return api.http.stream("POST", f"{api.server.url}/responses", json=sent)


def id_in(content: bytes) -> str:
    first = content.split(b"data: ", 1)[1].split(b"\n", 1)[0]
    found: str = msgspec.json.decode(first)["response"]["id"]
    return found


@behaviour("bug-71", "bug-05")
def test_begins_as_created_and_queued_and_ends_like_any_stream(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply("An answer.", reasoning="Hm.", calls=[Call("get_weather", {"city": "Rome"})]))
    reply = api.post(input="x", background=True, stream=True, tools=[FUNCTION])
    events = checked(reply.content)
    assert types(events)[:3] == ["created", "queued", "in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert all(event["response"]["background"] for event in (*events[:3], events[-1]))
    assert api.get(f"/responses/{final(events)['id']}").json() == final(events)


@behaviour("bug-71")
def test_a_reader_that_drops_after_any_event_gets_the_rest(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(
        Reply("I look.", reasoning="First.", calls=[Call("look", {"at": "it"})]),
        Reply("Seen \u2028 and done.", chunks=4),
    )
    with serving(tmp_path, model, tool=Lookup("seen")) as api:
        whole = api.post(input="x", background=True, stream=True, tools=[LOOKUP]).content
        response_id = id_in(whole)
        every = frames(whole)
        assert len(every) > 25
        assert resumed(api, response_id) == whole
        for after in range(len(every)):
            rest = resumed(api, response_id, after)
            assert b"".join(every[: after + 1]) + rest == whole
            if after + 1 < len(every):
                checked(rest, first=after + 1)
        assert resumed(api, response_id, len(every) + 5) == b"data: [DONE]\n\n"


@behaviour("bug-71", "bug-72")
def test_a_reader_that_drops_while_it_is_made_follows_to_the_end(api: Driver, model: ScriptedUpstream) -> None:
    words = [f"word{n} " for n in range(12)]
    gates = {n: Gate() for n in range(1, 12)}
    model.script(Reply("".join(words), held=gates))
    pieces, response_id, after = b"", "", -1
    where = f"{api.server.url}/responses"
    for number in range(1, 12):
        live = (
            started(api)
            if number == 1
            else api.http.stream("GET", f"{where}/{response_id}?stream=true&starting_after={after}")
        )
        gates[number].set()
        piece = b""
        with live as reply:
            for data in reply.iter_bytes():
                piece += data
                if b"\n\n" in piece:
                    break
        whole = piece[: piece.rindex(b"\n\n") + 2]
        pieces += whole
        after += whole.count(b"event: ")
        response_id = response_id or id_in(pieces)
    rest = resumed(api, response_id, after)
    assert pieces + rest == resumed(api, response_id)
    events = checked(pieces + rest)
    assert final(events)["status"] == "completed"
    assert model.requests[0].answered.is_set()


@behaviour("bug-71")
async def test_a_hundred_followers_get_the_same_bytes(tmp_path: Path, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("one two three four five six", chunks=6, held={3: gate}))
    with serving(tmp_path, model) as api:
        with started(api) as live:
            head = next(live.iter_bytes())
        where = f"{api.server.url}/responses/{id_in(head)}?stream=true"
        reading = [0]

        async def follow(http: httpx2.AsyncClient, number: int) -> bytes:
            content = b""
            async with http.stream("GET", f"{where}&starting_after={number % 4}") as live:
                async for data in live.aiter_bytes():
                    if not content:
                        reading[0] += 1
                        if reading[0] == FOLLOWERS:
                            gate.set()
                    content += data
            return content

        limits = httpx2.Limits(max_connections=FOLLOWERS)
        async with httpx2.AsyncClient(timeout=20, limits=limits) as http:
            read = await asyncio.gather(*(follow(http, number) for number in range(FOLLOWERS)))
        whole = resumed(api, id_in(head))
        every = frames(whole)
        checked(whole)
        for number, content in enumerate(read):
            assert b"".join(every[: number % 4 + 1]) + content == whole


@behaviour("bug-71")
def test_only_what_was_streamed_in_the_background_can_be_streamed_again(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply("One."), Reply("Two."))
    foreground = api.create(input="x")["id"]
    silent = outcome(api, begin(api, input="y")["id"])["id"]
    for response_id in (foreground, silent):
        fault = error(api.get(f"/responses/{response_id}?stream=true"), 400)
        assert fault["param"] == "stream"
        assert "'background' and 'stream'" in fault["message"]
    assert error(api.get("/responses/resp_none?stream=true"), 404)["param"] == "response_id"
    for bad in ("-1", "x", "1e9"):
        assert error(api.get(f"/responses/{silent}?stream=true&starting_after={bad}"), 400)["param"] == "starting_after"


@behaviour("bug-02", "bug-70", "bug-71")
def test_a_refused_model_call_ends_the_stream_as_failed(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Refuse(400, {"error": {"message": "Not this.", "type": "x", "code": "x"}}))
    reply = api.post(input="x", background=True, stream=True)
    assert reply.status_code == 200
    events = checked(reply.content)
    assert types(events) == ["created", "queued", "in_progress", "error", "failed"]
    assert "Not this." in final(events)["error"]["message"]
    assert resumed(api, final(events)["id"]) == reply.content


@behaviour("bug-71")
def test_what_fails_before_it_begins_is_told_in_the_stream(tmp_path: Path, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("Before."), Reply("First.", before=gate))
    with serving(tmp_path, model, "background: {workers: 1}") as api:
        previous = api.create(input="w")["id"]
        begin(api, input="x")
        model.received_blocking(2)
        with started(api, previous_response_id=previous) as live:
            content = next(live.iter_bytes())
        assert api.delete(f"/responses/{previous}").status_code == 200
        gate.set()
        response_id = id_in(content)
        failed = outcome(api, response_id)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_prompt")
        events = checked(resumed(api, response_id))
        assert types(events) == ["created", "queued", "in_progress", "error", "failed"]
        assert final(events) == failed


@behaviour("bug-71")
def test_the_official_client_resumes_in_its_strict_mode(api: Driver, client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("one two three", chunks=3))
    seen = list(client.responses.create(model=MODEL, input="x", background=True, stream=True))
    response_id = seen[0].response.id
    for after in (0, 2, 5):
        rest = list(client.responses.retrieve(response_id, stream=True, starting_after=after))
        assert [event.model_dump() for event in rest] == [event.model_dump() for event in seen[after + 1 :]]
    assert seen[-1].response.output_text == "one two three"
    with client.responses.stream(response_id=response_id) as again:
        assert again.get_final_response().output_text == "one two three"


@behaviour("background-cancel")
def test_the_official_client_cancels_in_its_strict_mode(api: Driver, client: Any, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply("one two three", held={2: never}), Reply("Done."))
    queued = client.responses.create(model=MODEL, input="x", background=True)
    assert queued.status == "queued"
    model.received_blocking(1)
    cancelled = client.responses.cancel(queued.id)
    assert cancelled.status == "cancelled"
    assert client.responses.cancel(queued.id) == cancelled
    assert client.responses.retrieve(queued.id) == cancelled
    done = client.responses.create(model=MODEL, input="x")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel"):
        client.responses.cancel(done.id)
    never.set()


@behaviour("bug-71")
def test_events_go_with_their_response(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply("Done."))
    response_id = id_in(api.post(input="x", background=True, stream=True).content)
    assert api.delete(f"/responses/{response_id}").status_code == 200
    assert error(api.get(f"/responses/{response_id}?stream=true"), 404)["param"] == "response_id"
