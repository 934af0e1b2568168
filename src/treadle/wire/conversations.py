"""Conversations and the bodies of their endpoints (contract §10)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from treadle.wire.responses import Metadata

_Item = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/InputItem"})]


class CreateConversation(msgspec.Struct, kw_only=True):
    items: Annotated[list[_Item], Meta(max_length=20)] | None = None
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, kw_only=True):
    metadata: Metadata | None


class AddItems(msgspec.Struct, kw_only=True):
    items: Annotated[list[_Item], Meta(min_length=1, max_length=20)]


class Conversation(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


class ConversationDeleted(msgspec.Struct):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True
