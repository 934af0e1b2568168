"""The chat-completions dialect as bytes: only what was set goes out, and anything that comes in is read or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from treadle.errors import ContextTooLong, QuotaExceeded, ServerError, UpstreamBadStream, UpstreamFault
from treadle.models.chat_wire import ChunkReader, encode_request
from treadle.models.upstream import fault_of, wait_seconds
from treadle.ports import (
    AudioPart,
    Capabilities,
    FilePart,
    ImagePart,
    ModelCall,
    ModelChunk,
    ModelFunction,
    ModelMessage,
    ModelRequest,
    OutputFormat,
    TextPart,
)
from treadle.testing.turns import chunk, logprobs


def sent(request: ModelRequest, *, can: Capabilities | None = None, drops: set[str] | None = None, **extra: Any) -> Any:
    body = encode_request(
        request,
        can or Capabilities(),
        max_tokens_field="max_tokens",
        drops=frozenset(drops or ()),
        extra={name: Raw(json.dumps(value).encode()) for name, value in extra.items()},
    )
    return json.loads(body)


def read(*chunks: Any, hold: bool = False, wants: bool = False) -> list[ModelChunk]:
    reader, out = ChunkReader(hold_thinking=hold, logprobs=wants), list[ModelChunk]()
    for one in chunks:
        reader.read(one if isinstance(one, bytes) else json.dumps(one).encode(), out)
    reader.finish(out)
    return out


def test_nothing_that_was_not_set_is_sent() -> None:
    request = ModelRequest(model="m", messages=[ModelMessage("user", "Hi")])
    expected = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    assert sent(request, drops={"stream_options"}) == expected
    assert sent(request) == expected | {"stream_options": {"include_usage": True}}


def test_all_that_was_set_is_sent_but_for_what_the_vendor_refuses() -> None:
    request = ModelRequest(
        model="m",
        messages=[],
        functions=[ModelFunction("f", "does", Raw(b'{"type":"object"}'), strict=True)],
        tool_choice="function:f",
        parallel_tool_calls=False,
        output_format=OutputFormat("json_schema", "n", Raw(b"{}"), strict=False, description="d"),
        max_output_tokens=9,
        temperature=0.0,
        logprobs=True,
        top_logprobs=2,
        reasoning_effort="low",
        service_tier="flex",
    )
    body = sent(request, drops={"strict", "service_tier"}, top_k=3, temperature=1)
    function = {"name": "f", "description": "does", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    schema = {"name": "n", "schema": {}, "strict": False, "description": "d"}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert (body["max_tokens"], body["temperature"], body["top_k"]) == (9, 1, 3)
    assert (body["logprobs"], body["top_logprobs"], body["parallel_tool_calls"]) == (True, 2, False)
    assert "service_tier" not in body


def test_messages_of_all_kinds_are_written() -> None:
    parts = [TextPart("a"), ImagePart("data:x", "low"), FilePart("data:y", "f.pdf"), AudioPart("zz", "wav")]
    calling = ModelMessage("assistant", "", calls=[ModelCall("c", "f", "{}")], reasoning="Hm.")
    request = ModelRequest(
        model="m", messages=[ModelMessage("user", parts), calling, ModelMessage("tool", "t", call_id="c")]
    )
    user, assistant, tool = sent(request, can=Capabilities(reasoning_back="reasoning"))["messages"]
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "file", "input_audio"]
    assert assistant["reasoning"] == "Hm."
    assert assistant["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert tool == {"role": "tool", "content": "t", "tool_call_id": "c"}
    assert "reasoning" not in sent(request)["messages"][1]


def test_logprobs_are_read_only_when_they_were_asked_for() -> None:
    one = chunk({"content": "Hi"}, logprobs=logprobs("Hi", 1))
    assert read(one)[0].logprobs is None
    found = read(one, wants=True)[0].logprobs
    assert found is not None
    assert (found[0].token, found[0].top_logprobs[0].token) == ("Hi", "Hi0")


@pytest.mark.parametrize("odd", [[], {}, "x", 7, {"content": None}, {"content": [{"token": 1}]}, {"tokens": ["a"]}])
def test_odd_logprobs_do_not_cost_the_answer(odd: Any) -> None:
    for wants in (False, True):
        (found,) = read(chunk({"content": "Hi"}, logprobs=odd), wants=wants)
        assert (found.text, found.logprobs) == ("Hi", None)


def test_logprobs_of_held_text_stay_with_it() -> None:
    tokens = ["Hm", ".", "</think>", "Y", "es"]
    chunks = [chunk({"content": token}, logprobs=logprobs(token, 0)) for token in tokens]
    found = [one for one in read(*chunks, hold=True, wants=True) if one.text]
    assert "".join(one.text for one in found) == "Yes"
    assert [entry.token for one in found for entry in one.logprobs or ()] == ["Y", "es"]


def test_only_the_first_choice_counts() -> None:
    two = {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}
    assert [one.text for one in read(two)] == ["yes"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "index", "delta", "x"]), inner)
    ),
    max_leaves=8,
)
FIELDS = ["content", "reasoning", "reasoning_content", "refusal", "tool_calls", "role"]
CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)),
    JSON,
    st.fixed_dictionaries({}, optional={"usage": JSON, "error": JSON, "service_tier": JSON, "object": JSON}),
)
def test_chunks_of_any_types_are_read_or_refused(delta: Any, finish: Any, fields: dict[str, Any]) -> None:
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}
    try:
        found = read(body, {"choices": [{"delta": {"tool_calls": [CALL]}}]})
    except ServerError as fault:
        assert 400 <= fault.status < 600  # noqa: PT017 -- the other outcome is checked below
        return
    for one in found:
        assert isinstance(one.text, str)
        if one.usage is not None:
            assert 0 <= one.usage.input_tokens <= 2**40


@given(JSON)
def test_any_json_instead_of_a_chunk_is_read_or_refused(value: Any) -> None:
    try:
        read(value)
    except ServerError as fault:
        assert fault.message  # noqa: PT017


@given(st.binary(max_size=80))
def test_any_bytes_instead_of_a_chunk_are_read_or_refused(data: bytes) -> None:
    try:
        read(data)
    except ServerError as fault:
        assert fault.message  # noqa: PT017


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"error": {"message": "Too long.", "code": "context_length_exceeded"}}, ContextTooLong),
        ({"error": {"message": "Too long.", "code": 400, "type": "exceed_context_size_error"}}, ContextTooLong),
        ({"error": {"message": "Slow.", "type": "rate_limit_error"}}, QuotaExceeded),
        ({"error": {"message": "Crash."}}, UpstreamFault),
        ({"error": "Crash."}, UpstreamFault),
        ({"error": {}}, UpstreamFault),
        (b"{no", UpstreamBadStream),
    ],
)
def test_an_error_among_the_chunks_is_raised_as_what_it_means(data: Any, kind: type[ServerError]) -> None:
    with pytest.raises(ServerError) as caught:
        read(data)
    assert type(caught.value) is kind


@pytest.mark.parametrize("nothing", [None, "", False])
def test_an_error_field_that_says_nothing_is_none(nothing: Any) -> None:
    assert [one.text for one in read(chunk({"content": "Hi"}) | {"error": nothing})] == ["Hi"]


@given(st.integers(200, 599), st.binary(max_size=60) | JSON.map(lambda value: json.dumps({"error": value}).encode()))
def test_any_refusal_has_a_wire_form(status: int, body: bytes) -> None:
    fault = fault_of(status, body, {"retry-after": "1"}, ["secret"], "m")
    assert 400 <= fault.status < 600
    assert fault.message
    assert len(fault.message) < 1000


def test_a_retry_after_that_cannot_be_a_header_is_not_passed_on() -> None:
    assert fault_of(429, b"", {"retry-after": "5", "retry-after-ms": "\udcff"}, (), "").headers == {"retry-after": "5"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "500", "retry-after": "9"}, 0.5),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_what_retry_after_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_seconds(headers) == seconds


@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": "NaN"}',
        '{"prompt_tokens": "inf", "completion_tokens": 1}',
        '{"prompt_tokens": 1e400}',
        '{"prompt_tokens": {}}',
        '{"prompt_tokens_details": []}',
        "[]",
        "true",
        '"NaN"',
        "7",
    ],
)
def test_a_usage_that_cannot_be_read_is_none_and_does_not_cost_the_answer(usage: str) -> None:
    odd = json.dumps(chunk({"content": "Hi"}) | {"usage": 0}).replace('"usage": 0', f'"usage": {usage}').encode()
    found = read(odd, chunk({}, finish="stop"))
    assert [one.text for one in found if one.text] == ["Hi"]
    assert [one.usage for one in found if one.usage] == []


SECRETS = ["sk-live-1234", "sk-live-1234-and-more"]


@pytest.mark.parametrize("code", ["sk-live-1234", "a sk-live-1234-and-more", "two words", "x" * 65, "", "é", "a\n"])
def test_a_code_that_is_no_plain_name_or_holds_a_secret_is_dropped(code: str) -> None:
    fault = fault_of(400, json.dumps({"error": {"message": "No.", "code": code}}).encode(), {}, SECRETS, "")
    assert fault.code == "upstream_refused"
    assert fault_of(400, b'{"error": {"message": "No.", "code": "bad_thing-1.0"}}', {}, (), "").code == "bad_thing-1.0"


def test_secrets_do_not_show_in_messages_whole_or_cut() -> None:
    text = "".join(SECRETS) * 200
    for body in (text, json.dumps({"error": text}), json.dumps({"detail": [{"msg": text}]})):
        message = fault_of(400, body.encode(), {}, SECRETS, "").message
        assert "live" not in message
        assert "more" not in message
        assert "***" in message


def test_only_the_known_part_of_a_broken_finish_is_shown() -> None:
    with pytest.raises(UpstreamFault, match=r"broke off: error\.$"):
        read(chunk({}, finish="error: key sk-live-1234"))
