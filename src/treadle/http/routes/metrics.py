"""`/metrics`, where it is switched on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from treadle.http.endpoints import Answer, Endpoint


class MetricsRoutes:
    """For Prometheus. `read` gives the text, and may take a while."""

    def __init__(self, read: Callable[[], bytes], content_type: str) -> None:
        self._read = read
        self._type = content_type

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/metrics",
                name="metrics",
                summary="Metrics, as Prometheus reads them.",
                tags=("server",),
                action=self.metrics,
                result=str,
                produces="text/plain",
            )
        ]

    async def metrics(self, request: Request) -> Answer:
        return Response(await asyncio.to_thread(self._read), headers={"content-type": self._type})
