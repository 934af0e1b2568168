"""Bad input is a 4xx in the one envelope that names the parameter: never a 500, never a dropped connection."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, httpx2
from tests.behaviour.manifest import behaviour
from treadle.settings import load
from treadle.testing.server import PROVIDER, RunningServer
from treadle.testing.upstream import ScriptedUpstream

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
BIG = 20_000_000


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A server whose model must never be asked: every request here is refused before."""
    folder: Path = tmp_path_factory.mktemp("bad")
    with ScriptedUpstream() as upstream:
        file = folder / "treadle.yaml"
        # vLLM lists all it serves, so a name that is not listed is unknown before it is asked.
        lines = [f"data_dir: {folder}", f"models: {{{PROVIDER}: {{vendor: vllm, url: '{upstream.url}'}}}}"]
        file.write_text("\n".join(lines), encoding="utf-8")
        settings = load(file, environ={}).require()
        with RunningServer(settings) as running, httpx2.Client(timeout=20) as http:
            yield Driver(running, http)
        assert upstream.requests == []


def refused(
    reply: Any, status: int = 400, param: str | EllipsisType | None = None, code: str | None = None
) -> dict[str, Any]:
    """The error of a reply that must be the envelope, whole. `param` ... is any."""
    assert reply.status_code == status, reply.text[:500]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    body = reply.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert param is ... or error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    return error


def send(bad: Driver, body: bytes, path: str = "/responses", kind: str = "application/json", **headers: str) -> Any:
    return bad.http.post(bad.server.url + path, content=body, headers={"content-type": kind, **headers})


POSTS = ["/responses", "/responses/input_tokens", "/conversations", "/chat/completions", "/completions", "/embeddings"]
MALFORMED = {
    "an unclosed object": b'{"model": "x"',
    "a trailing comma": b'{"model": "x",}',
    "two values": b'{"model": "x"} {}',
    "no JSON at all": b"hello",
    "a raw NUL": b'{"model": "a\x00b"}',
    "NaN": b'{"model": "x", "temperature": NaN}',
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
}


@behaviour("input-json")
@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_body_that_is_no_json_object_is_refused(bad: Driver, path: str, body: bytes) -> None:
    refused(send(bad, body, path), param=...)


@behaviour("input-json")
@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens", "/chat/completions", "/embeddings"])
def test_an_empty_body_is_told_so(bad: Driver, path: str) -> None:
    assert "empty" in refused(send(bad, b"", path), code="invalid_json")["message"]


@behaviour("input-json")
def test_of_duplicate_keys_the_last_counts(bad: Driver) -> None:
    body = b'{"model": "%s", "input": "x", "input": 5}' % MODEL.encode()
    refused(send(bad, body), param="input", code="invalid_type")


ITEM = {"type": "message", "role": "user", "content": "Hi"}
WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": {}}, "model"),
    ({"input": 5}, "input"),
    ({"input": {}}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [ITEM, ["x"]]}, "input[1]"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "smell"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
    ({"input": [{"type": 5}]}, "input[0].type"),
    ({"input": [{"type": ""}]}, "input[0].type"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "a", "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
    ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
    ({"input": [{"type": "web_search_call", "id": 5}]}, "input[0].id"),
    ({"input": [{**ITEM, "id": 5}]}, "input[0].id"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
    ({"instructions": 5}, "instructions"),
    ({"instructions": []}, "instructions"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"conversation": 5}, "conversation"),
    ({"conversation": {}}, "conversation.id"),
    ({"conversation": {"id": 5}}, "conversation.id"),
    ({"store": "no"}, "store"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"background": "x"}, "background"),
    ({"include": "reasoning.encrypted_content"}, "include"),
    ({"include": ["everything"]}, "include[0]"),
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": 5}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a\n"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a" * 65}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a", "parameters": "x"}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}, "tools[0].tools[0].type"),
    ({"tools": [TOOL, {**TOOL, "description": "another"}]}, "tools[1].name"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": []}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice.name"),
    ({"tool_choice": {"type": "function", "name": "other"}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}, "tools": [TOOL, {"type": "web_search"}]}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": []}, "tools": [TOOL]}, "tool_choice.tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"parallel_tool_calls": "x"}, "parallel_tool_calls"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
    ({"text": "x"}, "text"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": "x"}}}, "text.format.schema"),
    ({"text": {"verbosity": "chatty"}}, "text.verbosity"),
    ({"truncation": "sometimes"}, "truncation"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"a": 5}}, "metadata"),
    ({"metadata": {"a" * 65: "x"}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"service_tier": "first class"}, "service_tier"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"max_output_tokens": 16.5}, "max_output_tokens"),
    ({"max_output_tokens": "16"}, "max_output_tokens"),
    ({"prompt_cache_key": "x" * 65}, "prompt_cache_key"),
    ({"context_management": [{"type": "magic"}]}, "context_management[0].type"),
]


@behaviour("input-types")
@pytest.mark.parametrize(("body", "param"), WRONG_TYPES, ids=[json.dumps(body)[:60] for body, _ in WRONG_TYPES])
@pytest.mark.parametrize("stream", [False, True])
def test_a_value_of_the_wrong_type_is_named_by_its_path(
    bad: Driver, body: dict[str, Any], param: str, stream: bool
) -> None:
    refused(bad.post(**{"input": "x", "stream": stream, **body}), param=param)


@behaviour("input-types")
def test_a_response_needs_a_model_and_an_input(bad: Driver) -> None:
    refused(send(bad, b'{"input": "x"}'), param="model", code="missing_required_parameter")
    refused(bad.post(), param="input", code="missing_required_parameter")
    refused(bad.post(input=[]), param="input", code="missing_required_parameter")
    refused(bad.post(input=None), param="input", code="missing_required_parameter")


RANGES: list[tuple[str, str, str]] = [
    ("temperature", "2.1", "decimal_above_max_value"),
    ("temperature", "-0.1", "decimal_below_min_value"),
    ("temperature", "1e400", "invalid_value"),
    ("temperature", str(2**70), "decimal_above_max_value"),
    ("top_p", "1.5", "decimal_above_max_value"),
    ("presence_penalty", "-3", "decimal_below_min_value"),
    ("frequency_penalty", "3", "decimal_above_max_value"),
    ("top_logprobs", "21", "integer_above_max_value"),
    ("top_logprobs", "-1", "integer_below_min_value"),
    ("max_output_tokens", "15", "integer_below_min_value"),
    ("max_output_tokens", "-1", "integer_below_min_value"),
    ("max_output_tokens", str(2**70), "integer_above_max_value"),
    ("max_output_tokens", "1e400", "invalid_value"),
    ("max_tool_calls", "0", "integer_below_min_value"),
    ("max_infer_iters", "0", "integer_below_min_value"),
    ("max_infer_iters", str(2**70), "integer_above_max_value"),
]


@behaviour("input-ranges")
@pytest.mark.parametrize(("name", "number", "code"), RANGES)
def test_a_number_out_of_range_is_named_with_its_bounds(bad: Driver, name: str, number: str, code: str) -> None:
    body = f'{{"model": "{MODEL}", "input": "x", "{name}": {number}}}'
    error = refused(send(bad, body.encode()), param=name, code=code)
    assert code == "invalid_value" or any(digit.isdigit() for digit in error["message"])


CHAT = {"messages": [{"role": "user", "content": "x"}]}
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("/chat/completions", {}, "messages"),
    ("/chat/completions", {"messages": []}, "messages"),
    ("/chat/completions", {"messages": [{"role": "king"}]}, "messages[0].role"),
    ("/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("/chat/completions", {**CHAT, "temperature": 3}, "temperature"),
    ("/chat/completions", {**CHAT, "n": 0}, "n"),
    ("/chat/completions", {**CHAT, "stream": "x"}, "stream"),
    ("/completions", {"prompt": 5}, "prompt"),
    ("/completions", {"prompt": "x", "max_tokens": -1}, "max_tokens"),
    ("/embeddings", {}, "input"),
    ("/embeddings", {"input": ""}, "input"),
    ("/embeddings", {"input": []}, "input"),
    ("/embeddings", {"input": ["a", ""]}, "input[1]"),
    ("/embeddings", {"input": 5}, "input"),
    ("/embeddings", {"input": ["x"] * 2049}, "input"),
    ("/embeddings", {"input": [2**70]}, "input[0]"),
    ("/embeddings", {"input": [-1]}, "input[0]"),
    ("/embeddings", {"input": [[2**70]]}, "input[0][0]"),
    ("/embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
    ("/embeddings", {"input": "x", "encoding_format": "xml"}, "encoding_format"),
    ("/responses/input_tokens", {"input": 5}, "input"),
    ("/responses/input_tokens", {"input": "x", "tools": [{"type": "toaster"}]}, "tools[0].type"),
    ("/conversations", {"items": {}}, "items"),
    ("/conversations", {"items": [5]}, "items[0]"),
    ("/conversations", {"items": [ITEM] * 21}, "items"),
    (
        "/conversations",
        {"items": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "items[0].content[0].image_url",
    ),
    ("/conversations", {"metadata": {"a": None}}, "metadata"),
    ("/conversations", {"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
]


@behaviour("input-types", "input-ranges")
@pytest.mark.parametrize(("path", "body", "param"), OTHERS, ids=[f"{p} {json.dumps(b)[:50]}" for p, b, _ in OTHERS])
def test_every_other_endpoint_names_the_path_too(bad: Driver, path: str, body: dict[str, Any], param: str) -> None:
    refused(bad.post(path, **body), param=param)


@behaviour("input-unknown-model")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/responses", {"input": "x"}),
        ("/responses", {"input": "x", "stream": True}),
        ("/responses/input_tokens", {"input": "x"}),
        ("/chat/completions", CHAT),
        ("/completions", {"prompt": "x"}),
        ("/embeddings", {"input": "x"}),
    ],
)
@pytest.mark.parametrize("name", ["nobody/nothing", "nothing\x00", "x" * 512, "../../etc/passwd", "snow ☃"])
def test_an_unknown_model_is_a_404(bad: Driver, path: str, body: dict[str, Any], name: str) -> None:
    refused(bad.post(path, **{**body, "model": name}), 404, param="model", code="model_not_found")


@behaviour("input-unknown-model")
@pytest.mark.parametrize("name", ["nobody/nothing", "a%00b", "x" * 3000, "%ff", "a%2Fb/c", "..%2f..%2fetc"])
def test_an_unknown_model_cannot_be_read(bad: Driver, name: str) -> None:
    refused(bad.get(f"/models/{name}"), 404, param="model", code="model_not_found")


BAD_IDS = [
    "resp_unknown",
    "%00",
    "a%00b",
    "x" * 3000,
    "%ff%fe",
    "%E2%80%A8",
    "'; DROP TABLE responses; --",
    "%0d%0aX: y",
]


@behaviour("input-unknown-response")
@pytest.mark.parametrize("name", BAD_IDS)
def test_an_unknown_response_is_a_404(bad: Driver, name: str) -> None:
    refused(bad.get(f"/responses/{name}"), 404, param="response_id", code="not_found")
    refused(bad.delete(f"/responses/{name}"), 404, param="response_id", code="not_found")
    refused(bad.get(f"/responses/{name}/input_items"), 404, param="response_id", code="not_found")


@behaviour("input-unknown-response")
@pytest.mark.parametrize("name", ["resp_unknown", "a\x00b", "x" * 200, "☃"])
@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens"])
def test_an_unknown_response_cannot_be_continued(bad: Driver, name: str, path: str) -> None:
    reply = bad.post(path, input="x", previous_response_id=name)
    refused(reply, 400, param="previous_response_id", code="previous_response_not_found")


@behaviour("input-unknown-conversation")
@pytest.mark.parametrize("name", ["conv_unknown", "conv_a%00b", "conv_" + "x" * 3000])
def test_an_unknown_conversation_is_a_404(bad: Driver, name: str) -> None:
    url = f"/conversations/{name}"
    refused(bad.get(url), 404, param="conversation_id")
    refused(bad.delete(url), 404, param="conversation_id")
    refused(bad.post(url, metadata={}), 404, param="conversation_id")
    refused(bad.get(f"{url}/items"), 404, param="conversation_id")
    refused(bad.post(f"{url}/items", items=[ITEM]), 404, param="conversation_id")
    refused(bad.get(f"{url}/items/msg_x"), 404, param="conversation_id")
    refused(bad.delete(f"{url}/items/msg_x"), 404, param="conversation_id")


@behaviour("input-unknown-conversation")
@pytest.mark.parametrize("form", ["text", "object"])
@pytest.mark.parametrize("name", ["conv_unknown", "conv_a\x00b", "conv_" + "x" * 200])
def test_an_unknown_conversation_cannot_be_continued(bad: Driver, form: str, name: str) -> None:
    given: Any = name if form == "text" else {"id": name}
    refused(bad.post(input="x", conversation=given), 404, param="conversation", code="not_found")


@behaviour("input-unknown-conversation")
def test_what_cannot_be_a_conversation_is_a_400(bad: Driver) -> None:
    refused(bad.post(input="x", conversation="thread_1"), 400, param="conversation")
    refused(bad.get("/conversations/thread_1"), 400, param="conversation_id")


@behaviour("input-unknown-conversation")
def test_an_unknown_item_of_a_conversation_is_a_404(bad: Driver) -> None:
    made = bad.post("/conversations", items=[ITEM]).json()["id"]
    for name in ("msg_unknown", "a%00b", "x" * 3000):
        refused(bad.get(f"/conversations/{made}/items/{name}"), 404, param="item_id")
        refused(bad.delete(f"/conversations/{made}/items/{name}"), 404, param="item_id")


def test_an_unknown_referenced_item_is_named(bad: Driver) -> None:
    for name in ("msg_unknown", "a\x00b"):
        refused(bad.post(input=[ITEM, {"type": "item_reference", "id": name}]), 404, param="input[1].id")


@behaviour("input-unknown-tool")
@pytest.mark.parametrize("kind", ["toaster", "Function", "function\x00", "x" * 5000])
def test_an_unknown_kind_of_tool_is_named_by_its_place(bad: Driver, kind: str) -> None:
    refused(bad.post(input="x", tools=[TOOL, {"type": kind}]), param="tools[1].type", code="invalid_value")


@behaviour("also-two-pasts")
def test_two_pasts_at_once_are_refused(bad: Driver) -> None:
    made = bad.post("/conversations").json()["id"]
    refused(bad.post(input="x", conversation=made, previous_response_id="resp_1"), param="previous_response_id")


@behaviour("input-large-body")
def test_one_text_of_twenty_megabytes_is_named(bad: Driver) -> None:
    for body, param in (
        ({"input": "x" * BIG}, "input"),
        ({"input": "x", "instructions": "x" * BIG}, "instructions"),
        ({"input": [{"role": "user", "content": "x" * BIG}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "é" * BIG}]}]},
            "input[0].content[0].text",
        ),
    ):
        refused(bad.post(**body), param=param, code="string_above_max_length")


@behaviour("input-large-body")
@pytest.mark.parametrize("path", POSTS)
def test_a_body_over_the_limit_is_a_413(bad: Driver, path: str) -> None:
    """Answered although the client is still sending, and the connection is not cut while it does."""
    refused(send(bad, b'{"input":"' + b"x" * 68_000_000 + b'"}', path), 413, code="request_too_large")


@behaviour("input-large-body")
def test_a_body_over_the_limit_without_a_declared_length_is_a_413(bad: Driver) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(70):
            yield b"x" * 1_000_000

    reply = bad.http.post(bad.server.url + "/responses", content=pieces())
    refused(reply, 413, code="request_too_large")
    assert bad.get("/health").status_code == 200


@behaviour("input-deep-nesting")
@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [300, 900, 100_000, 1_000_000])
def test_deep_nesting_is_refused(bad: Driver, path: str, opened: bytes, closed: bytes, depth: int) -> None:
    value = opened * depth + b"1" + closed * depth
    refused(send(bad, b'{"model": "x", "input": "x", "unknown": ' + value + b"}", path), code="invalid_json")


@behaviour("input-deep-nesting")
def test_depth_that_is_kept_as_it_came_is_refused_like_any_other(bad: Driver) -> None:
    deep = b"[" * 300 + b"]" * 300
    for field in (b'"tools": [{"type": "mcp", "x": %b}]', b'"input": [{"type": "mystery", "x": %b}]'):
        refused(send(bad, b'{"model": "x", ' + field % deep + b"}"), code="invalid_json")


@behaviour("input-surrogates")
@pytest.mark.parametrize("lone", ["\\ud800", "\\udc00", "\\ud83d\\ud83d", "x\\ud800\\n"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"model": "x", "input": "%s"}', "input"),
        ('{"model": "x", "input": [{"role": "user", "content": [{"text": "%s"}]}]}', "input[0].content[0].text"),
        ('{"model": "x", "metadata": {"k": "%s"}}', "metadata.k"),
        ('{"model": "x", "metadata": {"%s": "v"}}', "metadata"),
        ('{"model": "x", "tools": [{"type": "function", "parameters": {"a": "%s"}}]}', "tools[0].parameters.a"),
        ('{"model": "x", "unknown": "%s"}', "unknown"),
        ('{"%s": 1}', None),
    ],
)
@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_half_of_a_surrogate_pair_is_named(bad: Driver, path: str, lone: str, body: str, param: str | None) -> None:
    error = refused(send(bad, (body % lone).encode(), path), param=param, code="invalid_json")
    assert "surrogate" in error["message"]


@behaviour("input-utf8")
@pytest.mark.parametrize("broken", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80"])
@pytest.mark.parametrize("path", POSTS)
def test_a_text_that_is_not_utf8_is_named(bad: Driver, path: str, broken: bytes) -> None:
    body = b'{"model": "x", "input": [{"role": "user", "content": "' + broken + b'"}]}'
    error = refused(send(bad, body, path), param="input[0].content", code="invalid_json")
    assert "UTF-8" in error["message"]


@behaviour("input-utf8")
def test_a_body_in_another_encoding_is_refused(bad: Driver) -> None:
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        refused(send(bad, '{"model": "x", "input": "é"}'.encode(encoding)), code="invalid_json")


def test_compressed_bodies_that_are_broken_are_refused(bad: Driver) -> None:
    whole = gzip.compress(b'{"model": "nobody", "input": "x"}')
    for body in (whole[:-9], b"no gzip", b"", whole + b"junk", zlib.compress(b"{}")):
        refused(send(bad, body, **{"content-encoding": "gzip"}), code="invalid_json")
    for body in (b"\x28\xb5\x2f\xfd", b"no zstd", b""):
        refused(send(bad, body, **{"content-encoding": "zstd"}), code="invalid_json")
    for name in ("br", "deflate", "gzip, gzip", "x" * 3000):
        refused(send(bad, whole, **{"content-encoding": name}), 415, code="unsupported_media_type")


def test_compressed_bodies_are_read_whole_and_bombs_are_not(bad: Driver) -> None:
    halves = gzip.compress(b'{"model": "nobody", ') + gzip.compress(b'"input": "x"}')
    refused(send(bad, halves, **{"content-encoding": "gzip"}), 404, param="model")
    bomb = gzip.compress(b'{"input": "' + b"x" * 120_000_000 + b'"}', 1)
    refused(send(bad, bomb, **{"content-encoding": "gzip"}), 413, code="request_too_large")
    from backports import zstd
    refused(send(bad, zstd.compress(b'{"model": "nobody"}'), **{"content-encoding": "zstd"}), 404, param="model")
    bomb = zstd.compress(b"x" * 120_000_000)
    refused(send(bad, bomb, **{"content-encoding": "zstd"}), 413, code="request_too_large")


FORM = "application/x-www-form-urlencoded"


def test_forms_are_read_and_bad_ones_refused(bad: Driver) -> None:
    refused(send(bad, b"model=nobody&input=x", kind=FORM), 404, param="model")
    refused(send(bad, b"model=x&temperature=9&input=x", kind=FORM), param="temperature")
    refused(send(bad, b"model=x&input=%ff", kind=FORM), code="invalid_json")
    refused(send(bad, b"&".join(b"a=%d" % n for n in range(5000)), kind=FORM), code="invalid_json")
    refused(send(bad, b"", kind=FORM), param="model")


def test_json_that_curl_calls_a_form_is_read_as_json(bad: Driver) -> None:
    refused(send(bad, b'{"model": "nobody", "input": "a=b&c=d"}', kind=FORM), 404, param="model")


def test_other_content_types_are_json_or_refused(bad: Driver) -> None:
    for kind in ("text/plain", "application/octet-stream", "application/json; charset=utf-8", "nonsense"):
        refused(send(bad, b'{"model": "nobody", "input": "x"}', kind=kind), 404, param="model")
    refused(send(bad, b"--x\r\n", kind="multipart/form-data; boundary=x"), 415, code="unsupported_media_type")
    refused(send(bad, b"<xml/>", kind="text/xml"), code="invalid_json")


QUERIES = [
    ("limit=0", "limit"),
    ("limit=101", "limit"),
    ("limit=-1", "limit"),
    ("limit=x", "limit"),
    ("limit=1.5", "limit"),
    ("limit=1_0", "limit"),
    ("limit=%D9%A3", "limit"),
    ("limit=" + "9" * 5000, "limit"),
    ("order=up", "order"),
    ("order=%00", "order"),
    ("after=unknown", "after"),
    ("after=%00", "after"),
    ("after=" + "x" * 5000, "after"),
]


@behaviour("also-input-items")
@pytest.mark.parametrize(("query", "param"), QUERIES, ids=[query[:20] for query, _ in QUERIES])
def test_bad_query_values_are_named(bad: Driver, query: str, param: str) -> None:
    made = bad.post("/conversations", items=[ITEM]).json()["id"]
    for path in ("/responses", f"/conversations/{made}/items"):
        refused(bad.get(f"{path}?{query}"), 400, param=param)


@pytest.mark.parametrize("query", ["include=all", "include[]=all", "include[]=%00", "include%5B%5D=x&include=y"])
def test_an_unknown_include_is_named(bad: Driver, query: str) -> None:
    made = bad.post("/conversations", items=[ITEM]).json()
    items = f"/conversations/{made['id']}/items"
    for path in (items, f"{items}/msg_1", "/responses/resp_1", "/responses/resp_1/input_items"):
        refused(bad.get(f"{path}?{query}"), 400, param="include")


def test_unknown_query_parameters_do_no_harm(bad: Driver) -> None:
    for query in ("a=b", "%00=%ff", "=", "&&&", "limit=1&limit=2", "after=", "limit="):
        assert bad.get(f"/responses?{query}").status_code == 200


PATHS = [
    "/",
    "/v1",
    "/v2/responses",
    "/v1/nothing",
    "/v1//responses",
    "/v1/responses/a/b/c",
    "/v1/%2e%2e/x",
    "/v1/x%00",
    "/%ff",
]


@pytest.mark.parametrize("path", PATHS)
def test_unknown_paths_are_404_in_the_envelope(bad: Driver, path: str) -> None:
    refused(bad.http.get(bad.server.root + path), 404, code="not_found")


VERBS = [
    ("PUT", "/v1/responses", "GET, HEAD, POST"),
    ("PATCH", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
    ("DELETE", "/v1/responses", "GET, HEAD, POST"),
    ("GET", "/v1/responses/input_tokens", "POST"),
    ("GET", "/v1/conversations", "POST"),
    ("OPTIONS", "/v1/responses", "GET, HEAD, POST"),
    ("TRACE", "/v1/models", "GET, HEAD"),
    ("PROPFIND", "/v1/models", "GET, HEAD"),
    ("POST", "/v1/health", "GET, HEAD"),
]


@pytest.mark.parametrize(("verb", "path", "allowed"), VERBS)
def test_a_wrong_verb_is_a_405_that_says_what_is_allowed(bad: Driver, verb: str, path: str, allowed: str) -> None:
    reply = bad.http.request(verb, bad.server.root + path)
    refused(reply, 405, code="method_not_allowed")
    assert reply.headers["allow"] == allowed


def test_head_is_answered_like_get_without_a_body(bad: Driver) -> None:
    for path, status in (("/models", 200), ("/health", 200), ("/responses/resp_1", 404)):
        reply = bad.http.head(bad.server.url + path)
        assert (reply.status_code, reply.content) == (status, b"")


def test_a_trailing_slash_changes_nothing(bad: Driver) -> None:
    assert bad.get("/models/").json() == bad.get("/models").json()
    refused(bad.post("/responses/", input=5), param="input")
    refused(bad.get("/responses/resp_1/"), 404, param="response_id")


def test_a_request_that_breaks_off_harms_nobody(bad: Driver) -> None:
    address = bad.server.root.removeprefix("http://").split(":")
    head = b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
    for sent in (head + b'{"model": ', head, b"POST /v1/resp", b"\x00\x01\x02\r\n\r\n"):
        with socket.create_connection((address[0], int(address[1])), timeout=5) as raw:
            raw.sendall(sent)
    assert bad.get("/health").status_code == 200
