"""`/v1/conversations`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from treadle.api.conversations import ConversationService
from treadle.http import query
from treadle.http.bodies import read_json
from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import reply
from treadle.http.routes.parameters import AFTER, INCLUDE, ORDER, limit
from treadle.scope import LOCAL
from treadle.wire.conversations import (
    AddItems,
    Conversation,
    ConversationDeleted,
    CreateConversation,
    UpdateConversation,
)
from treadle.wire.lists import AnyItem, ItemList

_create = msgspec.json.Decoder(CreateConversation)
_update = msgspec.json.Decoder(UpdateConversation)
_add = msgspec.json.Decoder(AddItems)
_ONE = "/v1/conversations/{conversation_id}"


class ConversationRoutes:
    """Endpoints over the conversation use cases."""

    def __init__(self, service: ConversationService, max_body: int) -> None:
        self._service = service
        self._max_body = max_body

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path="/v1/conversations",
                name="createConversation",
                summary="Start a conversation.",
                action=self.create,
                body=CreateConversation,
                body_required=False,
                result=Conversation,
                statuses=(413, 415, 503),
            ),
            Endpoint(
                method="GET",
                path=_ONE,
                name="getConversation",
                summary="Retrieve a conversation.",
                action=self.get,
                result=Conversation,
                statuses=(400, 404, 503),
            ),
            Endpoint(
                method="POST",
                path=_ONE,
                name="updateConversation",
                summary="Replace a conversation's metadata.",
                action=self.update,
                body=UpdateConversation,
                result=Conversation,
                statuses=(404, 413, 415, 503),
            ),
            Endpoint(
                method="DELETE",
                path=_ONE,
                name="deleteConversation",
                summary="Delete a conversation.",
                action=self.delete,
                result=ConversationDeleted,
                statuses=(400, 404, 503),
            ),
            Endpoint(
                method="POST",
                path=_ONE + "/items",
                name="createConversationItems",
                summary="Add items.",
                action=self.add,
                body=AddItems,
                result=ItemList,
                statuses=(404, 413, 415, 503),
                parameters=INCLUDE,
            ),
            Endpoint(
                method="GET",
                path=_ONE + "/items",
                name="listConversationItems",
                summary="List items.",
                action=self.items,
                result=ItemList,
                statuses=(400, 404, 503),
                parameters=(AFTER, limit(20), ORDER, *INCLUDE),
            ),
            Endpoint(
                method="GET",
                path=_ONE + "/items/{item_id}",
                name="getConversationItem",
                summary="Retrieve an item.",
                action=self.item,
                result=AnyItem,
                statuses=(400, 404, 503),
                parameters=INCLUDE,
            ),
            Endpoint(
                method="DELETE",
                path=_ONE + "/items/{item_id}",
                name="deleteConversationItem",
                summary="Remove an item.",
                action=self.delete_item,
                result=Conversation,
                statuses=(400, 404, 503),
            ),
        ]

    async def create(self, request: Request) -> Answer:
        wanted = await read_json(request, _create, self._max_body, empty=b"{}")
        return reply(await self._service.create(LOCAL, wanted))

    async def get(self, request: Request) -> Answer:
        return reply(await self._service.get(LOCAL, request.path_params["conversation_id"]))

    async def update(self, request: Request) -> Answer:
        wanted = await read_json(request, _update, self._max_body)
        return reply(await self._service.update(LOCAL, request.path_params["conversation_id"], wanted))

    async def delete(self, request: Request) -> Answer:
        return reply(await self._service.delete(LOCAL, request.path_params["conversation_id"]))

    async def add(self, request: Request) -> Answer:
        wanted = await read_json(request, _add, self._max_body)
        conversation_id = request.path_params["conversation_id"]
        return reply(await self._service.add_items(LOCAL, conversation_id, wanted, query.include(request)))

    async def items(self, request: Request) -> Answer:
        return reply(
            await self._service.items(
                LOCAL,
                request.path_params["conversation_id"],
                after=query.text(request, "after"),
                limit=query.integer(request, "limit", 20, 1, 100),
                order=query.order(request),
                include=query.include(request),
            )
        )

    async def item(self, request: Request) -> Answer:
        ids = request.path_params
        return reply(await self._service.item(LOCAL, ids["conversation_id"], ids["item_id"], query.include(request)))

    async def delete_item(self, request: Request) -> Answer:
        ids = request.path_params
        return reply(await self._service.delete_item(LOCAL, ids["conversation_id"], ids["item_id"]))
