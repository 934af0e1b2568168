"""A response's row holds only what differs from the defaults, and reads back as what was sent."""

from __future__ import annotations

import json

import msgspec
from msgspec import Raw

from treadle.api.packing import pack, unpack
from treadle.ports import ResponseRow, StoredItem, StoredResponse
from treadle.wire.base import encode
from treadle.wire.content import InputImage
from treadle.wire.moderation import ModerationError, ModerationOutcome, ModerationResult
from treadle.wire.responses import (
    ConversationRef,
    IncompleteDetails,
    ReasoningOptions,
    Response,
    ResponseError,
    TextFormat,
    TextOptions,
    Usage,
    UsedPrompt,
)


def stored(response: Response) -> StoredResponse:
    row = ResponseRow(
        id=response.id,
        status=response.status,
        model=response.model,
        created_at=response.created_at,
        completed_at=response.completed_at,
        previous=response.previous_response_id,
        conversation=response.conversation.id if response.conversation else None,
        data=pack(response),
    )
    return StoredResponse(row, [], [StoredItem("i", "mystery", bytes(raw)) for raw in response.output])


def test_defaults_cost_nothing() -> None:
    assert pack(Response(id="resp_1", created_at=1, model="m")) == b"{}"


def test_every_field_comes_back() -> None:
    response = Response(
        id="resp_1",
        created_at=1,
        completed_at=2,
        status="incomplete",
        background=True,
        error=ResponseError("server_error", "x"),
        incomplete_details=IncompleteDetails("max_output_tokens"),
        instructions="i",
        max_output_tokens=16,
        max_tool_calls=1,
        model="m",
        output=[Raw(b'{"type":"mystery","id":"i"}')],
        parallel_tool_calls=False,
        previous_response_id="resp_0",
        conversation=ConversationRef("conv_1"),
        prompt=UsedPrompt(id="pmpt_1", version="2", variables={"a": "x", "b": InputImage(file_id="file-1")}),
        prompt_cache_key="k",
        reasoning=ReasoningOptions(effort="low", summary="auto"),
        safety_identifier="s",
        service_tier="flex",
        store=False,
        temperature=0.0,
        top_p=0.5,
        presence_penalty=-1,
        frequency_penalty=2,
        top_logprobs=3,
        text=TextOptions(format=TextFormat(type="json_object"), verbosity="low"),
        tool_choice=Raw(b'"required"'),
        tools=[Raw(b'{"type":"web_search"}')],
        truncation="auto",
        usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        user="u",
        metadata={"a": "\x00"},
        moderation=ModerationOutcome(
            input=ModerationResult(
                categories={"a": True},
                category_applied_input_types={"a": ["text"]},
                category_scores={"a": 0.5},
                flagged=True,
                model="m",
            ),
            output=ModerationError("c", "m"),
        ),
    )
    plain = Response(id="", created_at=0, model="")
    same = [
        field.name
        for field in msgspec.structs.fields(Response)
        if getattr(response, field.name) == getattr(plain, field.name)
    ]
    assert same == ["object"], "set these above too"
    assert json.loads(encode(unpack(Response, stored(response), ()))) == json.loads(encode(response))
