"""Tool declarations and `tool_choice`, as clients send them and as responses echo them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from treadle.errors import InvalidRequest
from treadle.wire.base import Name, decode, encode
from treadle.wire.secrets import without_secrets

HOSTED = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Tool types that OpenAI knows. One we cannot run is echoed and hidden from the model (contract §5.3)."""


class FunctionTool(msgspec.Struct, tag_field="type", tag="function", kw_only=True):
    """A client-run function. All keys are echoed, null or not: Open Responses wants them present."""

    name: Name
    description: str | None = None
    parameters: dict[str, Raw] | None = None
    strict: bool | None = None


class CustomTool(msgspec.Struct, tag_field="type", tag="custom", kw_only=True, omit_defaults=True):
    """A client-run tool whose input is text, perhaps bound to a grammar."""

    name: Name
    description: str | None = None
    format: dict[str, Raw] | None = None


class NamespaceTool(msgspec.Struct, tag_field="type", tag="namespace", kw_only=True):
    """A named group of functions and custom tools, as Codex declares them."""

    name: Name
    description: str | None = None
    tools: list[FunctionTool | CustomTool] = []


class HostedTool(msgspec.Struct):
    """A tool of a type run by a server; `echo` is its declaration without anything secret."""

    kind: str
    echo: Raw
    raw: Raw


Tool = FunctionTool | CustomTool | NamespaceTool | HostedTool

_typed: msgspec.json.Decoder[FunctionTool | CustomTool | NamespaceTool] = msgspec.json.Decoder(
    FunctionTool | CustomTool | NamespaceTool
)
_loose = msgspec.json.Decoder(dict[str, Raw])
_name = msgspec.json.Decoder(str)


def decode_tool(raw: Raw, at: str, known: frozenset[str]) -> Tool:
    """A declared tool; `known` are the plug-in types of this server. InvalidRequest for any other type."""
    fields = decode(_loose, raw, at)
    if "type" not in fields:
        raise InvalidRequest(
            f"Missing required parameter: '{at}.type'.", param=f"{at}.type", code="missing_required_parameter"
        )
    kind = decode(_name, fields["type"], f"{at}.type")
    if kind in ("function", "custom", "namespace"):
        if kind != "namespace" and "name" not in fields and kind in fields:
            # The chat-completions nesting, which some clients keep (bug cases, "also reported").
            raw = Raw(encode(decode(_loose, fields[kind], f"{at}.{kind}") | {"type": kind}))
            at = f"{at}.{kind}"
        return decode(_typed, raw, at)
    if kind not in HOSTED and kind not in known:
        raise InvalidRequest(f"Invalid value for '{at}.type': '{kind}' is not a tool type.", param=f"{at}.type")
    return HostedTool(kind, without_secrets(raw, at), raw)


def echo_tool(tool: Tool) -> Raw:
    """The declaration as the response shows it."""
    return tool.echo if isinstance(tool, HostedTool) else Raw(encode(tool))


class AllowedTool(msgspec.Struct, kw_only=True):
    """One entry of `allowed_tools`, and the shape of a forced choice."""

    type: str
    name: str | UnsetType = UNSET
    server_label: str | UnsetType = UNSET


class ToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice` in all its forms: a mode, a forced tool, or a narrowing to `allowed`."""

    mode: Literal["auto", "none", "required"] = "auto"
    forced: AllowedTool | None = None
    allowed: list[AllowedTool] | None = None
    echo: Raw = Raw(b'"auto"')


class _AllowedTools(msgspec.Struct, kw_only=True):
    mode: Literal["auto", "required", "none"] = "auto"
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=128)]


_allowed = msgspec.json.Decoder(_AllowedTools)
_forced = msgspec.json.Decoder(AllowedTool)
_mode = msgspec.json.Decoder(Literal["auto", "none", "required"])


def decode_choice(raw: Raw) -> ToolChoice:
    """The `tool_choice` of a request. InvalidRequest (`param` below `tool_choice`) when it has no known form."""
    if bytes(raw) == b"null":
        return ToolChoice()
    if bytes(raw)[:1] != b"{":
        return ToolChoice(mode=decode(_mode, raw, "tool_choice"), echo=raw)
    fields = decode(_loose, raw, "tool_choice")
    if "type" not in fields:
        raise InvalidRequest(
            "Missing required parameter: 'tool_choice.type'.",
            param="tool_choice.type",
            code="missing_required_parameter",
        )
    kind = decode(_name, fields["type"], "tool_choice.type")
    if kind == "allowed_tools":
        found = decode(_allowed, raw, "tool_choice")
        return ToolChoice(mode=found.mode, allowed=found.tools, echo=without_secrets(raw, "tool_choice"))
    if kind == "function" and "function" in fields and "name" not in fields:
        fields = {"type": fields["type"]} | decode(_loose, fields["function"], "tool_choice.function")
    forced = decode(_forced, encode(fields), "tool_choice")
    if kind in ("function", "custom") and not forced.name:
        raise InvalidRequest(
            "Missing required parameter: 'tool_choice.name'.",
            param="tool_choice.name",
            code="missing_required_parameter",
        )
    return ToolChoice(mode="required", forced=forced, echo=without_secrets(raw, "tool_choice"))
