"""`/v1/health`, `/v1/version`, `/v1/providers`."""

from __future__ import annotations

from starlette.requests import Request

from treadle import __version__
from treadle.api.models import ModelService
from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import reply
from treadle.wire.models import Health, Provider, ProviderList, Version


class AdminRoutes:
    """What operators and clients ask about the server itself."""

    def __init__(self, models: ModelService) -> None:
        self._models = models

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/health",
                name="health",
                summary="Whether the server answers.",
                tags=("server",),
                action=self.health,
                result=Health,
            ),
            Endpoint(
                method="GET",
                path="/v1/version",
                name="version",
                summary="The server's version.",
                tags=("server",),
                action=self.version,
                result=Version,
            ),
            Endpoint(
                method="GET",
                path="/v1/providers",
                name="listProviders",
                summary="List configured providers.",
                tags=("server",),
                action=self.providers,
                result=ProviderList,
            ),
            Endpoint(
                method="GET",
                path="/v1/providers/{provider_id}",
                name="getProvider",
                summary="Retrieve a provider.",
                tags=("server",),
                action=self.provider,
                result=Provider,
                statuses=(404,),
            ),
        ]

    async def health(self, request: Request) -> Answer:
        return reply(Health())

    async def version(self, request: Request) -> Answer:
        return reply(Version(__version__))

    async def providers(self, request: Request) -> Answer:
        return reply(self._models.providers())

    async def provider(self, request: Request) -> Answer:
        return reply(self._models.provider(request.path_params["provider_id"]))
