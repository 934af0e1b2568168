"""Connectors: the configured MCP servers, and what they offer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from treadle.engine.prepare import Preparation
from treadle.errors import NotFound
from treadle.ports import Connector, Json, RemoteServer, RemoteTool
from treadle.wire.connectors import Connector as ShownConnector
from treadle.wire.connectors import ConnectorList, ConnectorTool, ConnectorToolList

_object = msgspec.json.Decoder(dict[str, Json])


class ConnectorService:
    """The use cases of the connector endpoints. All of it is reading."""

    def __init__(self, connectors: Mapping[str, Connector], preparation: Preparation) -> None:
        self._connectors = dict(connectors)
        self._preparation = preparation

    def all(self) -> ConnectorList:
        return ConnectorList([_shown(connector) for connector in self._connectors.values()])

    def get(self, connector_id: str) -> ShownConnector:
        return _shown(self._find(connector_id))

    async def tools(self, connector_id: str, authorization: str | None) -> ConnectorToolList:
        """The tools, listed with the caller's `authorization` if there is one. RemoteFault (424) if it cannot be."""
        connector = self._find(connector_id)
        headers = dict(connector.headers)
        if authorization:
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            headers["Authorization"] = f"Bearer {authorization}"
        server = RemoteServer(_label(connector), connector.url, tuple(headers.items()), by_operator=True)
        remote = self._preparation.remote
        if remote is None:
            raise NotFound("This server uses no MCP servers.")
        return ConnectorToolList([_tool(tool) for tool in await remote.list_tools(server)])

    async def tool(self, connector_id: str, name: str, authorization: str | None) -> ConnectorTool:
        for tool in (await self.tools(connector_id, authorization)).data:
            if tool.name == name:
                return tool
        raise NotFound(f"Connector '{connector_id[:128]}' has no tool '{name[:128]}'.", param="tool_name")

    def _find(self, connector_id: str) -> Connector:
        found = self._connectors.get(connector_id)
        if found is None:
            raise NotFound(f"Connector '{connector_id[:128]}' not found.", param="connector_id")
        return found


def _label(connector: Connector) -> str:
    return connector.label or connector.id


def _shown(connector: Connector) -> ShownConnector:
    return ShownConnector(
        connector_id=connector.id,
        url=connector.url.partition("?")[0],
        server_label=_label(connector),
        server_description=connector.description or None,
    )


def _tool(tool: RemoteTool) -> ConnectorTool:
    return ConnectorTool(name=tool.name, description=tool.description, input_schema=_object.decode(tool.input_schema))
