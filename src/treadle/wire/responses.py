"""The request that creates a response, and the response object."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from treadle.errors import InvalidRequest
from treadle.wire.base import NULL, Name, Text
from treadle.wire.content import InputFile, InputImage, InputText
from treadle.wire.extensions import CreateExtensions
from treadle.wire.moderation import ModerationOptions, ModerationOutcome

Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]
MAX_METADATA = 16
"""Pairs; the lengths of keys and values are in the type (contract §1.1)."""


def checked_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """The pairs, none for null. InvalidRequest (`param="metadata"`) for too many."""
    if metadata is not None and len(metadata) > MAX_METADATA:
        raise InvalidRequest(
            f"'metadata' may have at most {MAX_METADATA} pairs.", param="metadata", code="object_above_max_properties"
        )
    return metadata or {}


Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Ref = Annotated[str, Meta(min_length=1, max_length=256)]


def _ref(name: str) -> Meta:
    """Points the generated schema of a field kept as bytes at the type it is decoded to later."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


class TextFormat(msgspec.Struct, kw_only=True):
    """`text.format`; which fields go with which type is checked in prepare."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    schema: dict[str, Raw] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class TextOptions(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | UnsetType | None = UNSET


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ConversationRef(msgspec.Struct):
    id: Ref


PromptValue: TypeAlias = Text | InputText | InputImage | InputFile
"""What stands for a variable of a prompt."""


class PromptRef(msgspec.Struct, kw_only=True):
    """A stored prompt with values for its variables; without a version, the default one."""

    id: Ref
    version: str | int | None = None
    variables: Annotated[dict[str, Annotated[Raw, _ref("PromptValue")]], Meta(max_length=100)] | None = None


class UsedPrompt(msgspec.Struct, kw_only=True):
    """The prompt that a response was made with; `version` is there even if the request named none."""

    id: str
    version: str
    variables: dict[str, PromptValue] | None = None


class StreamOptions(msgspec.Struct):
    include_obfuscation: bool | None = None


class CompactionRule(msgspec.Struct, kw_only=True):
    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ContextFields(CreateExtensions, kw_only=True):
    """What decides the context a model sees; shared by create and by the token count."""

    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    input: Text | list[Annotated[Raw, _ref("InputItem")]] | None = None
    instructions: Text | None = None
    previous_response_id: Ref | None = None
    conversation: Ref | ConversationRef | None = None
    prompt: PromptRef | None = None
    tools: list[Annotated[Raw, _ref("Tool")]] | None = None
    tool_choice: Annotated[Raw, _ref("ToolChoice")] = NULL
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation


class CreateResponse(ContextFields, kw_only=True):
    """Body of `POST /v1/responses`. Unknown fields are ignored; null means absent."""

    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    include: list[Include] | None = None
    max_output_tokens: Annotated[int, Meta(ge=16, le=2**31 - 1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    context_management: list[CompactionRule] | None = None
    moderation: ModerationOptions | None = None


class CountTokens(ContextFields, kw_only=True):
    """Body of `POST /v1/responses/input_tokens`."""


class CompactResponse(ContextFields, kw_only=True):
    """Body of `POST /v1/responses/compact`."""

    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens of all model calls of the response together."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int = 0


class CompactedResponse(msgspec.Struct, kw_only=True):
    """A history made short: the user's messages word for word, and one `compaction` item for all else."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Annotated[Raw, _ref("Item")]]
    usage: Usage


class ResponseError(msgspec.Struct):
    """`code` is from OpenAI's closed set: its strict clients refuse any other (contract §4)."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens", "content_filter", "max_iterations_exceeded"]


ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Response(msgspec.Struct, kw_only=True):
    """The response object. Every field is on the wire, and which may be null is fixed (contract §4)."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus = "in_progress"
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[Annotated[Raw, _ref("Item")]] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: ConversationRef | None = None
    prompt: UsedPrompt | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningOptions = msgspec.field(default_factory=ReasoningOptions)
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    text: TextOptions = msgspec.field(default_factory=lambda: TextOptions(format=TextFormat()))
    tool_choice: Annotated[Raw, _ref("ToolChoice")] = Raw(b'"auto"')
    tools: list[Annotated[Raw, _ref("Tool")]] = []
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: Usage | None = None
    user: str | None = None
    metadata: dict[str, str] = {}
    moderation: ModerationOutcome | UnsetType = UNSET
    """Only where the request asked for it."""


class ListedResponse(Response, kw_only=True):
    """A response in a list, with its input beside it, as OGX's clients read it."""

    input: list[Annotated[Raw, _ref("Item")]] = []


class ResponseDeleted(msgspec.Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
