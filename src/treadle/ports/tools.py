"""Ports to tools that the server runs, and to the outside that they need."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from treadle.ports.models import ImagePart, Json, ModelFunction, ModelPart
from treadle.scope import Scope


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


class SearchResult(msgspec.Struct):
    url: str
    title: str
    text: str
    number: int = 0
    """Under which the model may cite it; given by what shows it to the model."""


class ToolOutcome(msgspec.Struct):
    """What a call gave: `text` goes to the model; `failed` marks the item."""

    text: str
    failed: bool = False
    images: list[ImagePart] = []
    """For models that see; the text says that they exist."""
    error: dict[str, Json] | None = None
    """The `error` object of an MCP call's item."""
    sources: list[SearchResult] = []
    """What the model may cite."""
    untrusted: bool = False
    """The text comes from outside and is shown to the model as data."""


class Runner(Protocol):
    """What runs a call."""

    exclusive: bool
    """Must not run together with other calls of its round."""

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        """Runs one call. `arguments` is a JSON object, already checked. May raise; dispatch turns that into a
        failed outcome. Cancelled when the client goes away."""
        ...


class ServerTool(Runner, Protocol):
    """A tool that the server runs itself, by the `type` under which it is registered."""

    def declare(self, declaration: ToolDeclaration) -> list[ModelFunction]:
        """The functions to offer the model. InvalidRequest for a bad declaration."""
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


class Fetched(Protocol):
    """What an address holds."""

    @property
    def content_type(self) -> str: ...

    @property
    def data(self) -> bytes: ...


class Fetcher(Protocol):
    """Gets what callers name: guarded, bounded in size and time."""

    async def fetch(self, url: str, *, param: str = "url") -> Fetched:
        """InvalidRequest, naming `param`, for a URL refused on sight; ToolFault for what cannot be had."""
        ...


class Approvals(Protocol):
    """Which approval requests have been answered. An answer counts once, whatever happens afterwards."""

    async def claim(self, scope: Scope, request_id: str) -> bool:
        """True for the first caller, durably; False for every later one."""
        ...


class Connector(msgspec.Struct, frozen=True):
    """A configured MCP server. `headers` never leave the server."""

    id: str
    url: str
    label: str = ""
    description: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    untrusted: bool = False


class AddressGuard(Protocol):
    """Which addresses may be connected to when somebody else than the operator named them (bug case 74)."""

    def check_url(self, url: str, param: str) -> None:
        """InvalidRequest, naming `param` and the setting that admits an address, for a URL refused on sight."""
        ...

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of `host`, all of them permitted. AddressRefused if any is not: connect to these, not to the
        name, so that nothing changes in between."""
        ...
