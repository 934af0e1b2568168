"""`/openapi.json`, and `/docs`, a page that shows it. Both are made when first asked for, not at the start."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import JSON
from treadle.wire.base import encode

HTML = "text/html"
# The page's own script and style, and the document: nothing else, and nothing from elsewhere.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"


class OpenApiRoutes:
    """The document of the endpoints it was given and of its own."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = [*endpoints, *self.endpoints()]

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/openapi.json", name="openapi", summary="This document.", action=self.document
            ),
            Endpoint(
                method="GET",
                path="/docs",
                name="docs",
                summary="This document, to read.",
                action=self.page,
                produces=HTML,
            ),
        ]

    async def document(self, request: Request) -> Answer:
        return Response(self._document, media_type=JSON)

    async def page(self, request: Request) -> Answer:
        return Response(self._page, media_type=HTML, headers={"content-security-policy": _POLICY})

    @cached_property
    def _document(self) -> bytes:
        from treadle.http.document import openapi

        return encode(openapi(self._endpoints))

    @cached_property
    def _page(self) -> bytes:
        return Path(__file__).with_name("docs.html").read_bytes()
