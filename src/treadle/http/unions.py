"""Schemas of what the wire types keep as bytes: items, tools and `tool_choice`, all open to kinds yet to come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from treadle.http.schemas import Components, Schema, reference
from treadle.wire.base import Name
from treadle.wire.items import HOSTED_KINDS, ItemReference, TypedItem
from treadle.wire.responses import PromptValue
from treadle.wire.tools import HOSTED, AllowedTool, CustomTool, FunctionTool, NamespaceTool

_TOOLS = FunctionTool | CustomTool | NamespaceTool
SENT: tuple[object, ...] = (TypedItem | ItemReference, _TOOLS, AllowedTool)
"""What clients send inside fields that are kept as bytes."""


def define(components: Components) -> None:
    """Adds Item, InputItem, Tool, PromptValue and ToolChoice, to which the wire types refer by name."""
    items = [components.schema(kind) for kind in get_args(TypedItem)]
    tools = [components.schema(kind) for kind in get_args(_TOOLS)]
    schemas = components.schemas
    kinds = _kinds(TypedItem)
    schemas["OtherItem"] = {
        "type": "object",
        "description": "An item of another kind: kept, shown unchanged, hidden from models.",
        "properties": {
            "id": {"type": ["string", "null"]},
            "type": _other([*(k for k in kinds if k not in HOSTED_KINDS), "item_reference"], 64),
        },
        "required": ["type"],
    }
    schemas["Item"] = {
        "description": "An item as it is shown; `type` says which.",
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id", "type"],
        "anyOf": [*items, reference("OtherItem")],
    }
    message = schemas["Message"]
    schemas["InputMessage"] = {
        "type": "object",
        "description": "A message without its `type`.",
        "properties": {**_properties(message), "type": {"type": "null"}},
        "required": ["role", "content"],
    }
    schemas["InputItem"] = {
        "description": "An item as it is sent; `type` says which, and without one it is a message.",
        "anyOf": [*items, reference("InputMessage"), components.schema(ItemReference), reference("OtherItem")],
    }
    schemas["HostedTool"] = {
        "type": "object",
        "description": "A tool that a server runs. What this server cannot run is shown and hidden from the model.",
        "properties": {"type": {"type": "string", "examples": sorted(HOSTED)} | _other(_kinds(_TOOLS), 64)},
        "required": ["type"],
    }
    schemas["Tool"] = {"anyOf": [*tools, reference("HostedTool")]}
    schemas["PromptValue"] = components.schema(PromptValue)
    schemas["ToolChoice"] = _choice(components)


def _choice(components: Components) -> Schema:
    allowed = {"type": "array", "items": components.schema(AllowedTool), "minItems": 1, "maxItems": 128}
    mode: Schema = {"type": "string", "enum": ["auto", "none", "required"]}
    named: Schema = {"properties": {"type": {"enum": ["function", "custom"]}, "name": components.schema(Name)}}
    many: Schema = {"properties": {"type": {"const": "allowed_tools"}, "mode": mode, "tools": allowed}}
    other: Schema = {"properties": {"type": _other(["function", "custom", "allowed_tools"], 64)}}
    return {
        "description": "A mode, one tool that must be used, or the tools that may be used. Null is `auto`.",
        "anyOf": [
            mode,
            {"type": "null"},
            {"title": "One tool", "type": "object", **named, "required": ["type", "name"]},
            {"title": "Allowed tools", "type": "object", **many, "required": ["type", "tools"]},
            {"title": "Hosted tool", "type": "object", **other, "required": ["type"]},
        ],
    }


def _other(known: Iterable[str], longest: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest, "not": {"enum": sorted(known)}}


def _kinds(union: object) -> list[str]:
    return [str(kind.__struct_config__.tag) for kind in get_args(union)]


def _properties(schema: Schema) -> Schema:
    found = schema["properties"]
    assert isinstance(found, dict)
    return found
