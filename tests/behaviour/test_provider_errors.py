"""What callers see when a model server refuses, fails, breaks off or talks nonsense: never a hang, never a success."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, text_of
from tests.behaviour.kit import error, final, raw, serving, types
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.turns import chunk, sse
from treadle.testing.upstream import Drop, Raw, Refuse, Reply, ScriptedUpstream

HELLO = chunk({"content": "Hello"})


def refusal(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": None, "param": None, **fields}}


@behaviour("bug-24")
@pytest.mark.parametrize("stream", [False, True])
def test_a_rate_limit_keeps_its_status_and_its_retry_after(api: Driver, model: ScriptedUpstream, stream: bool) -> None:
    model.script(Refuse(429, refusal("Slow down.", type="requests"), {"Retry-After": "33"}))
    reply = api.post(input="Hi", stream=stream)
    found = error(reply, 429)
    assert (found["type"], found["code"], found["message"]) == ("rate_limit_error", "rate_limit_exceeded", "Slow down.")
    assert reply.headers["retry-after"] == "33"


@behaviour("bug-24")
def test_a_spent_quota_is_told_from_a_rate_limit(api: Driver, model: ScriptedUpstream) -> None:
    model.script(
        Refuse(429, refusal("Pay.", code="insufficient_quota"), {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})
    )
    model.script(*[Refuse(429, refusal("Pay.", code="insufficient_quota"))] * 2)
    assert error(api.post(input="Hi"), 429)["code"] == "insufficient_quota"


@behaviour("bug-24")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, refusal("Too many.", code="context_length_exceeded")),
        (400, refusal("This model's maximum context length is 10 tokens. However, you requested 99.")),
        (400, refusal("the request exceeds the available context size", code=400, type="exceed_context_size_error")),
        (500, refusal("slot failed", code=500, type="exceed_context_size_error")),
        (400, {"object": "error", "message": "maximum context length is 10", "type": "BadRequestError", "code": 400}),
        (413, {"error": "prompt is too long: 99 tokens > 10 maximum"}),
    ],
)
def test_a_context_that_is_too_long_has_its_own_code(
    tmp_path: Path, model: ScriptedUpstream, status: int, body: dict[str, Any]
) -> None:
    model.script(Refuse(status, body))
    with serving_once(tmp_path, model) as api:
        found = error(api.post(input="Hi"), 400)
    assert (found["code"], found["type"], found["param"]) == (
        "context_length_exceeded",
        "invalid_request_error",
        "input",
    )


@behaviour("bug-24")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("event", "status", "code"),
    [
        (refusal("Too long.", code="context_length_exceeded"), 400, "context_length_exceeded"),
        (refusal("Slow down.", code=429), 429, "rate_limit_exceeded"),
        (refusal("It crashed.", type="server_error"), 502, "upstream_error"),
        ({"error": "It crashed."}, 502, "upstream_error"),
        (
            {"object": "error", "message": "It crashed.", "type": "InternalServerError", "code": 500},
            502,
            "upstream_error",
        ),
    ],
)
def test_an_error_inside_the_stream_keeps_its_meaning(
    api: Driver, model: ScriptedUpstream, event: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    model.script(Raw([sse(event, done=False)]), Raw([sse(HELLO, event)]))
    assert error(api.post(input="Hi", stream=stream), status)["code"] == code
    if stream:
        events = api.stream(input="Hi")
        assert types(events)[-2:] == ["error", "failed"]
        assert events[-2]["code"] == code
    else:
        assert error(api.post(input="Hi"), status)["code"] == code


@behaviour("bug-24")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/responses/resp_unknown", 404),
        ("/conversations/conv_unknown", 404),
        ("/models/unknown", 404),
        ("/nowhere", 404),
    ],
)
def test_what_does_not_exist_is_a_404_in_the_envelope(api: Driver, path: str, status: int) -> None:
    error(api.get(path), status)


@behaviour("bug-24")
def test_a_body_that_is_no_json_is_a_400_in_the_envelope(api: Driver) -> None:
    reply = api.http.post(api.server.url + "/responses", content=b"{no", headers={"content-type": "application/json"})
    assert error(reply, 400)["code"] == "invalid_json"


@behaviour("bug-24")
@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, refusal("Bad key sk-secret."), 401),
        (403, refusal("Not you."), 403),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, 400),
        (404, refusal("The model 'x' does not exist.", code="model_not_found"), 404),
        (302, b"", 502),
        (204, b"", 502),
        (418, b"<html>teapot</html>", 418),
        (400, b"", 400),
        (400, b"\xff\xfe\x00", 400),
        (400, b'[{"error": {"message": "In a list."}}]', 400),
        (400, b'{"error": {"message": {"no": "text"}}}', 400),
        (400, b"[" * 100_000, 400),
    ],
)
def test_any_refusal_is_an_error_in_the_envelope(
    api: Driver, model: ScriptedUpstream, status: int, body: Any, expected: int
) -> None:
    model.script(Refuse(status, body, {"location": "http://127.0.0.1:1/"}))
    found = error(api.post(input="Hi"), expected)
    assert found["message"]
    assert len(found["message"]) < 1000
    assert "<html>" not in found["message"]


@behaviour("bug-24")
def test_the_key_of_the_model_server_never_shows(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Refuse(401, refusal("Bad key sk-secret.")), Raw([sse(refusal("Bad key sk-secret."), done=False)]))
    extra = f"  keyed: {{kind: openai_chat, url: '{model.url}', key: sk-secret}}"
    with serving(tmp_path, model, extra) as api:
        for status in (401, 502):
            reply = api.http.post(api.server.url + "/responses", json={"model": "keyed/scripted", "input": "Hi"})
            assert "***" in error(reply, status)["message"]
            assert "sk-secret" not in reply.text
    assert model.requests[0].headers["authorization"] == "Bearer sk-secret"


# ---------------------------------------------------------------------------------------------- retries


@pytest.mark.parametrize(
    "fault", [Refuse(503), Refuse(500), Refuse(429, refusal("Wait."), {"Retry-After": "0"}), Drop()]
)
def test_a_passing_fault_before_the_first_byte_is_tried_again(
    api: Driver, model: ScriptedUpstream, fault: Refuse | Drop
) -> None:
    model.script(fault, fault, Reply(text="At last."))
    assert text_of(final(api.stream(input="Hi"))) == "At last."
    assert model.requests[0].raw == model.requests[2].raw


def test_a_fault_that_stays_is_told_after_the_last_try(api: Driver, model: ScriptedUpstream) -> None:
    model.script(*[Refuse(503, refusal("Overloaded."))] * 3)
    assert "Overloaded." in error(api.post(input="Hi"), 502)["message"]


@pytest.mark.parametrize("status", [400, 401, 404, 501])
def test_a_fault_that_cannot_pass_is_not_tried_again(api: Driver, model: ScriptedUpstream, status: int) -> None:
    model.script(Refuse(status))
    assert api.post(input="Hi").status_code in (status, 502)


def test_nothing_is_tried_again_after_the_first_byte(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Drop(after=1), Drop(after=3))
    error(api.post(input="Hi"), 502)
    assert types(api.stream(input="Hi"))[-1] == "failed"
    assert len(model.requests) == 2


def test_a_long_retry_after_is_left_to_the_caller(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Refuse(503, headers={"Retry-After": "120"}))
    error(api.post(input="Hi"), 502)


def test_a_server_that_is_not_there_is_a_502_that_says_so(tmp_path: Path, model: ScriptedUpstream) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        with serving(tmp_path, model, url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1") as api:
            for stream in (False, True):
                message = error(api.post(input="Hi", stream=stream), 502)["message"]
                assert message == "The model server 'scripted' cannot be reached: connection refused."


def test_a_silent_server_is_a_504(tmp_path: Path, model: ScriptedUpstream) -> None:
    never = Gate()
    model.script(Reply(text="x", before=never), Reply(text="Never whole.", held={2: never}))
    with slow_server(tmp_path, model) as api:
        error(api.post(input="Hi"), 504)
        events = api.stream(input="Hi")
        assert types(events)[-2:] == ["error", "failed"]
        assert events[-2]["code"] == "upstream_timeout"
    never.set()


# ---------------------------------------------------------------------------------------------- nonsense

NONSENSE: dict[str, Raw] = {
    "an empty body": Raw([]),
    "only comments": Raw([b": hello\n\n: hello\n\n"]),
    "only the end mark": Raw([b"data: [DONE]\n\n"]),
    "not JSON": Raw([b"data: {no\n\n"]),
    "an array": Raw([b"data: []\n\n"]),
    "a number": Raw([b"data: 7\n\n"]),
    "invalid UTF-8": Raw([b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n']),
    "a raw NUL": Raw([b'data: {"choices":[{"delta":{"content":"a\0b"}}]}\n\n']),
    "a number as content": Raw([sse({"choices": [{"delta": {"content": 7}}]})]),
    "an object as choices": Raw([sse({"choices": {"delta": {}}})]),
    "text as calls": Raw([sse({"choices": [{"delta": {"tool_calls": "look"}}]})]),
    "an index of text": Raw([sse({"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]})]),
    "text as usage": Raw([sse({"choices": [], "usage": "much"})]),
    "deep nesting": Raw([b'data: {"choices":' + b"[" * 100_000 + b"\n\n"]),
    "a broken reason": raw({"content": "Hm"}, finish="error"),
    "a malformed call": raw({"content": "Hm"}, finish="function_call_filter: MALFORMED_FUNCTION_CALL"),
    "a bare JSON line": Raw([sse(HELLO, done=False), b'{"error": {"message": "It crashed."}}\n']),
    "an HTML page": Raw([b"<html>Welcome</html>"], headers={"content-type": "text/html"}),
    "an HTML page as a stream": Raw([b"<html>\n\nWelcome\n\n</html>"]),
    "an empty JSON object": Raw([b"{}"], headers={"content-type": "application/json"}),
    "half a JSON object": Raw([b'{"choices": [{"mess'], headers={"content-type": "application/json"}),
    "a whole reply without an end": Raw(
        [b'{"choices": [{"message": {"content": "Hi"}}]}'], headers={"content-type": "application/json"}
    ),
    "an error with status 200": Raw(
        [json.dumps(refusal("No.")).encode()], headers={"content-type": "application/json"}
    ),
    "bytes that are not gzip": Raw([b"data: plain\n\n"], headers={"content-encoding": "gzip"}),
}


@pytest.mark.parametrize("script", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_a_clean_failure(api: Driver, model: ScriptedUpstream, script: Raw) -> None:
    model.script(script, script)
    assert error(api.post(input="Hi"), 502)["message"]
    reply = api.post(input="Hi", stream=True)
    if reply.status_code == 200:
        model.script(script)
        assert types(api.stream(input="Hi"))[-2:] == ["error", "failed"]
    else:
        error(reply, 502)


def test_an_event_that_never_ends_is_cut_off(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Raw([b"data: ", *[b"x" * 4_000_000] * 5]))
    assert "does not end" in error(api.post(input="Hi"), 502)["message"]


def test_a_huge_event_that_ends_is_read(api: Driver, model: ScriptedUpstream) -> None:
    text = "word " * 600_000
    model.script(Reply(text=text, chunks=1))
    assert text_of(api.create(input="Hi")) == text


def test_what_follows_the_end_mark_does_not_matter(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Raw([sse(HELLO, chunk({}, finish="stop")) + sse(refusal("Too late.")) + b"data: {no\n\n"]))
    assert text_of(api.create(input="Hi")) == "Hello"


def test_a_server_that_keeps_the_line_open_after_the_end_mark_does_not_delay_the_end(
    api: Driver, model: ScriptedUpstream
) -> None:
    never = Gate()
    model.script(Raw([sse(HELLO, chunk({}, finish="stop")), never]))
    assert text_of(final(api.stream(input="Hi"))) == "Hello"
    never.set()


@contextmanager
def serving_once(data: Path, model: ScriptedUpstream) -> Iterator[Driver]:
    """A server that tries nothing again."""
    with serving(data, model, f"  once: {{kind: openai_chat, url: '{model.url}', retries: 0}}") as api:
        yield Renamed(api.server, api.http, "once/scripted")


@contextmanager
def slow_server(data: Path, model: ScriptedUpstream) -> Iterator[Driver]:
    """A server that loses patience with the model server soon."""
    with serving(data, model, f"  slow: {{kind: openai_chat, url: '{model.url}', timeout_seconds: 0.5}}") as api:
        yield Renamed(api.server, api.http, "slow/scripted")


class Renamed(Driver):
    """A driver that asks for another model."""

    def __init__(self, server: Any, http: Any, name: str) -> None:
        super().__init__(server, http)
        self._name = name

    def post(self, path: str = "/responses", **body: Any) -> Any:
        return super().post(path, **{"model": self._name, **body})
