"""Declarations of tools that the server runs: MCP servers, web search and file search (contract §5.1)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from treadle.wire.extensions import FileSearchExtensions
from treadle.wire.retrieval import Filter, RankingOptions

Names = list[str]
MAX_STORES = 64
"""Vector stores of one `file_search`."""
Label = Annotated[str, Meta(min_length=1, max_length=128)]


class ToolFilter(msgspec.Struct, kw_only=True):
    """Tools by name, or all that their server marks as only reading. With both, a tool must meet both."""

    tool_names: Names | None = None
    read_only: bool | None = None


class ApprovalFilter(msgspec.Struct, kw_only=True):
    """Which tools ask and which do not; one that is in neither asks. Lists of names are OGX's spelling."""

    always: ToolFilter | Names | None = None
    never: ToolFilter | Names | None = None


class McpDeclaration(msgspec.Struct, kw_only=True):
    """An MCP server to use: by address, or by the id of a configured connector."""

    server_label: Label
    server_url: Annotated[str, Meta(max_length=4096)] | None = None
    connector_id: str | None = None
    server_description: str | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    allowed_tools: ToolFilter | Names | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None


class Location(msgspec.Struct, kw_only=True):
    type: Literal["approximate"] = "approximate"
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class DomainFilter(msgspec.Struct, kw_only=True):
    allowed_domains: Names | None = None
    blocked_domains: Names | None = None


class WebSearchDeclaration(msgspec.Struct, kw_only=True):
    search_context_size: Literal["low", "medium", "high"] | None = None
    filters: DomainFilter | None = None
    user_location: Location | None = None
    external_web_access: bool | None = None


class FileSearchDeclaration(FileSearchExtensions, kw_only=True):
    """Vector stores to search, and within which bounds."""

    vector_store_ids: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(min_length=1, max_length=MAX_STORES)
    ]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    filters: Filter | None = None
    ranking_options: RankingOptions | None = None


mcp_decoder = msgspec.json.Decoder(McpDeclaration)
web_search_decoder = msgspec.json.Decoder(WebSearchDeclaration)
file_search_decoder = msgspec.json.Decoder(FileSearchDeclaration)

WEB_SEARCH = frozenset({"web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"})


def names_tool(given: ToolFilter | Names | None, name: str, read_only: bool) -> bool:
    """Whether a filter names the tool. None names nothing; a filter without conditions names all."""
    if given is None:
        return False
    if isinstance(given, list):
        return name in given
    if given.tool_names is not None and name not in given.tool_names:
        return False
    return given.read_only is None or given.read_only == read_only
