"""`/v1/vector-io`: OGX's chunks with ready vectors."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.api.vector_io import VectorIoService
from treadle.http.bodies import read_json
from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import reply
from treadle.scope import LOCAL
from treadle.wire.vector_io import InsertChunks, QueryChunks, QueryResult

_insert = msgspec.json.Decoder(InsertChunks)
_query = msgspec.json.Decoder(QueryChunks)


class VectorIoRoutes:
    """Endpoints over the use cases of chunks."""

    def __init__(self, chunks: VectorIoService, max_body: int) -> None:
        self._chunks = chunks
        self._max_body = max_body

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path="/v1/vector-io/insert",
                name="insertChunks",
                summary="Put chunks with their vectors into a vector store.",
                action=self.insert,
                body=InsertChunks,
                success=204,
                statuses=(404, 413, 415, 503),
            ),
            Endpoint(
                method="POST",
                path="/v1/vector-io/query",
                name="queryChunks",
                summary="Search a vector store for chunks.",
                action=self.query,
                body=QueryChunks,
                result=QueryResult,
                statuses=(404, 413, 415, 503),
                passes_refusals=True,
            ),
        ]

    async def insert(self, request: Request) -> Answer:
        await self._chunks.insert(LOCAL, await read_json(request, _insert, self._max_body))
        return Response(status_code=204)

    async def query(self, request: Request) -> Answer:
        return reply(await self._chunks.query(LOCAL, await read_json(request, _query, self._max_body)))
