"""Connectors and their tools, as OGX's clients read them (contract §15)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw


class Connector(msgspec.Struct, kw_only=True):
    """`server_label` falls back to the id. Headers and credentials are never shown."""

    connector_id: str
    connector_type: Literal["mcp"] = "mcp"
    url: str
    server_label: str
    server_name: str | None = None
    server_description: str | None = None
    server_version: str | None = None


class ConnectorList(msgspec.Struct):
    data: list[Connector]


class ConnectorTool(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    input_schema: dict[str, Raw] = {}


class ConnectorToolList(msgspec.Struct):
    data: list[ConnectorTool]
