"""Bytes: what ends a line and what does not, characters cut in two, and what fills a silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, text_of
from tests.behaviour.kit import LOOKUP, Lookup, both, final, serving, types
from tests.behaviour.manifest import behaviour
from treadle.testing.frames import parse_sse
from treadle.testing.gates import Gate
from treadle.testing.sequence import check_sequence
from treadle.testing.turns import chunk
from treadle.testing.upstream import Call, Raw, Reply, ScriptedUpstream

ODD = "a\u2028b\u2029c\x85d\x0ce\x0bf\x1cg\x00h\U0001f600i"
FINISH = json.dumps(chunk({}, finish="stop")).encode()


def data_of(text: str) -> bytes:
    return json.dumps(chunk({"content": text}), ensure_ascii=False).encode()


@behaviour("bug-09", "bug-42")
def test_separators_and_controls_in_a_models_text_arrive_unharmed(api: Driver, model: ScriptedUpstream) -> None:
    response = both(api, model, Reply(text=ODD, chunks=3), input="Hi")
    assert text_of(response) == ODD


@behaviour("bug-09", "bug-42")
def test_separators_and_controls_in_a_tools_text_arrive_unharmed(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look")]), Reply(text="Seen."))
    with serving(tmp_path, model, tool=Lookup(ODD + "\ud800")) as api:
        response = final(api.stream(input="Look.", tools=[LOOKUP]))
        assert api.get(f"/responses/{response['id']}").json() == response
    assert response["output"][1]["output"] == ODD + "?"
    assert model.requests[1].body["messages"][-1]["content"] == ODD + "?"


@behaviour("bug-09")
@pytest.mark.parametrize(
    "frames",
    [
        b"data: %s\r\n\r\ndata: %s\r\n\r\ndata: [DONE]\r\n\r\n",
        b"data: %s\r\rdata: %s\r\rdata: [DONE]\r\r",
        b"data:%s\n\ndata:%s\n\ndata:[DONE]\n\n",
        b": hello\n\ndata: %s\n\n: ping\nid: 7\nretry: 10\ndata: %s\n\n:\n\ndata: [DONE]\n\n",
        b"\xef\xbb\xbfdata: %s\n\ndata: %s\n\ndata: [DONE]\n\n",
        b"event: message\ndata: %s\n\ndata:\n\ndata: %s\n\ndata: [DONE]",
    ],
    ids=["CRLF", "CR", "no space", "comments", "byte order mark", "names and empties"],
)
def test_all_legal_framings_mean_the_same(api: Driver, model: ScriptedUpstream, frames: bytes) -> None:
    response = both(api, model, Raw([frames % (data_of(ODD), FINISH)]), input="Hi")
    assert (response["status"], text_of(response)) == ("completed", ODD)


@behaviour("bug-09")
def test_an_event_in_two_data_lines_is_one_event(api: Driver, model: ScriptedUpstream) -> None:
    one, two = data_of("Hello.").split(b', "', 1)
    lines = b"data: " + one + b',\ndata: "' + two + b"\n\ndata: " + FINISH + b"\n\n"
    assert text_of(both(api, model, Raw([lines, b"data: [DONE]\n\n"]), input="Hi")) == "Hello."


@behaviour("bug-09")
def test_a_character_cut_in_two_by_the_network_or_by_escapes_is_whole_again(
    api: Driver, model: ScriptedUpstream
) -> None:
    frame = b"data: " + data_of("\U0001f600!") + b"\n\n"
    at = frame.index("\U0001f600".encode()) + 2
    halves = [json.dumps(chunk({"content": half})).encode() for half in ("Hi \ud83d", "\ude00.")]
    script = Raw([frame[:at], frame[at:], *(b"data: %s\n\n" % half for half in (*halves, FINISH)), b"data: [DONE]\n\n"])
    assert text_of(both(api, model, script, input="Hi")) == "\U0001f600!Hi \U0001f600."


@behaviour("bug-10")
@pytest.mark.parametrize("silent", ["model", "tool"])
def test_silence_is_filled_with_comments_between_whole_frames(
    tmp_path: Path, model: ScriptedUpstream, silent: str
) -> None:
    gate = Gate()
    if silent == "model":
        model.script(Reply(text="Late but well.", held={2: gate}))
    else:
        model.script(Reply(calls=[Call("look")]), Reply(text="Late but well."))
    with serving(tmp_path, model, "server: {keep_alive_seconds: 0.2}", tool=Lookup(gate=gate)) as api:
        body = {"model": MODEL, "input": "Hi", "stream": True, "tools": [LOOKUP]}
        with api.http.stream("POST", api.server.url + "/responses", json=body) as reply:
            assert "no-transform" in reply.headers["cache-control"]
            assert reply.headers["x-accel-buffering"] == "no"
            got = _until(reply, lambda found: found.count(b": ping\n\n") >= 2, gate)
    events = parse_sse(got)
    check_sequence(events)
    assert types(events)[-1] == "completed"
    assert text_of(final(events)) == "Late but well."


def _until(reply: Any, enough: Any, gate: Gate) -> bytes:
    """All the bytes of `reply`; opens `gate` once `enough` have come."""
    got = b""
    for read in reply.iter_bytes():
        got += read
        if enough(got):
            gate.set()
    return got
