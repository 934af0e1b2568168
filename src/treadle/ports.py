"""Every port in one file: what the engine and the use cases ask of the outside, and what adapters promise.

No `Any` crosses a port. Unless a method says otherwise: cancelling the awaiting task cancels the work and
releases what it held; faults are `treadle.errors.ServerError`s, never foreign exceptions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

import msgspec

from treadle.scope import Scope

# ---------------------------------------------------------------------------------------------- models

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


class TokenAlternative(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] = []


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] = []
    top_logprobs: list[TokenAlternative] = []


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
        """The text; None if another server sealed it. InvalidRequest (`invalid_encrypted_content`) if ours but damaged."""
        ...


class TokenCounter(Protocol):
    def count(self, text: str, model: str = "") -> int:
        """Exact tokens of `text` under the encoding that fits `model`; works without network."""
        ...


# ----------------------------------------------------------------------------------------------- tools


class ToolDeclaration(msgspec.Struct):
    """A declared server tool: its `type` and the whole declaration as the client sent it."""

    type: str
    raw: Json


class ToolCall(msgspec.Struct):
    """A call with its owner, decided once when names were bound. Unknown owners are never executed."""

    id: str
    name: str
    arguments: str
    owner: Literal["server", "client", "provider"]


class ToolOutcome(msgspec.Struct):
    """What a call gave: `text` goes to the model; `failed` marks the item."""

    text: str
    failed: bool = False


class ServerTool(Protocol):
    """A tool that the server runs itself."""

    exclusive: bool
    """Must not run together with other calls of its round."""

    def declare(self, declaration: ToolDeclaration) -> list[ModelFunction]:
        """The functions to offer the model. InvalidRequest for a bad declaration."""
        ...

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        """Runs one call. `arguments` is a JSON object, already checked. May raise; dispatch turns that into a
        failed outcome. Cancelled when the client goes away."""
        ...


class RemoteServer(msgspec.Struct, frozen=True):
    """A server of tools (MCP) as one request names it. `headers` hold credentials and never leave the process."""

    label: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    by_operator: bool = False
    """The address comes from the configuration, so it needs no permission; a caller's address does."""


class RemoteTool(msgspec.Struct, frozen=True):
    """A tool as its server lists it; `input_schema` is passed on as it is."""

    name: str
    input_schema: Json
    description: str | None = None
    annotations: Json | None = None
    read_only: bool = False


class RemoteResult(msgspec.Struct):
    """What a call gave: parts in order, the structured content if there is some, and the server's own verdict."""

    parts: list[ModelPart]
    structured: Json | None = None
    failed: bool = False


class RemoteTools(Protocol):
    """Servers of tools. Faults are `RemoteFault`s that name the server and the cause."""

    async def list_tools(self, server: RemoteServer) -> list[RemoteTool]:
        """All pages of the server's list, from the cache while it is fresh."""
        ...

    async def call(self, server: RemoteServer, name: str, arguments: str) -> RemoteResult:
        """Runs one call; `arguments` is a JSON object. Tried again on a fresh session only if it surely was not run."""
        ...


class SearchResult(msgspec.Struct):
    url: str
    title: str
    text: str


class SearchQuery(msgspec.Struct, kw_only=True):
    """`allowed` and `blocked` are domains, subdomains included. `country` is ISO 3166, `locale` such as `en`."""

    text: str
    allowed: list[str] = []
    blocked: list[str] = []
    country: str | None = None
    locale: str | None = None
    limit: int = 8


class WebSearch(Protocol):
    """A search service. Raises ToolFault when it is unreachable, refuses or is at its limit."""

    async def search(self, query: SearchQuery) -> list[SearchResult]: ...


class Page(msgspec.Struct):
    """A page's readable text. `url` is where it was found in the end."""

    url: str
    title: str
    text: str


class PageReader(Protocol):
    """Fetches pages that callers and models name: guarded, bounded in size and time."""

    async def read(self, url: str) -> Page:
        """ToolFault, naming the reason, for an address that is refused and for a page that is none."""
        ...


class AddressGuard(Protocol):
    """Which addresses may be connected to when somebody else than the operator named them (bug case 74)."""

    def check_url(self, url: str, param: str) -> None:
        """InvalidRequest, naming `param` and the setting that admits an address, for a URL refused on sight."""
        ...

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of `host`, all of them permitted. AddressRefused if any is not: connect to these, not to the
        name, so that nothing changes in between."""
        ...


# ----------------------------------------------------------------------------------------------- store


class StoredItem(msgspec.Struct, frozen=True):
    """One entry of a thread. `data` is the item's JSON, complete with its id."""

    id: str
    kind: str
    data: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """A position in a thread: everything before `pos` (exclusive) is the history."""

    thread: int
    pos: int


class ResponseRow(msgspec.Struct, kw_only=True):
    """A response without its items. `data` is the JSON of all else that the response object shows."""

    id: str
    status: str
    model: str
    created_at: int
    completed_at: int | None = None
    previous: str | None = None
    conversation: str | None = None
    data: bytes = b"{}"


class StoredResponse(msgspec.Struct):
    row: ResponseRow
    inputs: list[StoredItem]
    outputs: list[StoredItem]


class SettledTurn(msgspec.Struct, kw_only=True):
    """All that one turn writes, in one transaction.

    `base` is where its history ends (None: it starts a thread). `conversation` set: append to that named thread
    at `base` or fail; else continue the thread of `base` if it is still its tip and unnamed, else branch.
    """

    row: ResponseRow
    inputs: list[StoredItem]
    outputs: list[StoredItem]
    base: Checkpoint | None = None
    append_to_conversation: bool = False


class ItemPage(msgspec.Struct):
    items: list[StoredItem]
    has_more: bool


class ResponsePage(msgspec.Struct):
    responses: list[StoredResponse]
    has_more: bool


class ConversationRow(msgspec.Struct, kw_only=True):
    id: str
    created_at: int
    metadata: bytes = b"{}"


Order = Literal["asc", "desc"]


class Responses(Protocol):
    """Responses and the threads they are spans of. StorageFault when the database cannot be reached."""

    async def settle(self, scope: Scope, turn: SettledTurn) -> Checkpoint:
        """Items and row in one transaction, replacing an `in_progress` row of the same id. When it returns, all of
        it is durable; when it raises, none of it is there. ConversationLocked if another turn appended first."""
        ...

    async def begin(self, scope: Scope, row: ResponseRow, inputs: list[StoredItem], lease_until: int) -> None:
        """Makes a running response visible. A row whose lease (Unix seconds) ran out reads as failed."""
        ...

    async def renew(self, scope: Scope, ids: Sequence[str], lease_until: int) -> None: ...

    async def abandon(self, scope: Scope, response_id: str) -> None:
        """Removes the `in_progress` row that `begin` wrote."""
        ...

    async def get(self, scope: Scope, response_id: str) -> StoredResponse | None: ...

    async def page(
        self, scope: Scope, *, after: str | None, limit: int, order: Order, model: str | None
    ) -> ResponsePage:
        """InvalidRequest (`param="after"`) for an unknown cursor."""
        ...

    async def delete(self, scope: Scope, response_id: str) -> bool:
        """Hides the response and removes the items that no later response, branch or conversation needs."""
        ...

    async def checkpoint(self, scope: Scope, response_id: str) -> tuple[ResponseRow, Checkpoint] | None:
        """The response and the end of its span."""
        ...

    async def history(self, scope: Scope, checkpoint: Checkpoint) -> list[StoredItem]:
        """All items before the checkpoint, inherited ones included, in order: one query."""
        ...

    async def find_items(self, scope: Scope, ids: Sequence[str]) -> dict[str, StoredItem]:
        """Stored items by id, for `item_reference`."""
        ...


class Conversations(Protocol):
    """Conversations: threads with a name."""

    async def create(self, scope: Scope, row: ConversationRow, items: list[StoredItem]) -> None: ...

    async def get(self, scope: Scope, conversation_id: str) -> ConversationRow | None: ...

    async def update(self, scope: Scope, conversation_id: str, metadata: bytes) -> ConversationRow | None: ...

    async def delete(self, scope: Scope, conversation_id: str) -> bool:
        """Takes the name away; items go unless a response still needs them."""
        ...

    async def checkpoint(self, scope: Scope, conversation_id: str) -> Checkpoint | None: ...

    async def append(self, scope: Scope, conversation_id: str, items: list[StoredItem]) -> bool:
        """False if there is no such conversation. InvalidRequest for an item id it already holds."""
        ...

    async def items(
        self, scope: Scope, conversation_id: str, *, after: str | None, limit: int, order: Order
    ) -> ItemPage | None:
        """None if there is no such conversation; InvalidRequest (`param="after"`) for an unknown cursor."""
        ...

    async def item(self, scope: Scope, conversation_id: str, item_id: str) -> StoredItem | None: ...

    async def delete_item(self, scope: Scope, conversation_id: str, item_id: str) -> bool: ...
