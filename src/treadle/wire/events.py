"""Every stream event that this server makes, in the order in which a stream uses them (contract §7.3)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from treadle.errors import ErrorBody
from treadle.wire.content import ContentPart
from treadle.wire.logprobs import TokenLogprob
from treadle.wire.responses import Response

_Item = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/Item"})]


class _Event(msgspec.Struct, tag_field="type", kw_only=True, gc=False):
    sequence_number: int


class _Lifecycle(_Event, kw_only=True):
    response: Response


class ResponseCreated(_Lifecycle, tag="response.created"): ...


class ResponseQueued(_Lifecycle, tag="response.queued"): ...


class ResponseInProgress(_Lifecycle, tag="response.in_progress"): ...


class ResponseCompleted(_Lifecycle, tag="response.completed"): ...


class ResponseIncomplete(_Lifecycle, tag="response.incomplete"): ...


class ResponseFailed(_Lifecycle, tag="response.failed"): ...


class ErrorEvent(_Event, tag="error", kw_only=True):
    """Both known shapes in one object: flat for OpenAI's types, nested for Open Responses (contract §7.4)."""

    code: str | None
    message: str
    param: str | None
    error: ErrorBody


class OutputItemAdded(_Event, tag="response.output_item.added", kw_only=True):
    response_id: str
    output_index: int
    item: _Item


class OutputItemDone(_Event, tag="response.output_item.done", kw_only=True):
    response_id: str
    output_index: int
    item: _Item


class _OfItem(_Event, kw_only=True):
    item_id: str
    output_index: int


class _OfPart(_OfItem, kw_only=True):
    content_index: int


class ContentPartAdded(_OfPart, tag="response.content_part.added", kw_only=True):
    response_id: str
    part: ContentPart


class ContentPartDone(_OfPart, tag="response.content_part.done", kw_only=True):
    response_id: str
    part: ContentPart


class OutputTextDelta(_OfPart, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[TokenLogprob] = []


class OutputTextDone(_OfPart, tag="response.output_text.done", kw_only=True):
    text: str
    logprobs: list[TokenLogprob] = []


class RefusalDelta(_OfPart, tag="response.refusal.delta", kw_only=True):
    delta: str


class RefusalDone(_OfPart, tag="response.refusal.done", kw_only=True):
    refusal: str


class ReasoningTextDelta(_OfPart, tag="response.reasoning_text.delta", kw_only=True):
    delta: str


class ReasoningTextDone(_OfPart, tag="response.reasoning_text.done", kw_only=True):
    text: str


class FunctionCallArgumentsDelta(_OfItem, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class FunctionCallArgumentsDone(_OfItem, tag="response.function_call_arguments.done", kw_only=True):
    name: str
    arguments: str


class CustomToolCallInputDelta(_OfItem, tag="response.custom_tool_call_input.delta", kw_only=True):
    delta: str


class CustomToolCallInputDone(_OfItem, tag="response.custom_tool_call_input.done", kw_only=True):
    input: str


class McpListToolsInProgress(_OfItem, tag="response.mcp_list_tools.in_progress", kw_only=True): ...


class McpListToolsCompleted(_OfItem, tag="response.mcp_list_tools.completed", kw_only=True): ...


class McpListToolsFailed(_OfItem, tag="response.mcp_list_tools.failed", kw_only=True): ...


class McpCallInProgress(_OfItem, tag="response.mcp_call.in_progress", kw_only=True): ...


class McpCallArgumentsDelta(_OfItem, tag="response.mcp_call_arguments.delta", kw_only=True):
    delta: str


class McpCallArgumentsDone(_OfItem, tag="response.mcp_call_arguments.done", kw_only=True):
    arguments: str


class McpCallCompleted(_OfItem, tag="response.mcp_call.completed", kw_only=True): ...


class McpCallFailed(_OfItem, tag="response.mcp_call.failed", kw_only=True): ...


class WebSearchCallInProgress(_OfItem, tag="response.web_search_call.in_progress", kw_only=True): ...


class WebSearchCallSearching(_OfItem, tag="response.web_search_call.searching", kw_only=True): ...


class WebSearchCallCompleted(_OfItem, tag="response.web_search_call.completed", kw_only=True): ...


class FileSearchCallInProgress(_OfItem, tag="response.file_search_call.in_progress", kw_only=True): ...


class FileSearchCallSearching(_OfItem, tag="response.file_search_call.searching", kw_only=True): ...


class FileSearchCallCompleted(_OfItem, tag="response.file_search_call.completed", kw_only=True): ...


class CompactionCompacting(_OfItem, tag="response.compaction.compacting", kw_only=True): ...


class AnnotationAdded(_OfPart, tag="response.output_text.annotation.added", kw_only=True):
    annotation_index: int
    annotation: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


Terminal = ResponseCompleted | ResponseIncomplete | ResponseFailed
Event = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | Terminal
    | ErrorEvent
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | RefusalDelta
    | RefusalDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | CustomToolCallInputDelta
    | CustomToolCallInputDone
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpCallArgumentsDelta
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
    | WebSearchCallInProgress
    | WebSearchCallSearching
    | WebSearchCallCompleted
    | FileSearchCallInProgress
    | FileSearchCallSearching
    | FileSearchCallCompleted
    | CompactionCompacting
    | AnnotationAdded
)


def name_of(event: Event) -> str:
    """The event's `type`."""
    return str(type(event).__struct_config__.tag)
