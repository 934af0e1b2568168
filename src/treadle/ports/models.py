"""Ports to models: what goes to one, what comes back, where names lead."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

import msgspec

from treadle.wire.logprobs import TokenLogprob

Json = msgspec.Raw
"""A JSON value kept as bytes: a schema or a vendor field that we pass on without reading."""


class ModelFunction(msgspec.Struct, omit_defaults=True):
    """A function the model may call, as chat-completions servers expect it."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ModelCall(msgspec.Struct):
    """A call the model made earlier, replayed to it."""

    id: str
    name: str
    arguments: str


class TextPart(msgspec.Struct, tag="text"):
    text: str


class ImagePart(msgspec.Struct, tag="image"):
    """`url` is a data URL or an address the model server fetches itself."""

    url: str
    detail: str | None = None


class FilePart(msgspec.Struct, tag="file"):
    """`data` is a data URL, or a URL for model servers that fetch by themselves."""

    data: str
    filename: str | None = None


class AudioPart(msgspec.Struct, tag="audio"):
    data: str
    format: str


ModelPart = TextPart | ImagePart | FilePart | AudioPart


class ModelMessage(msgspec.Struct):
    """One message of the rendered history; `content` is text or parts, in order."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ModelPart] = ""
    calls: list[ModelCall] = []
    call_id: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class OutputFormat(msgspec.Struct):
    """Structured output: `json_object`, or `json_schema` with its schema."""

    kind: Literal["json_object", "json_schema"]
    name: str = ""
    schema: Json | None = None
    strict: bool | None = None
    description: str | None = None


class ModelRequest(msgspec.Struct, kw_only=True):
    """What goes to a model. `None` means the caller did not set it, and it is then not sent (bug case 22)."""

    model: str
    messages: list[ModelMessage]
    functions: list[ModelFunction] = []
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or `function:<name>`."""
    parallel_tool_calls: bool | None = None
    output_format: OutputFormat | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    logprobs: bool = False
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    extra_body: dict[str, Json] = {}
    watched: bool = True
    """Somebody sees the deltas as they come; otherwise an adapter may hold text back to sort it better."""


class ModelUsage(msgspec.Struct, gc=False):
    """Tokens of one model call."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class CallFragment(msgspec.Struct, gc=False):
    """A piece of a tool call. `slot` identifies the call within the model's turn, already repaired (bug case 11)."""

    slot: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class ModelChunk(msgspec.Struct):
    """The smallest thing that comes back from a model; usually one field is set."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    call: CallFragment | None = None
    logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    usage: ModelUsage | None = None
    service_tier: str | None = None


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model or its server can do, as data; callers never probe by exception."""

    tools: bool = True
    images: bool = True
    files: bool = True
    parallel_flag: bool = True
    """Takes `parallel_tool_calls`."""
    developer_role: bool = False
    """Knows the `developer` role; otherwise it becomes `system`."""
    system_anywhere: bool = False
    """Accepts system messages after the first; otherwise they are merged into one leading message (bug case 20)."""
    schema_with_tools: bool = False
    """May be given an output schema together with tools and still call them (bug case 23)."""
    reasoning_back: Literal["", "reasoning", "reasoning_content"] = ""
    """The field under which the reasoning of the current turn's tool rounds is sent back; empty: never."""
    reasoning_effort: bool = True
    context_window: int | None = None


class ChatModel(Protocol):
    """A server of language models."""

    def capabilities(self, model: str) -> Capabilities: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[list[ModelChunk], None]:
        """One list per network read. Raises before the first list if the server refuses; closing the iterator
        (or cancelling) closes the connection. Retries happen only before the first byte."""
        ...

    async def models(self) -> list[str]:
        """Ids the server offers. Raises UpstreamFault when it cannot be asked."""
        ...


class Embedding(msgspec.Struct):
    vectors: list[list[float]]
    tokens: int


class Embedder(Protocol):
    """Turns texts into vectors of unit length."""

    dimensions: int

    async def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> Embedding:
        """One vector per text, in order. InvalidRequest (`param="dimensions"`) for a size it cannot give."""
        ...


class RawReply(Protocol):
    """A model server's answer as it comes, for endpoints that only pass it on. Close it in any case."""

    content_type: str

    async def read(self) -> bytes: ...

    def reads(self) -> AsyncGenerator[bytes, None]:
        """One item per network read. UpstreamFault when the connection breaks off."""
        ...

    async def close(self) -> None: ...


class RawModel(Protocol):
    """A model server that takes requests of its dialect as bytes."""

    async def forward(self, path: str, body: bytes, model: str) -> RawReply:
        """The answer to a POST, status 200; anything else is raised as the wire error it means."""
        ...


class RawRoute(msgspec.Struct, frozen=True):
    """Where a model name leads for endpoints that pass requests on; `embedder` is set if we embed ourselves."""

    upstream: str
    server: RawModel | None = None
    embedder: Embedder | None = None


class Route(msgspec.Struct, frozen=True):
    """Where a model name leads: the server, the name it uses there, and what the model can do."""

    model: ChatModel
    upstream: str
    capabilities: Capabilities
    provider: str = ""
    """The section of the configuration it comes from."""


class ModelEntry(msgspec.Struct, frozen=True):
    """A model on offer. `dimensions` is set for embedding models only."""

    id: str
    provider: str
    upstream: str
    dimensions: int | None = None


class Router(Protocol):
    """Names to models. Ids are `provider/upstream-id`; a bare upstream id works while it is unambiguous."""

    async def route(self, name: str) -> Route:
        """UnknownModel (`param="model"`) for a name that leads nowhere."""
        ...

    async def raw(self, name: str) -> RawRoute:
        """Like `route`, for the endpoints that pass requests on."""
        ...

    async def models(self) -> list[ModelEntry]:
        """All models on offer now; providers that cannot be asked contribute what is known of them."""
        ...


class Sealer(Protocol):
    """Authenticated encryption under the server's key, for what clients keep for us."""

    def seal(self, text: str) -> str: ...

    def unseal(self, sealed: str) -> str | None:
        """The text; None if another server sealed it.

        InvalidRequest (`invalid_encrypted_content`) if it is ours but damaged.
        """
        ...


class TokenCounter(Protocol):
    """Counts tokens without a network; safe to use from several threads."""

    def check(self, encoding: str | None) -> None:
        """InvalidRequest (`param="tokenizer_encoding"`) for an encoding that is not here."""
        ...

    def count(self, text: str, model: str = "", encoding: str | None = None) -> int:
        """Tokens of `text` under `encoding`, else under the one that fits `model`; estimated if none is known to."""
        ...
