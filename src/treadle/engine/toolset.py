"""The two-way table between declared tools and the functions a model sees.

A declared tool becomes a function that any model server understands, and a call comes back under the declared kind,
name and namespace. Who owns a call is decided here, once, when names are bound; unknown names are never executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from msgspec import UNSET, Raw, structs

from treadle.errors import InvalidRequest
from treadle.ports import ModelFunction, Runner, ServerTool, ToolDeclaration
from treadle.wire.base import encode
from treadle.wire.hosted import WEB_SEARCH
from treadle.wire.items import McpTool
from treadle.wire.tools import (
    AllowedTool,
    CustomTool,
    FunctionTool,
    HostedTool,
    NamespaceTool,
    Tool,
    ToolChoice,
    decode_choice,
    decode_tool,
    echo_tool,
)

_NO_PARAMETERS = Raw(b'{"type":"object","properties":{}}')
_TEXT_INPUT = Raw(b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}')
_NAME_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Binding:
    """What a name the model uses stands for. `refused` calls get an error result and are never run."""

    seen: str
    owner: Literal["client", "server", "refused"]
    name: str
    kind: Literal["function", "custom", "mcp", "web_search", "file_search"] = "function"
    namespace: str | None = None
    tool: Runner | None = None
    label: str = ""
    """Of the MCP server."""
    digest: str = ""
    """Of the MCP server's address: approvals are bound to it."""
    asks: bool = False
    """Needs the client's word before it is run."""
    untrusted: bool = False
    """What it gives is shown to the model as data from outside."""

    @property
    def custom(self) -> bool:
        return self.kind == "custom"


@dataclass(slots=True)
class ToolSet:
    """The tools of one response: what the model is shown, what is echoed, and what each name means."""

    functions: list[ModelFunction] = field(default_factory=list)
    echo: list[Raw] = field(default_factory=list)
    choice: ToolChoice = field(default_factory=ToolChoice)
    first_choice: str | None = None
    """`tool_choice` for the first model call, in the form of `ModelRequest.tool_choice`."""
    hosted: list[tuple[str, HostedTool]] = field(default_factory=list)
    """Declared tools that a server runs, with their paths in the request."""
    _bindings: dict[str, Binding] = field(default_factory=dict)
    _hosted: dict[str, list[str]] = field(default_factory=dict)

    def bind(self, seen: str) -> Binding:
        """The meaning of a name the model used.

        An invented name goes to the client if it declared functions, since it may know better; otherwise, and for a
        tool outside `allowed_tools`, the model gets an error result (bug case 56).
        """
        binding = self._bindings.get(seen) or self._misspelt(seen)
        if binding is None:
            client = any(b.owner == "client" for b in self._bindings.values())
            return Binding(seen, "client" if client and self.choice.allowed is None else "refused", seen)
        if self.choice.allowed is not None and not any(self._names(a, binding) for a in self.choice.allowed):
            return Binding(seen, "refused", binding.name, _plain_kind(binding), binding.namespace)
        return binding

    def _misspelt(self, seen: str) -> Binding | None:
        """The one tool that a model can mean which leaves the namespace out or separates it by a dot."""
        bare = seen.removeprefix("functions.")
        exact = self._bindings.get(bare) or self._bindings.get(bare.replace(".", "__"))
        if exact is not None:
            return exact
        meant = [binding for binding in self._bindings.values() if binding.namespace and binding.name == bare]
        return meant[0] if len(meant) == 1 else None

    def add_remote(
        self, tool: McpTool, *, label: str, runner: Runner, asks: bool, digest: str, untrusted: bool
    ) -> None:
        """Offers a listed tool, under a name that no other tool has."""
        seen = self._free(tool.name, label)
        schema = Raw(encode(tool.input_schema)) if tool.input_schema else _NO_PARAMETERS
        binding = Binding(
            seen,
            "server",
            tool.name,
            kind="mcp",
            tool=runner,
            label=label,
            digest=digest,
            asks=asks,
            untrusted=untrusted,
        )
        self._add(ModelFunction(name=seen, description=tool.description, parameters=schema), binding, "tools")
        self._hosted.setdefault("mcp", []).append(seen)

    def add_hosted(
        self, functions: Sequence[ModelFunction], kind: Literal["web_search", "file_search"], runner: Runner
    ) -> None:
        """Offers the functions of a search; a client's function of the same name keeps it."""
        for function in functions:
            seen = self._free(function.name, "hosted")
            binding = Binding(seen, "server", function.name, kind=kind, tool=runner, untrusted=True)
            self._add(structs.replace(function, name=seen), binding, "tools")
            self._hosted.setdefault(kind, []).append(seen)

    def settle_choice(self) -> None:
        """Called when all tools are known. InvalidRequest if `tool_choice` names one that is not there."""
        self.first_choice = _first_choice(self)

    def remote_binding(self, label: str, name: str) -> Binding | None:
        """The binding of an MCP tool, if it is on offer in this turn."""
        return next(
            (b for b in self._bindings.values() if b.kind == "mcp" and (b.label, b.name) == (label, name)), None
        )

    def hosted_name(self, kind: str, name: str) -> str:
        """The name under which the model knows a function of a search."""
        return next((b.seen for b in self._bindings.values() if b.kind == kind and b.name == name), name)

    def _free(self, name: str, label: str) -> str:
        """`name` as a function name; where it is taken, with the label before it."""
        clean = clean_name(name)
        if clean not in self._bindings:
            return clean
        prefixed = _flat(clean_name(label), clean)
        number = 2
        while prefixed in self._bindings:
            prefixed = _flat(clean_name(label), f"{clean}_{number}")
            number += 1
        return prefixed

    def seen_name(self, name: str, namespace: str | None) -> str:
        """The name under which the model knows a declared tool; used to replay its earlier calls."""
        for binding in self._bindings.values():
            if binding.name == name and binding.namespace == namespace:
                return binding.seen
        return _flat(namespace, name) if namespace else name

    def _names(self, allowed: AllowedTool, binding: Binding) -> bool:
        if allowed.type in ("function", "custom", "namespace"):
            return allowed.name in (binding.name, binding.namespace, binding.seen)
        if allowed.type == "mcp" and allowed.server_label:
            return (
                binding.kind == "mcp"
                and binding.label == allowed.server_label
                and allowed.name in (UNSET, binding.name)
            )
        kind = "web_search" if allowed.type in WEB_SEARCH else allowed.type
        return binding.seen in self._hosted.get(kind, ())

    def _add(self, function: ModelFunction, binding: Binding, at: str) -> None:
        known = self._bindings.get(binding.seen)
        if known is not None:
            twin = next(f for f in self.functions if f.name == binding.seen)
            if known == binding and encode(twin) == encode(function):
                return
            raise InvalidRequest(f"Two tools are named '{binding.name}'.", param=f"{at}.name", code="invalid_value")
        self._bindings[binding.seen] = binding
        self.functions.append(function)

    def _declare(self, tool: Tool, at: str, server_tools: Mapping[str, ServerTool]) -> None:
        match tool:
            case FunctionTool() | CustomTool():
                self._add(
                    _function(tool, tool.name),
                    Binding(tool.name, "client", tool.name, _kind(tool)),
                    at,
                )
            case NamespaceTool():
                for index, child in enumerate(tool.tools):
                    seen = _flat(tool.name, child.name)
                    bound = Binding(seen, "client", child.name, _kind(child), tool.name)
                    self._add(_function(child, seen), bound, f"{at}.tools[{index}]")
            case HostedTool(kind=kind):
                self.hosted.append((at, tool))
                runner = server_tools.get(kind)
                for function in runner.declare(ToolDeclaration(kind, tool.raw)) if runner else ():
                    self._add(function, Binding(function.name, "server", function.name, tool=runner), at)
                    self._hosted.setdefault(kind, []).append(function.name)


def build(tools: Sequence[Raw], choice: Raw, server_tools: Mapping[str, ServerTool]) -> ToolSet:
    """The tool set of a request. InvalidRequest for a bad declaration or a choice that names no usable tool."""
    known = frozenset(server_tools)
    found = ToolSet(choice=decode_choice(choice))
    for index, raw in enumerate(tools):
        at = f"tools[{index}]"
        tool = decode_tool(raw, at, known)
        found.echo.append(echo_tool(tool))
        found._declare(tool, at, server_tools)
    if not any(tool.kind in ("mcp", "file_search") or tool.kind in WEB_SEARCH for _, tool in found.hosted):
        found.settle_choice()  # else when their functions are known
    return found


def _first_choice(tools: ToolSet) -> str | None:
    choice = tools.choice
    if choice.mode == "required" and not tools.functions:
        raise InvalidRequest(
            "tool_choice requires a tool, but none that this server can offer was given.", param="tool_choice"
        )
    forced = choice.forced
    if forced is None and choice.mode == "required" and choice.allowed is not None and len(choice.allowed) == 1:
        forced = choice.allowed[0]
    if forced is not None:
        names = [b.seen for b in tools._bindings.values() if tools._names(forced, b)]
        if not names:
            label = forced.name or forced.type
            raise InvalidRequest(
                f"tool_choice names '{label}', which is not among the usable tools.", param="tool_choice"
            )
        return f"function:{names[0]}" if len(names) == 1 else "required"
    if not tools.functions:
        return None
    return None if choice.mode == "auto" else choice.mode


def _kind(tool: FunctionTool | CustomTool) -> Literal["function", "custom"]:
    return "custom" if isinstance(tool, CustomTool) else "function"


def _plain_kind(binding: Binding) -> Literal["function", "custom"]:
    return "custom" if binding.kind == "custom" else "function"


def clean_name(name: str) -> str:
    """The name with what function names may not hold replaced."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:_NAME_LIMIT] or "tool"


def _function(tool: FunctionTool | CustomTool, seen: str) -> ModelFunction:
    if isinstance(tool, CustomTool):
        return ModelFunction(name=seen, description=_custom_description(tool), parameters=_TEXT_INPUT)
    parameters = Raw(encode(tool.parameters)) if tool.parameters else _NO_PARAMETERS
    return ModelFunction(name=seen, description=tool.description, parameters=parameters, strict=tool.strict)


def _custom_description(tool: CustomTool) -> str:
    """A function has no grammar, so the model is told of it in words."""
    text = tool.description or ""
    if tool.format and bytes(tool.format.get("type", Raw(b""))) == b'"grammar"':
        text += "\n\nThe input must match this grammar:\n" + encode(tool.format).decode()
    return text.strip() or f"Takes free text as `input` for {tool.name}."


def _flat(namespace: str | None, name: str) -> str:
    flat = f"{namespace}__{name}"
    if len(flat) <= _NAME_LIMIT:
        return flat
    return flat[: _NAME_LIMIT - 9] + "_" + blake2b(flat.encode(), digest_size=4).hexdigest()
