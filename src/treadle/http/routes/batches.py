"""`/v1/batches`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from treadle.api.batches import BatchService
from treadle.http import query
from treadle.http.bodies import read_json
from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import reply
from treadle.http.routes.parameters import AFTER, limit
from treadle.scope import LOCAL
from treadle.wire.batches import Batch, BatchList, CreateBatch

_create = msgspec.json.Decoder(CreateBatch)
BATCHES = "/v1/batches"


class BatchRoutes:
    """Endpoints over the use cases of batches."""

    def __init__(self, batches: BatchService, max_body: int) -> None:
        self._batches = batches
        self._max_body = max_body

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path=BATCHES,
                name="createBatch",
                summary="Run the requests of a file.",
                action=self.create,
                body=CreateBatch,
                result=Batch,
                statuses=(409, 413, 415, 429, 503),
            ),
            Endpoint(
                method="GET",
                path=BATCHES,
                name="listBatches",
                summary="List batches, newest first.",
                action=self.list,
                result=BatchList,
                statuses=(400, 503),
                parameters=(AFTER, limit(20)),
            ),
            Endpoint(
                method="GET",
                path=BATCHES + "/{batch_id}",
                name="getBatch",
                summary="Retrieve a batch.",
                action=self.get,
                result=Batch,
                statuses=(404, 503),
            ),
            Endpoint(
                method="POST",
                path=BATCHES + "/{batch_id}/cancel",
                name="cancelBatch",
                summary="Cancel a batch; what is done by then stays.",
                action=self.cancel,
                result=Batch,
                statuses=(404, 409, 503),
            ),
        ]

    async def create(self, request: Request) -> Answer:
        return reply(await self._batches.create(LOCAL, await read_json(request, _create, self._max_body)))

    async def list(self, request: Request) -> Answer:
        return reply(
            await self._batches.page(
                LOCAL,
                after=query.text(request, "after"),
                limit=query.integer(request, "limit", 20, 1, 100),
                order="desc",
            )
        )

    async def get(self, request: Request) -> Answer:
        return reply(await self._batches.get(LOCAL, request.path_params["batch_id"]))

    async def cancel(self, request: Request) -> Answer:
        return reply(await self._batches.cancel(LOCAL, request.path_params["batch_id"]))
