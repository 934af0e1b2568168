"""Ports to the store: responses, conversations, and the rows they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from treadle.ports.jobs import EventChunk, JobEnd, NewJob
from treadle.scope import Scope


class StoredItem(msgspec.Struct, frozen=True):
    """One entry of a thread. `data` is the item's JSON, complete with its id."""

    id: str
    kind: str
    data: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """A position in a thread: everything before `pos` (exclusive) is the history."""

    thread: int
    pos: int


class ResponseRow(msgspec.Struct, kw_only=True):
    """A response without its items. `data` is the JSON of all else that the response object shows."""

    id: str
    status: str
    model: str
    created_at: int
    completed_at: int | None = None
    previous: str | None = None
    conversation: str | None = None
    data: bytes = b"{}"


class StoredResponse(msgspec.Struct):
    row: ResponseRow
    inputs: list[StoredItem]
    outputs: list[StoredItem]


class SettledTurn(msgspec.Struct, kw_only=True):
    """All that one turn writes, in one transaction.

    `base` is where its history ends (None: it starts a thread). `conversation` set: append to that named thread
    at `base` or fail; else continue the thread of `base` if it is still its tip and unnamed, else branch.

    `job`: the job that made the turn ends with it. `events` go behind those of its log, and `jobs` are put.
    """

    row: ResponseRow
    inputs: list[StoredItem]
    outputs: list[StoredItem]
    base: Checkpoint | None = None
    append_to_conversation: bool = False
    job: JobEnd | None = None
    events: EventChunk | None = None
    jobs: Sequence[NewJob] = ()


class ItemPage(msgspec.Struct):
    items: list[StoredItem]
    has_more: bool


class ResponsePage(msgspec.Struct):
    responses: list[StoredResponse]
    has_more: bool


class ConversationRow(msgspec.Struct, kw_only=True):
    id: str
    created_at: int
    metadata: bytes = b"{}"


Order = Literal["asc", "desc"]


class Responses(Protocol):
    """Responses and the threads they are spans of. StorageFault when the database cannot be reached."""

    async def settle(self, scope: Scope, turn: SettledTurn) -> Checkpoint:
        """Items and row in one transaction, replacing an `in_progress` row of the same id. When it returns, all of
        it is durable; when it raises, none of it is there. ConversationLocked if another turn appended first,
        ClaimLost if `job` is not the caller's to end."""
        ...

    async def begin(self, scope: Scope, row: ResponseRow, inputs: list[StoredItem], lease_until: int) -> None:
        """Makes a running response visible. A row whose lease (Unix seconds) ran out reads as failed."""
        ...

    async def renew(self, scope: Scope, ids: Sequence[str], lease_until: int) -> None: ...

    async def queue(
        self,
        scope: Scope,
        row: ResponseRow,
        inputs: list[StoredItem],
        job: NewJob,
        *,
        most: int,
        events: EventChunk | None = None,
    ) -> None:
        """A response that a job will make: row, job and the beginning of its log in one transaction. It needs no
        lease; its job answers for it. QueueFull if as many as `most` are waiting, ConversationLocked if another
        response is being made in its conversation."""
        ...

    async def holder(self, scope: Scope, conversation_id: str) -> str | None:
        """A response that is visible and is still being made, or waits to be, in that conversation."""
        ...

    async def abandon(self, scope: Scope, response_id: str) -> None:
        """Removes the `in_progress` row that `begin` wrote."""
        ...

    async def get(self, scope: Scope, response_id: str) -> StoredResponse | None: ...

    async def page(
        self, scope: Scope, *, after: str | None, limit: int, order: Order, model: str | None
    ) -> ResponsePage:
        """InvalidRequest (`param="after"`) for an unknown cursor."""
        ...

    async def delete(self, scope: Scope, response_id: str) -> bool:
        """Hides the response and removes the items that no later response, branch or conversation needs."""
        ...

    async def checkpoint(self, scope: Scope, response_id: str) -> tuple[ResponseRow, Checkpoint] | None:
        """The response and the end of its span."""
        ...

    async def history(self, scope: Scope, checkpoint: Checkpoint) -> list[StoredItem]:
        """All items before the checkpoint, inherited ones included, in order: one query."""
        ...

    async def find_items(self, scope: Scope, ids: Sequence[str]) -> dict[str, StoredItem]:
        """Stored items by id, for `item_reference`."""
        ...


class Conversations(Protocol):
    """Conversations: threads with a name."""

    async def create(self, scope: Scope, row: ConversationRow, items: list[StoredItem]) -> None: ...

    async def get(self, scope: Scope, conversation_id: str) -> ConversationRow | None: ...

    async def update(self, scope: Scope, conversation_id: str, metadata: bytes) -> ConversationRow | None: ...

    async def delete(self, scope: Scope, conversation_id: str) -> bool:
        """Takes the name away; items go unless a response still needs them."""
        ...

    async def checkpoint(self, scope: Scope, conversation_id: str) -> Checkpoint | None: ...

    async def append(self, scope: Scope, conversation_id: str, items: list[StoredItem]) -> bool:
        """False if there is no such conversation. InvalidRequest for an item id it already holds."""
        ...

    async def items(
        self, scope: Scope, conversation_id: str, *, after: str | None, limit: int, order: Order
    ) -> ItemPage | None:
        """None if there is no such conversation; InvalidRequest (`param="after"`) for an unknown cursor."""
        ...

    async def item(self, scope: Scope, conversation_id: str, item_id: str) -> StoredItem | None: ...

    async def delete_item(self, scope: Scope, conversation_id: str, item_id: str) -> bool: ...
