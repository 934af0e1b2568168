"""Parameters that cannot be accepted are a 4xx in the one envelope that names them by their path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.behaviour import refusals
from tests.behaviour.conftest import MODEL, Driver
from tests.behaviour.manifest import behaviour
from tests.behaviour.refusals import ITEM, refused, send

bad = refusals.bad
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}

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
    ({"tool_choice": {"type": "shell"}, "tools": [TOOL, {"type": "shell"}]}, "tool_choice"),
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
