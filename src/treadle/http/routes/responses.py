"""`/v1/responses`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from treadle.api.background import BackgroundService
from treadle.api.compaction import CompactionService
from treadle.api.responses import ResponseService
from treadle.http import query
from treadle.http.bodies import read_json
from treadle.http.endpoints import Answer, Endpoint, Parameter
from treadle.http.replies import reply
from treadle.http.routes.parameters import AFTER, BEFORE, INCLUDE, ORDER, limit
from treadle.http.sse import EventStream, Followed, Whole
from treadle.scope import LOCAL
from treadle.wire.lists import ItemList, ResponseList
from treadle.wire.responses import (
    CompactedResponse,
    CompactResponse,
    CountTokens,
    CreateResponse,
    InputTokens,
    Response,
    ResponseDeleted,
)

_create = msgspec.json.Decoder(CreateResponse)
_compact = msgspec.json.Decoder(CompactResponse)
_count = msgspec.json.Decoder(CountTokens)

TO_COME: dict[tuple[str, str], str] = {}
"""What the API has and this server has not yet."""


class ResponseRoutes:
    """Endpoints over the response use cases."""

    def __init__(
        self,
        service: ResponseService,
        background: BackgroundService,
        compaction: CompactionService,
        max_body: int,
        keep_alive: float,
    ) -> None:
        self._compaction = compaction
        self._service = service
        self._background = background
        self._max_body = max_body
        self._keep_alive = keep_alive

    def endpoints(self) -> list[Endpoint]:
        stream = Parameter(
            name="stream",
            schema={"type": "boolean", "default": False},
            description="The events of a response made with `background` and `stream`, to its end.",
        )
        after = Parameter(
            name="starting_after",
            schema={"type": "integer", "minimum": 0},
            description="With `stream`: only events with greater sequence numbers.",
        )
        return [
            Endpoint(
                method="POST",
                path="/v1/responses",
                name="createResponse",
                summary="Make a response.",
                action=self.create,
                body=CreateResponse,
                result=Response,
                streams=True,
                events={"$ref": "#/components/schemas/ResponseStreamEvent"},
                statuses=(404, 409, 413, 415, 429, 503),
                passes_refusals=True,
            ),
            Endpoint(
                method="GET",
                path="/v1/responses",
                name="listResponses",
                summary="List stored responses.",
                action=self.page,
                result=ResponseList,
                statuses=(503,),
                parameters=(AFTER, limit(50), ORDER, Parameter(name="model", schema={"type": "string"})),
            ),
            Endpoint(
                method="POST",
                path="/v1/responses/compact",
                name="compactResponse",
                summary="Make a history short: the user's messages, and one compaction for all else.",
                action=self.compact,
                body=CompactResponse,
                result=CompactedResponse,
                statuses=(404, 413, 415, 429, 502, 503, 504),
                passes_refusals=True,
            ),
            Endpoint(
                method="POST",
                path="/v1/responses/input_tokens",
                name="countInputTokens",
                summary="Count the tokens of a request without running it.",
                action=self.count,
                body=CountTokens,
                result=InputTokens,
                statuses=(404, 413, 415, 502, 503, 504),
            ),
            Endpoint(
                method="GET",
                path="/v1/responses/{response_id}",
                name="getResponse",
                summary="Retrieve a response.",
                action=self.get,
                result=Response,
                streams=True,
                events={"$ref": "#/components/schemas/ResponseStreamEvent"},
                statuses=(404, 503),
                parameters=(*INCLUDE, stream, after),
            ),
            Endpoint(
                method="POST",
                path="/v1/responses/{response_id}/cancel",
                name="cancelResponse",
                summary="Cancel a response that is made in the background.",
                action=self.cancel,
                result=Response,
                statuses=(400, 404, 503),
            ),
            Endpoint(
                method="DELETE",
                path="/v1/responses/{response_id}",
                name="deleteResponse",
                summary="Delete a response.",
                action=self.delete,
                result=ResponseDeleted,
                statuses=(400, 404, 503),
            ),
            Endpoint(
                method="GET",
                path="/v1/responses/{response_id}/input_items",
                name="listInputItems",
                summary="List what a response was given.",
                action=self.input_items,
                result=ItemList,
                statuses=(404, 503),
                parameters=(AFTER, BEFORE, limit(20), ORDER, *INCLUDE),
            ),
        ]

    async def create(self, request: Request) -> Answer:
        wanted = await read_json(request, _create, self._max_body)
        if wanted.background:
            queued = await self._background.create(LOCAL, wanted)
            return await self._events(queued.id, -1) if wanted.stream else reply(queued)
        run = await self._service.create(LOCAL, wanted)
        return EventStream(run, self._keep_alive) if wanted.stream else Whole(run)

    async def page(self, request: Request) -> Answer:
        return reply(
            await self._service.page(
                LOCAL,
                after=query.text(request, "after"),
                limit=query.integer(request, "limit", 50, 1, 100),
                order=query.order(request),
                model=query.text(request, "model"),
            )
        )

    async def count(self, request: Request) -> Answer:
        return reply(await self._service.count_tokens(LOCAL, await read_json(request, _count, self._max_body)))

    async def compact(self, request: Request) -> Answer:
        return reply(await self._compaction.compact(LOCAL, await read_json(request, _compact, self._max_body)))

    async def get(self, request: Request) -> Answer:
        response_id = request.path_params["response_id"]
        if query.boolean(request, "stream"):
            return await self._events(response_id, query.integer(request, "starting_after", -1, 0, 2**53))
        return reply(await self._service.get(LOCAL, response_id, query.include(request)))

    async def cancel(self, request: Request) -> Answer:
        return reply(await self._background.cancel(LOCAL, request.path_params["response_id"]))

    async def delete(self, request: Request) -> Answer:
        return reply(await self._background.delete(LOCAL, request.path_params["response_id"]))

    async def _events(self, response_id: str, after: int) -> Answer:
        return Followed(await self._background.events(LOCAL, response_id, after), self._keep_alive)

    async def input_items(self, request: Request) -> Answer:
        return reply(
            await self._service.input_items(
                LOCAL,
                request.path_params["response_id"],
                after=query.text(request, "after"),
                before=query.text(request, "before"),
                limit=query.integer(request, "limit", 20, 1, 100),
                order=query.order(request),
                include=query.include(request),
            )
        )
