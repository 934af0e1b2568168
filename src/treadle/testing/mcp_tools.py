"""The tools that every FakeMcpServer offers: one for each kind of result, and for each way to fail."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from treadle.testing.gates import Waitable

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel, in base64."""

Given = types.CallToolResult | types.InputRequiredResult


@dataclass
class Use:
    """A call of a tool: its arguments, the gate of the server, and the SDK's context with the whole request."""

    arguments: dict[str, Any]
    gate: Waitable
    context: ServerRequestContext[Any]
    params: types.CallToolRequestParams


@dataclass
class FakeTool:
    """A tool: its name, what it does, and how it is listed."""

    name: str
    run: Callable[[Use], Awaitable[Given]]
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    description: str = "A scripted tool."
    output_schema: dict[str, Any] | None = None
    read_only: bool = False

    def listed(self) -> types.Tool:
        return types.Tool(
            name=self.name,
            description=self.description,
            input_schema=self.schema,
            output_schema=self.output_schema,
            annotations=types.ToolAnnotations(read_only_hint=True) if self.read_only else None,
        )


def result(*content: types.ContentBlock, structured: Any = None, failed: bool = False) -> types.CallToolResult:
    more = {} if structured is None else {"structured_content": structured}
    return types.CallToolResult(content=list(content), is_error=failed, **more)


def text(said: str, *, failed: bool = False) -> types.CallToolResult:
    return result(types.TextContent(text=said), failed=failed)


def always(name: str, given: types.CallToolResult, **listed: Any) -> FakeTool:
    """A tool that gives the same result to every call."""

    async def run(_: Use) -> Given:
        return given

    return FakeTool(name, run, **listed)


async def _echo(use: Use) -> Given:
    return text(str(use.arguments.get("text", "")))


async def _crash(_: Use) -> Given:
    raise MCPError(types.INTERNAL_ERROR, "the tool fell over")


async def _slow(use: Use) -> Given:
    await use.gate.wait()
    return text("done")


async def _big(use: Use) -> Given:
    return text("x" * int(use.arguments.get("size", 5_000_000)))


def _wish(what: str) -> tuple[types.ElicitRequest | types.CreateMessageRequest | types.ListRootsRequest, Any]:
    with warnings.catch_warnings():
        # The 2026 protocol drops two of them, but clients are still asked.
        warnings.simplefilter("ignore")
        if what == "roots":
            return types.ListRootsRequest(), types.ListRootsResult
        if what == "sampling":
            asked = types.SamplingMessage(role="user", content=types.TextContent(text="Hi"))
            return types.CreateMessageRequest(
                params=types.CreateMessageRequestParams(messages=[asked], max_tokens=8)
            ), types.CreateMessageResult
        form = types.ElicitRequestFormParams(
            message="Your name?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
        )
        return types.ElicitRequest(params=form), types.ElicitResult


async def _ask(use: Use) -> Given:
    wish, kind = _wish(str(use.arguments.get("what", "elicitation")))
    if use.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        if use.params.input_responses:
            return text(f"told: {use.params.input_responses}")
        return types.InputRequiredResult(input_requests={"wish": wish})
    try:
        told = await use.context.session.send_request(
            wish, kind, metadata=ServerMessageMetadata(related_request_id=use.context.request_id)
        )
    except MCPError as refused:
        return text(f"refused: {refused.message}")
    return text(f"told: {told}")


ECHO_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What to say"},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
        "size": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    },
    "required": ["text"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "additionalProperties": False}},
}

_PLACE = "file:///notes/today.txt"

BUILT_IN = (
    FakeTool("echo", _echo, schema=ECHO_SCHEMA, description="Says it again.", read_only=True),
    always("fail", text("no such city", failed=True)),
    FakeTool("crash", _crash),
    FakeTool("slow", _slow),
    FakeTool("big", _big),
    FakeTool("ask", _ask),
    always("image", result(types.ImageContent(data=PIXEL, mime_type="image/png"))),
    always("audio", result(types.AudioContent(data="UklGRg==", mime_type="audio/wav"))),
    always(
        "resource",
        result(
            types.EmbeddedResource(
                resource=types.TextResourceContents(uri=_PLACE, mime_type="text/plain", text="Buy milk.")
            )
        ),
    ),
    always(
        "blob",
        result(
            types.EmbeddedResource(
                resource=types.BlobResourceContents(uri=_PLACE, mime_type="application/zip", blob="UEsDBA==")
            )
        ),
    ),
    always(
        "link", result(types.ResourceLink(name="today", uri=_PLACE, mime_type="text/plain", description="The notes"))
    ),
    always("structured", result(structured={"celsius": 21, "wind": ["w", 3]})),
    always("misfit", text("run all the same"), output_schema={"type": "object", "required": ["celsius"]}),
    always("nothing", result()),
)
