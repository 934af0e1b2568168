"""Conversations and their items."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from treadle.api.includes import shown
from treadle.api.locks import ConversationLocks
from treadle.api.paging import list_of
from treadle.engine.guarding import GuardRules
from treadle.engine.inputs import decode_inputs
from treadle.engine.recent import RecentHistories
from treadle.errors import InvalidRequest, NotFound
from treadle.ids import new_conversation_id, plausible
from treadle.ports import ConversationRow, Conversations, Order, StoredItem
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.conversations import (
    AddItems,
    Conversation,
    ConversationDeleted,
    CreateConversation,
    UpdateConversation,
)
from treadle.wire.items import ItemReference, decode_stored, encode_item, kind_of
from treadle.wire.lists import ItemList
from treadle.wire.responses import checked_metadata

_metadata = msgspec.json.Decoder(dict[str, str])


class ConversationService:
    """The use cases of `/v1/conversations`."""

    def __init__(
        self,
        conversations: Conversations,
        locks: ConversationLocks | None = None,
        recent: RecentHistories | None = None,
        guard: GuardRules | None = None,
    ) -> None:
        self._store = conversations
        self._locks = locks or ConversationLocks()
        self._recent = recent or RecentHistories()
        self._guard = guard or GuardRules()

    async def create(self, scope: Scope, request: CreateConversation) -> Conversation:
        items = await self._admitted(request.items or ())
        row = ConversationRow(
            id=new_conversation_id(), created_at=int(time.time()), metadata=encode(checked_metadata(request.metadata))
        )
        await self._store.create(scope, row, items)
        return _shown(row)

    async def get(self, scope: Scope, conversation_id: str) -> Conversation:
        row = await self._store.get(scope, _id(conversation_id))
        if row is None:
            raise _missing(conversation_id)
        return _shown(row)

    async def update(self, scope: Scope, conversation_id: str, request: UpdateConversation) -> Conversation:
        metadata = encode(checked_metadata(request.metadata))
        row = await self._store.update(scope, _id(conversation_id), metadata)
        if row is None:
            raise _missing(conversation_id)
        return _shown(row)

    async def delete(self, scope: Scope, conversation_id: str) -> ConversationDeleted:
        if not await self._store.delete(scope, _id(conversation_id)):
            raise _missing(conversation_id)
        return ConversationDeleted(conversation_id)

    async def add_items(
        self, scope: Scope, conversation_id: str, request: AddItems, include: Sequence[str]
    ) -> ItemList:
        items = await self._admitted(request.items)
        self._locks.check(scope, conversation_id)
        if not await self._store.append(scope, _id(conversation_id), items):
            raise _missing(conversation_id)
        return list_of(items, include, has_more=False)

    async def _admitted(self, raws: Sequence[Raw]) -> list[StoredItem]:
        """The items, judged by the server's guardrails: a later turn's model sees them without more ado."""
        items = _decoded(raws)
        if self._guard.standing:
            await self._guard.admit([decode_stored(item.kind, item.id, item.data) for item in items], "items")
        return items

    async def items(
        self, scope: Scope, conversation_id: str, *, after: str | None, limit: int, order: Order, include: Sequence[str]
    ) -> ItemList:
        page = await self._store.items(scope, _id(conversation_id), after=after, limit=limit, order=order)
        if page is None:
            raise _missing(conversation_id)
        return list_of(page.items, include, has_more=page.has_more)

    async def item(self, scope: Scope, conversation_id: str, item_id: str, include: Sequence[str]) -> Raw:
        name = _id(conversation_id)
        found = await self._store.item(scope, name, item_id) if plausible(item_id) else None
        if found is None:
            await self.get(scope, name)
            raise NotFound(f"Item '{item_id[:128]}' not found in this conversation.", param="item_id")
        return shown(found, include)

    async def delete_item(self, scope: Scope, conversation_id: str, item_id: str) -> Conversation:
        """Removes an item and returns the conversation, as OpenAI does."""
        conversation = await self.get(scope, conversation_id)
        if not plausible(item_id) or not await self._store.delete_item(scope, conversation_id, item_id):
            raise NotFound(f"Item '{item_id[:128]}' not found in this conversation.", param="item_id")
        self._recent.clear()  # a chain may have branched from here
        return conversation


def _id(conversation_id: str) -> str:
    if not conversation_id.startswith("conv_"):
        raise InvalidRequest(
            "Invalid 'conversation_id': the ids of conversations start with 'conv_'.", param="conversation_id"
        )
    if not plausible(conversation_id):
        raise _missing(conversation_id)
    return conversation_id


def _decoded(raws: Sequence[Raw]) -> list[StoredItem]:
    found: list[StoredItem] = []
    for item, at in decode_inputs(raws, "items"):
        if isinstance(item, ItemReference):
            raise InvalidRequest("A conversation holds items, not references to items.", param=f"{at}.type")
        found.append(StoredItem(item.id or "", kind_of(item), encode_item(item)))
    ids = [item.id for item in found]
    if len(ids) != len(set(ids)):
        raise InvalidRequest("Item already in conversation.", param="items")
    return found


def _shown(row: ConversationRow) -> Conversation:
    return Conversation(id=row.id, created_at=row.created_at, metadata=_metadata.decode(row.metadata))


def _missing(conversation_id: str) -> NotFound:
    return NotFound(f"Conversation '{conversation_id[:128]}' not found.", param="conversation_id")
