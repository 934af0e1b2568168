"""The connector endpoints, under both of OGX's paths."""

from __future__ import annotations

from starlette.requests import Request

from treadle.api.connectors import ConnectorService
from treadle.http import query
from treadle.http.endpoints import Answer, Endpoint, Parameter
from treadle.http.replies import reply
from treadle.wire.connectors import Connector, ConnectorList, ConnectorTool, ConnectorToolList

_PATHS = {"/v1alpha/admin/connectors": "", "/v1beta/connectors": "Beta"}
_AUTHORIZATION = Parameter(
    name="authorization", schema={"type": "string"}, description="Token for the server, without `Bearer`."
)


class ConnectorRoutes:
    """Endpoints over the connector use cases."""

    def __init__(self, service: ConnectorService) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [endpoint for path, suffix in _PATHS.items() for endpoint in self._at(path, suffix)]

    def _at(self, path: str, suffix: str) -> list[Endpoint]:
        one = path + "/{connector_id}"
        return [
            Endpoint(
                method="GET",
                path=path,
                name=f"listConnectors{suffix}",
                summary="List configured connectors.",
                action=self.all,
                result=ConnectorList,
            ),
            Endpoint(
                method="GET",
                path=one + "/tools",
                name=f"listConnectorTools{suffix}",
                summary="List a connector's tools.",
                action=self.tools,
                result=ConnectorToolList,
                statuses=(404, 424),
                parameters=(_AUTHORIZATION,),
            ),
            Endpoint(
                method="GET",
                path=one + "/tools/{tool_name}",
                name=f"getConnectorTool{suffix}",
                summary="Retrieve one of a connector's tools.",
                action=self.tool,
                result=ConnectorTool,
                statuses=(404, 424),
                parameters=(_AUTHORIZATION,),
            ),
            Endpoint(
                method="GET",
                path=one,
                name=f"getConnector{suffix}",
                summary="Retrieve a connector.",
                action=self.one,
                result=Connector,
                statuses=(404,),
            ),
        ]

    async def all(self, request: Request) -> Answer:
        return reply(self._service.all())

    async def one(self, request: Request) -> Answer:
        return reply(self._service.get(request.path_params["connector_id"]))

    async def tools(self, request: Request) -> Answer:
        token = query.text(request, "authorization")
        return reply(await self._service.tools(request.path_params["connector_id"], token))

    async def tool(self, request: Request) -> Answer:
        ids, token = request.path_params, query.text(request, "authorization")
        return reply(await self._service.tool(ids["connector_id"], ids["tool_name"], token))
