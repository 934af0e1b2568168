"""Every item kind, as input and as output, in one tagged union; and how loose input becomes one of them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from treadle.errors import InvalidRequest
from treadle.ids import new_id, plausible
from treadle.wire.base import Text, decode, encode
from treadle.wire.content import InputText, MessagePart, OutputText, ReasoningText, SummaryText, tidy
from treadle.wire.secrets import without_secrets

Status = Literal["in_progress", "completed", "incomplete"]
CallId = Annotated[str, Meta(min_length=1, max_length=64)]


class Message(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """A message. After `tidied`, `content` is a list and `id` and `status` are set."""

    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    status: Status | None = None
    content: Text | list[MessagePart]
    phase: Literal["commentary", "final_answer"] | UnsetType | None = UNSET


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str | None = None
    status: Status | None = None
    call_id: CallId
    name: str
    arguments: Text
    namespace: str | UnsetType | None = UNSET


class FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output", kw_only=True):
    id: str | None = None
    status: Status | None = None
    call_id: CallId
    output: Text | list[MessagePart]


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom_tool_call", kw_only=True):
    id: str | None = None
    status: Status | None = None
    call_id: CallId
    name: str
    input: Text
    namespace: str | UnsetType | None = UNSET


class CustomToolCallOutput(msgspec.Struct, tag_field="type", tag="custom_tool_call_output", kw_only=True):
    id: str | None = None
    status: Status | None = None
    call_id: CallId
    output: Text | list[MessagePart]


class Reasoning(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    """What the model thought. `content` holds the raw text, `encrypted_content` the same sealed under our key."""

    id: str | None = None
    status: Status | UnsetType | None = UNSET
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | UnsetType | None = UNSET
    encrypted_content: Text | UnsetType | None = UNSET


class McpTool(msgspec.Struct, kw_only=True):
    """A tool in a `mcp_list_tools` item."""

    name: str
    input_schema: dict[str, Raw]
    description: str | None = None
    annotations: dict[str, Raw] | None = None


class McpListTools(msgspec.Struct, tag_field="type", tag="mcp_list_tools", kw_only=True):
    """What an MCP server offers. Its id ends in a digest of server and filter, by which a later turn knows it again."""

    id: str | None = None
    server_label: str
    tools: list[McpTool]
    error: str | UnsetType | None = UNSET


class McpCall(msgspec.Struct, tag_field="type", tag="mcp_call", kw_only=True):
    """A call that the server made to an MCP server, with what came of it."""

    id: str | None = None
    server_label: str
    name: str
    arguments: Text
    status: Literal["in_progress", "calling", "completed", "incomplete", "failed"] | None = None
    output: Text | None = None
    error: dict[str, Raw] | str | None = None
    approval_request_id: str | None = None


class McpApprovalRequest(msgspec.Struct, tag_field="type", tag="mcp_approval_request", kw_only=True):
    """A call that waits for the client's word. Its id ends in a digest of the server, which the answer must meet."""

    id: str | None = None
    server_label: str
    name: str
    arguments: Text


class McpApprovalResponse(msgspec.Struct, tag_field="type", tag="mcp_approval_response", kw_only=True):
    id: str | None = None
    approval_request_id: str
    approve: bool
    reason: Text | None = None


class SearchAction(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`search` has a query, `open_page` a url, `find_in_page` both a url and a pattern."""

    type: Literal["search", "open_page", "find_in_page"]
    query: str | UnsetType = UNSET
    queries: list[str] | UnsetType = UNSET
    url: str | UnsetType | None = UNSET
    pattern: str | UnsetType = UNSET
    sources: list[dict[str, Raw]] | UnsetType = UNSET


class WebSearchCall(msgspec.Struct, tag_field="type", tag="web_search_call", kw_only=True):
    """A search, or a page opened. `results` is ours: what the model was told, for later turns and for `include`."""

    id: str | None = None
    status: Literal["in_progress", "searching", "completed", "failed"] | None = None
    action: SearchAction
    results: Text | UnsetType | None = UNSET


class FoundPassage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A result of a file search. Attributes are those of the file."""

    file_id: str | UnsetType | None = UNSET
    filename: str | UnsetType | None = UNSET
    score: float | UnsetType | None = UNSET
    """0..1"""
    text: Text | UnsetType | None = UNSET
    attributes: dict[str, str | int | float | bool] | UnsetType | None = UNSET
    page: int | UnsetType | None = UNSET
    """Ours, like `section`: where in the file the text stands, if that is known."""
    section: str | UnsetType | None = UNSET


class FileSearchCall(msgspec.Struct, tag_field="type", tag="file_search_call", kw_only=True):
    """A search of vector stores. `results` is null unless the client asked for it (`include`)."""

    id: str | None = None
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None
    queries: list[str] = []
    results: list[FoundPassage] | None = None


class Told(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a search told the model: our words before and behind, and between them the passages, which are data.

    `numbers[i]` is the number under which `results[i]` may be cited; 0 for one that the model was not shown.
    """

    before: str = ""
    passages: str = ""
    behind: str = ""
    numbers: list[int] = []


class FileSearchRecord(FileSearchCall, tag="file_search_call", kw_only=True):
    """A search as it is stored: with its results, and with what later turns tell the model of it, never shown."""

    told: Told | UnsetType = UNSET


class Compaction(msgspec.Struct, tag_field="type", tag="compaction", kw_only=True):
    """Stands for the part of a history that was summarised. `encrypted_content` is what models are shown instead,
    sealed under our key; another server's is kept and skipped."""

    id: str | None = None
    encrypted_content: Text
    created_by: str | UnsetType | None = UNSET


class ItemReference(msgspec.Struct, tag_field="type", tag="item_reference"):
    """Stands for a stored item. Never stored itself."""

    id: str


class OpaqueItem(msgspec.Struct):
    """An item of a kind that this server does not interpret: kept, shown unchanged, hidden from models."""

    kind: str
    id: str
    raw: Raw


HostedItem = (
    McpListTools | McpCall | McpApprovalRequest | McpApprovalResponse | WebSearchCall | FileSearchCall | Compaction
)
"""Items that only a server makes. One of another server's that does not fit is kept as an opaque item."""

TypedItem = Message | FunctionCall | FunctionCallOutput | CustomToolCall | CustomToolCallOutput | Reasoning | HostedItem
Item = TypedItem | OpaqueItem
"""An entry of a thread."""

CallOutput = FunctionCallOutput | CustomToolCallOutput

_PREFIXES: dict[type[msgspec.Struct], str] = {
    Message: "msg",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    CustomToolCall: "ctc",
    CustomToolCallOutput: "ctco",
    Reasoning: "rs",
    McpListTools: "mcpl",
    McpCall: "mcp",
    McpApprovalRequest: "mcpr",
    McpApprovalResponse: "mcpa",
    WebSearchCall: "ws",
    FileSearchCall: "fs",
    FileSearchRecord: "fs",
    Compaction: "cmp",
}
_KINDS: dict[type[msgspec.Struct], str] = {cls: str(cls.__struct_config__.tag) for cls in _PREFIXES}

_typed: msgspec.json.Decoder[TypedItem | ItemReference] = msgspec.json.Decoder(TypedItem | ItemReference)
_approval = msgspec.json.Decoder(McpApprovalResponse)
_search_record = msgspec.json.Decoder(FileSearchRecord)
_loose = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)
_parts = msgspec.json.Decoder(list[Raw])
_id = msgspec.json.Decoder(str | None)
_string_map = msgspec.json.Decoder(dict[str, Raw])


def kind_of(item: Item) -> str:
    return item.kind if isinstance(item, OpaqueItem) else _KINDS[type(item)]


def encode_item(item: Item) -> bytes:
    return bytes(item.raw) if isinstance(item, OpaqueItem) else encode(item)


def decode_stored(kind: str, item_id: str, data: bytes) -> Item:
    """An item that we stored ourselves."""
    if kind in _TYPED_KINDS:
        try:
            item: TypedItem | ItemReference = (_search_record if kind == "file_search_call" else _typed).decode(data)
        except msgspec.ValidationError:
            return OpaqueItem(kind, item_id, Raw(data))  # kept as it came, from another server
        assert not isinstance(item, ItemReference)
        return item
    return OpaqueItem(kind, item_id, Raw(data))


_TYPED_KINDS = frozenset(_KINDS.values())
HOSTED_KINDS = frozenset(
    _KINDS[kind]
    for kind in (
        McpListTools,
        McpCall,
        McpApprovalRequest,
        McpApprovalResponse,
        WebSearchCall,
        FileSearchCall,
        Compaction,
    )
)


def decode_input(raw: Raw, at: str) -> list[Item | ItemReference]:
    """One entry of `input` as items: the typed decode first, loose shapes only when that fails (architecture §2).

    `at` is the entry's path. InvalidRequest when it is no item at all.
    """
    try:
        item = _typed.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return _decode_loose(raw, at)
    return [item] if isinstance(item, ItemReference) else [tidied(item)]


def usable_id(given: str) -> str:
    """A client's id, or a digest of one that could not stand in a path or be a cursor; always the same for the same."""
    return given if plausible(given) else f"item_{blake2b(given.encode(), digest_size=16).hexdigest()}"


def tidied(item: TypedItem) -> TypedItem:
    """The item as we store and show it: an id, a status, content as parts, nothing null that must be absent."""
    item.id = usable_id(item.id) if item.id else new_id(_PREFIXES[type(item)])
    if isinstance(item, Message):
        content = item.content
        if isinstance(content, str):
            item.content = [OutputText(text=content) if item.role == "assistant" else InputText(content)]
        else:
            item.content = [tidy(part) for part in content]
        item.phase = item.phase or UNSET
    elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
        if not isinstance(item.output, str):
            item.output = [tidy(part) for part in item.output]
    elif isinstance(item, FunctionCall | CustomToolCall):
        item.namespace = item.namespace or UNSET
    elif isinstance(item, HostedItem):
        if isinstance(item, McpCall | WebSearchCall | FileSearchCall):
            item.status = item.status or "completed"
        return item
    else:
        item.summary = item.summary or []
        item.content = item.content or UNSET
        item.encrypted_content = item.encrypted_content or UNSET
        item.status = item.status or UNSET
        return item
    item.status = item.status or "completed"
    return item


def renamed(item: Item) -> Item:
    """The item under a new id, because another has the one it came with."""
    if not isinstance(item, OpaqueItem):
        item.id = None
        return tidied(item)
    item_id = new_id("item")
    return OpaqueItem(item.kind, item_id, Raw(encode(_loose.decode(item.raw) | {"id": Raw(encode(item_id))})))


def _decode_loose(raw: Raw, at: str) -> list[Item | ItemReference]:
    fields = decode(_loose, raw, at)
    kind = _kind_of_loose(fields, at)
    if kind == "message":
        fields["type"] = Raw(b'"message"')
        return _loose_message(fields, at)
    if kind == "item_reference" or (kind in _TYPED_KINDS and kind not in HOSTED_KINDS):
        fields["type"] = Raw(encode(kind))
        item = decode(_typed, encode(fields), at)
        return [item] if isinstance(item, ItemReference) else [tidied(item)]
    if kind == "mcp_approval_response":
        return [tidied(decode(_approval, encode(fields), at))]
    given = decode(_id, fields.get("id", Raw(b"null")), f"{at}.id")
    item_id = usable_id(given) if given else new_id("item")
    fields["id"] = Raw(encode(item_id))
    kept = Raw(encode(fields))
    return [OpaqueItem(kind, item_id, without_secrets(kept, at) if kind[:3].lower() == "mcp" else kept)]


def _kind_of_loose(fields: dict[str, Raw], at: str) -> str:
    """The `type`, or what its absence means: a message has a role, a reference has nothing but an id."""
    declared = fields.get("type", Raw(b"null"))
    if bytes(declared) != b"null":
        kind = decode(_text, declared, f"{at}.type")
        if not kind or len(kind) > 64:
            raise InvalidRequest(f"Invalid value for '{at}.type'.", param=f"{at}.type")
        return kind
    if "role" in fields:
        return "message"
    if set(fields) <= {"id", "type"} and "id" in fields:
        return "item_reference"
    raise InvalidRequest(
        f"Missing required parameter: '{at}.type'.", param=f"{at}.type", code="missing_required_parameter"
    )


def _loose_message(fields: dict[str, Raw], at: str) -> list[Item | ItemReference]:
    """A message that did not decode: calls embedded in its content become calls of their own (bug case 30)."""
    calls: list[Raw] = []
    content = bytes(fields.get("content", Raw(b"null")))
    if content == b"null":
        fields["content"] = Raw(b'""')
    elif content[:1] == b"[":
        parts = decode(_parts, Raw(content), f"{at}.content")
        calls = [part for part in parts if _embedded_call(part)]
        if calls:
            fields["content"] = Raw(encode([part for part in parts if part not in calls]))
    message = decode(_typed, encode(fields), at)
    assert isinstance(message, Message)
    found: list[Item | ItemReference] = []
    if message.content or not calls:
        found.append(tidied(message))
    for call in calls:
        found.extend(decode_input(call, f"{at}.content"))
    return found


def _embedded_call(part: Raw) -> bool:
    try:
        return bytes(_string_map.decode(part).get("type", Raw(b""))) in (b'"function_call"', b'"custom_tool_call"')
    except (msgspec.MsgspecError, RecursionError):
        return False
