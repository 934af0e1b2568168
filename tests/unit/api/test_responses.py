"""The use case without HTTP: locks, two processes on one database, and clients that leave at the worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

from tests.unit.store.conftest import conversations, database, migrated, path, responses, url
from treadle.access.sealing import KeySealer
from treadle.api.locks import ConversationLocks
from treadle.api.responses import ResponseService
from treadle.api.tasks import Tasks
from treadle.engine.prepare import Preparation
from treadle.engine.recent import RecentHistories
from treadle.errors import ConversationLocked, InvalidRequest, NotFound, StorageFault
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.models.tokens import Tokens
from treadle.ports import Checkpoint, ConversationRow, SettledTurn
from treadle.scope import LOCAL, Principal, Scope
from treadle.store.conversations import SqlConversations
from treadle.store.db import Database
from treadle.store.responses import SqlResponses
from treadle.testing import Gate, ScriptedModel, says
from treadle.wire.responses import CreateResponse

__all__ = ["conversations", "database", "migrated", "path", "responses", "url"]

CONVERSATION = "conv_" + "0" * 48
Process = Callable[..., tuple[ResponseService, Tasks]]


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
async def process(
    responses: SqlResponses, conversations: SqlConversations, model: ScriptedModel
) -> AsyncIterator[Process]:
    """Makes services that share nothing but the database, as processes do."""
    row = ConversationRow(id=CONVERSATION, created_at=1)
    await conversations.create(LOCAL, row, [])
    made: list[Tasks] = []

    def make(store: SqlResponses = responses) -> tuple[ResponseService, Tasks]:
        router = ModelRouter({})
        router.add(ProviderEntry("scripted", model))
        preparation = Preparation(
            counter=Tokens(),
            router=router,
            responses=store,
            conversations=conversations,
            sealer=KeySealer(b"k" * 32),
            server_tools={},
            recent=RecentHistories(),
        )
        tasks = Tasks()
        made.append(tasks)
        return ResponseService(preparation, store, Tokens(), tasks, locks=ConversationLocks()), tasks

    yield make
    for tasks in made:
        await tasks.join(5)


def request(text: str = "x", **more: object) -> CreateResponse:
    return CreateResponse(model="scripted/m", input=text, conversation=CONVERSATION, **more)  # type: ignore[arg-type] # test data


async def texts(conversations: SqlConversations) -> int:
    page = await conversations.items(LOCAL, CONVERSATION, after=None, limit=100, order="asc")
    assert page is not None
    return len(page.items)


async def test_between_processes_the_slower_turn_is_told_and_its_failure_kept(
    process: Process, model: ScriptedModel, conversations: SqlConversations
) -> None:
    (one, _), (two, _) = process(), process()
    model.script(says("a"), says("b"))
    slow = await one.create(LOCAL, request())
    fast = await two.create(LOCAL, request())
    assert (await fast.result()).status == "completed"
    with pytest.raises(ConversationLocked):
        await slow.result()
    assert await texts(conversations) == 2
    kept = await one.get(LOCAL, slow.turn.response.id)
    assert (kept.status, kept.error is not None) == ("failed", True)


async def test_a_turn_whose_items_the_conversation_refuses_is_kept_as_a_failure(
    process: Process, model: ScriptedModel, conversations: SqlConversations, database: Database
) -> None:
    class Refusing(SqlResponses):
        async def settle(self, scope: Scope, turn: SettledTurn) -> Checkpoint:
            if turn.append_to_conversation:
                raise InvalidRequest("Item already in conversation.", param="items")
            return await super().settle(scope, turn)

    service, _ = process(Refusing(database))
    model.script(says("a"))
    refused = await service.create(LOCAL, request())
    with pytest.raises(InvalidRequest, match="already in conversation"):
        await refused.result()
    assert await texts(conversations) == 0
    kept = await service.get(LOCAL, refused.turn.response.id)
    assert (kept.status, kept.error is not None) == ("failed", True)


async def test_a_lock_is_the_owners_alone(process: Process) -> None:
    service, _ = process()
    held = await service.create(LOCAL, request())
    with pytest.raises(ConversationLocked):
        await service.create(LOCAL, request())
    # Somebody else's conversation does not exist, locked or not.
    with pytest.raises(NotFound):
        await service.create(Scope("default", Principal("somebody else")), request())
    assert held.turn.response.status == "in_progress"


class Slow(SqlResponses):
    """A store whose `settle` waits for a gate."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.reached, self.gate = Gate(), Gate()

    async def settle(self, scope: Scope, turn: SettledTurn) -> Checkpoint:
        self.reached.set()
        await self.gate.wait()
        return await super().settle(scope, turn)


async def test_a_client_that_leaves_while_its_turn_is_stored_does_not_undo_it(
    process: Process, model: ScriptedModel, database: Database, conversations: SqlConversations
) -> None:
    store = Slow(database)
    service, tasks = process(store)
    model.script(says("a"))
    run = await service.create(LOCAL, request())
    client = asyncio.create_task(run.result())
    await store.reached.within(5)
    seen = await service.get(LOCAL, run.turn.response.id)
    assert (seen.status, seen.usage, seen.completed_at) == ("in_progress", None, None)
    client.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client
    with pytest.raises(ConversationLocked):
        await service.create(LOCAL, request("too early"))
    store.gate.set()
    await tasks.join(5)
    assert (await service.get(LOCAL, run.turn.response.id)).status == "completed"
    assert await texts(conversations) == 2
    await service.create(LOCAL, request("now"))


async def test_a_client_that_leaves_before_leaves_the_truth(
    process: Process, model: ScriptedModel, conversations: SqlConversations
) -> None:
    service, tasks = process()
    never = Gate()
    model.script([*says("a"), never])
    run = await service.create(LOCAL, request())
    async with aclosing(run.__aiter__()) as batches:
        async for batch in batches:
            if any(type(event).__name__ == "OutputTextDelta" for event in batch):
                break
    await tasks.join(5)
    assert (await service.get(LOCAL, run.turn.response.id)).status == "cancelled"
    assert await texts(conversations) == 0
    await service.create(LOCAL, request("now"))


class Broken(SqlResponses):
    """A store that cannot write."""

    async def settle(self, scope: Scope, turn: SettledTurn) -> Checkpoint:
        raise StorageFault("The disk is full.")


async def test_a_turn_that_cannot_be_stored_fails_and_frees_its_conversation(
    process: Process, model: ScriptedModel, database: Database
) -> None:
    service, _ = process(Broken(database))
    model.script(says("a"), says("b"))
    for _ in range(2):
        run = await service.create(LOCAL, request())
        with pytest.raises(StorageFault):
            await run.result()
        assert run.turn.response.status == "failed"
