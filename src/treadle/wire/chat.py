"""What is checked of chat and text completions before they are passed on, unread, to the model server."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from treadle.wire.base import Text, TokenId

ModelName = Annotated[str, Meta(min_length=1, max_length=512)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[dict[str, Raw]] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class CreateChatCompletion(msgspec.Struct, kw_only=True):
    """Body of `POST /v1/chat/completions`. Fields not named here are passed on as they are."""

    model: ModelName
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Raw]] | None = None
    parallel_tool_calls: bool | None = None
    user: str | None = None


class CreateCompletion(msgspec.Struct, kw_only=True):
    """Body of `POST /v1/completions`."""

    model: ModelName
    prompt: Text | list[Text | TokenId | list[TokenId]] = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=20)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    user: str | None = None
