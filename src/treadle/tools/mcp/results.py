"""What a tool gave, as parts for a model: nothing is dropped without a word."""

from __future__ import annotations

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

from treadle.ports import ImagePart, Json, ModelPart, RemoteResult, RemoteTool, TextPart

NOTHING = "(no content)"


def result_of(given: CallToolResult) -> RemoteResult:
    """The parts in order. Structured content becomes a part only where there is no other."""
    structured = None if given.structured_content is None else _json(given.structured_content)
    parts = [_part(block) for block in given.content]
    if not parts:
        parts = [TextPart(NOTHING if structured is None else bytes(structured).decode())]
    return RemoteResult(parts=parts, structured=structured, failed=bool(given.is_error))


def tool_of(listed: Tool) -> RemoteTool:
    notes = listed.annotations
    return RemoteTool(
        name=listed.name,
        description=listed.description,
        input_schema=_json(listed.input_schema),
        annotations=None if notes is None else _json(notes.model_dump(mode="json", by_alias=True, exclude_none=True)),
        read_only=bool(notes and notes.read_only_hint),
    )


def _json(value: object) -> Json:
    return msgspec.Raw(msgspec.json.encode(value))


def _part(block: ContentBlock) -> ModelPart:
    match block:
        case TextContent():
            return TextPart(block.text)
        case ImageContent():
            return ImagePart(f"data:{block.mime_type};base64,{block.data}")
        case AudioContent():
            return TextPart(f"(audio, {block.mime_type}, {_bytes_in(block.data)}: it cannot be passed on)")
        case EmbeddedResource():
            return _resource(block.resource)
        case ResourceLink():
            kind = f", {block.mime_type}" if block.mime_type else ""
            about = f": {block.description}" if block.description else ""
            return TextPart(f"(link to the resource {block.name}{kind}, at {block.uri}{about})")


def _resource(resource: TextResourceContents | BlobResourceContents) -> ModelPart:
    match resource:
        case TextResourceContents():
            return TextPart(resource.text)
        case BlobResourceContents():
            kind = resource.mime_type or "unknown type"
            return TextPart(f"(resource {resource.uri}, {kind}, {_bytes_in(resource.blob)}: it cannot be passed on)")


def _bytes_in(base64: str) -> str:
    return f"{len(base64) * 3 // 4} bytes"
