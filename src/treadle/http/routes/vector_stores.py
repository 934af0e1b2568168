"""`/v1/vector_stores`: stores and searches. Their files are in `vector_files.py`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from treadle.api.search import SearchService
from treadle.api.vector_stores import VectorStoreService
from treadle.http import query
from treadle.http.bodies import read_json
from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import pollable, reply
from treadle.http.routes.parameters import AFTER, BEFORE, ORDER, limit
from treadle.scope import LOCAL
from treadle.wire.vector_stores import (
    CreateVectorStore,
    SearchResultsPage,
    SearchVectorStore,
    UpdateVectorStore,
    VectorStore,
    VectorStoreDeleted,
    VectorStoreList,
)

_create = msgspec.json.Decoder(CreateVectorStore)
_update = msgspec.json.Decoder(UpdateVectorStore)
_search = msgspec.json.Decoder(SearchVectorStore)
STORES = "/v1/vector_stores"
ONE_STORE = STORES + "/{vector_store_id}"


class VectorStoreRoutes:
    """Endpoints over the use cases of vector stores."""

    def __init__(self, stores: VectorStoreService, search: SearchService, max_body: int) -> None:
        self._stores = stores
        self._search = search
        self._max_body = max_body

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path=STORES,
                name="createVectorStore",
                summary="Create a vector store.",
                action=self.create,
                body=CreateVectorStore,
                body_required=False,
                result=VectorStore,
                statuses=(404, 413, 415, 503),
                passes_refusals=True,
            ),
            Endpoint(
                method="GET",
                path=STORES,
                name="listVectorStores",
                summary="List vector stores.",
                action=self.list,
                result=VectorStoreList,
                statuses=(400, 503),
                parameters=(AFTER, BEFORE, limit(20), ORDER),
            ),
            Endpoint(
                method="GET",
                path=ONE_STORE,
                name="getVectorStore",
                summary="Retrieve a vector store.",
                action=self.get,
                result=VectorStore,
                statuses=(404, 503),
            ),
            Endpoint(
                method="POST",
                path=ONE_STORE,
                name="modifyVectorStore",
                summary="Change a vector store.",
                action=self.update,
                body=UpdateVectorStore,
                result=VectorStore,
                statuses=(404, 413, 415, 503),
            ),
            Endpoint(
                method="DELETE",
                path=ONE_STORE,
                name="deleteVectorStore",
                summary="Delete a vector store; the Files stay.",
                action=self.delete,
                result=VectorStoreDeleted,
                statuses=(404, 503),
            ),
            Endpoint(
                method="POST",
                path=ONE_STORE + "/search",
                name="searchVectorStore",
                summary="Search a vector store.",
                action=self.search,
                body=SearchVectorStore,
                result=SearchResultsPage,
                statuses=(404, 413, 415, 503),
                passes_refusals=True,
            ),
        ]

    async def create(self, request: Request) -> Answer:
        wanted = await read_json(request, _create, self._max_body, empty=b"{}")
        return pollable(await self._stores.create(LOCAL, wanted))

    async def list(self, request: Request) -> Answer:
        return reply(
            await self._stores.list(
                LOCAL,
                after=query.text(request, "after"),
                before=query.text(request, "before"),
                limit=query.integer(request, "limit", 20, 1, 100),
                order=query.order(request),
            )
        )

    async def get(self, request: Request) -> Answer:
        return pollable(await self._stores.get(LOCAL, _id(request)))

    async def update(self, request: Request) -> Answer:
        wanted = await read_json(request, _update, self._max_body)
        return pollable(await self._stores.update(LOCAL, _id(request), wanted))

    async def delete(self, request: Request) -> Answer:
        return reply(await self._stores.delete(LOCAL, _id(request)))

    async def search(self, request: Request) -> Answer:
        wanted = await read_json(request, _search, self._max_body)
        return reply(await self._search.search(LOCAL, _id(request), wanted))


def _id(request: Request) -> str:
    found: str = request.path_params["vector_store_id"]
    return found
