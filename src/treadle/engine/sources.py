"""MCP servers as one request declares them: resolved, permitted, and known again by digests (architecture §8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from treadle.errors import InvalidRequest
from treadle.ports import AddressGuard, Connector, RemoteServer
from treadle.wire.base import decode, encode
from treadle.wire.hosted import ApprovalFilter, McpDeclaration, mcp_decoder, names_tool
from treadle.wire.items import Item, McpApprovalRequest, McpApprovalResponse, McpCall, McpListTools, McpTool
from treadle.wire.tools import HostedTool

Approval = Literal["always", "never"]
DIGEST = 16
"""Hex digits at the end of an id that tie it to a server."""


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """One declared server. `listed` are its tools if an earlier turn of the chain has listed them already."""

    declaration: McpDeclaration
    server: RemoteServer
    untrusted: bool = False
    default_approval: Approval = "never"
    listed: list[McpTool] | None = None

    @property
    def label(self) -> str:
        return self.declaration.server_label

    @property
    def server_digest(self) -> str:
        """Of the server alone: what an approval is bound to."""
        return _digest(self.server.url)

    @property
    def list_digest(self) -> str:
        """Of the server and the filter: what a list of tools is good for."""
        return _digest(self.server.url + "\0" + encode(self.declaration.allowed_tools).decode())

    def allows(self, name: str, read_only: bool) -> bool:
        return self.declaration.allowed_tools is None or names_tool(self.declaration.allowed_tools, name, read_only)

    def asks(self, name: str, read_only: bool) -> bool:
        """Whether the tool needs the client's word. In a filter, a tool that is not named asks."""
        wanted = self.declaration.require_approval or self.default_approval
        if isinstance(wanted, ApprovalFilter):
            if names_tool(wanted.always, name, read_only):
                return True
            return not names_tool(wanted.never, name, read_only)
        return wanted == "always"


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """A stored call that the client has permitted: exactly this one is run, once."""

    request: McpApprovalRequest
    source: RemoteSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRules:
    """What the configuration says about MCP."""

    connectors: Mapping[str, Connector] = field(default_factory=dict)
    guard: AddressGuard | None = None
    default_approval: Approval = "never"
    untrusted: bool = False
    """Servers that requests name are shown to the model as untrusted; connectors say it for themselves."""
    fatal: bool = False
    """A server that cannot be listed fails the response."""


def resolve_sources(
    hosted: list[tuple[str, HostedTool]], history: list[Item], rules: RemoteRules
) -> list[RemoteSource]:
    """The MCP servers among the declared tools. InvalidRequest for a bad, doubled or forbidden one."""
    found: list[RemoteSource] = []
    for at, tool in hosted:
        if tool.kind != "mcp":
            continue
        declaration = decode(mcp_decoder, tool.raw, at)
        if any(source.label == declaration.server_label for source in found):
            raise InvalidRequest(
                f"Two MCP servers have the label '{declaration.server_label}'.", param=f"{at}.server_label"
            )
        found.append(_carried(_resolve(declaration, at, rules), history))
    return found


def _resolve(declaration: McpDeclaration, at: str, rules: RemoteRules) -> RemoteSource:
    if (declaration.server_url is None) == (declaration.connector_id is None):
        raise InvalidRequest("Give either 'server_url' or 'connector_id'.", param=f"{at}.server_url")
    headers = dict(declaration.headers or {})
    if any(name.lower() == "authorization" for name in headers):
        raise InvalidRequest(
            "Credentials go into the 'authorization' parameter, not into 'headers'.", param=f"{at}.headers"
        )
    connector: Connector | None = None
    if declaration.connector_id is not None:
        connector = rules.connectors.get(declaration.connector_id)
        if connector is None:
            known = ", ".join(sorted(rules.connectors)) or "none"
            raise InvalidRequest(
                f"Connector '{declaration.connector_id[:128]}' is not configured. Configured are: {known}.",
                param=f"{at}.connector_id",
            )
        headers = dict(connector.headers) | headers
    elif rules.guard is not None:
        rules.guard.check_url(declaration.server_url or "", f"{at}.server_url")
    if declaration.authorization:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {declaration.authorization}"
    for name, value in headers.items():
        if not name or not (name + value).isprintable() or not (name + value).isascii() or ":" in name or " " in name:
            raise InvalidRequest("A header that cannot be sent.", param=f"{at}.headers")
    return RemoteSource(
        declaration=declaration,
        server=RemoteServer(
            label=declaration.server_label,
            url=connector.url if connector else (declaration.server_url or ""),
            headers=tuple(headers.items()),
            by_operator=connector is not None,
        ),
        untrusted=connector.untrusted if connector else rules.untrusted,
        default_approval=rules.default_approval,
    )


def _carried(source: RemoteSource, history: list[Item]) -> RemoteSource:
    """With the list an earlier turn made of the same server under the same filter, if there is one."""
    for item in reversed(history):
        if isinstance(item, McpListTools) and item.server_label == source.label:
            if not item.error and (item.id or "").endswith(source.list_digest):
                return RemoteSource(
                    source.declaration, source.server, source.untrusted, source.default_approval, item.tools
                )
            break
    return source


def approved_calls(
    inputs: list[tuple[Item, str]], history: list[Item], sources: list[RemoteSource]
) -> tuple[list[ApprovedCall], list[str]]:
    """The calls that this turn's approvals permit, and the requests that it denies. InvalidRequest for an answer to
    nothing, a second answer, and a server that is not the one that was asked about (bug case 55)."""
    before = [*history, *(item for item, _ in inputs)]
    requests = {item.id: item for item in before if isinstance(item, McpApprovalRequest)}
    done = {item.approval_request_id for item in before if isinstance(item, McpCall)}
    done |= {item.approval_request_id for item in history if isinstance(item, McpApprovalResponse)}
    found: list[ApprovedCall] = []
    denied: list[str] = []
    for answer, at in inputs:
        if not isinstance(answer, McpApprovalResponse):
            continue
        where = f"{at}.approval_request_id"
        request = requests.get(answer.approval_request_id)
        if request is None:
            raise InvalidRequest(
                f"There is no approval request '{answer.approval_request_id[:128]}' to answer.", param=where
            )
        if request.id in done:
            raise InvalidRequest(f"Approval request '{request.id}' has been answered already.", param=where)
        done.add(request.id)
        if not answer.approve:
            denied.append(answer.approval_request_id)
            continue
        source = next((source for source in sources if source.label == request.server_label), None)
        if source is None or not (request.id or "").endswith(source.server_digest):
            raise InvalidRequest(
                f"The approval is for the MCP server '{request.server_label}', which must be among the tools as it was "
                "when the approval was asked for.",
                param="tools",
            )
        found.append(ApprovedCall(request, source))
    return found, denied


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=DIGEST // 2).hexdigest()
