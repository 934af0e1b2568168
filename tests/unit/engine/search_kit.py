"""What tests of file search share: vector stores in memory, and turns over them without a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.unit.store.on_sqlite import conversations, database, migrated, path, responses
from treadle.access.sealing import KeySealer
from treadle.engine.loop import run
from treadle.engine.prepare import Preparation, prepare
from treadle.engine.telling import FileSearchRules
from treadle.engine.turn import Plan, Turn
from treadle.errors import NotFound
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.models.tokens import Tokens
from treadle.ports import Capabilities, Passage, PassageQuery, Passages
from treadle.scope import LOCAL, Scope
from treadle.store.conversations import SqlConversations
from treadle.store.responses import SqlResponses
from treadle.testing import ScriptedModel
from treadle.testing.sequence import check_sequence
from treadle.wire.base import encode
from treadle.wire.responses import CreateResponse

__all__ = ["conversations", "database", "migrated", "path", "responses"]

WEAK = Capabilities(tools=False, context_window=8192)


def passage(number: int, text: str = "", score: float = 0.5, **more: Any) -> Passage:
    return Passage(f"file-{number}", f"{number}.md", score, text or f"Text {number}.", {}, **more)


class Shelf:
    """A `PassageSearch` over stores that hold what a test puts into them; a fault in one is raised or reported."""

    def __init__(self, **stores: list[Passage] | Exception) -> None:
        self.stores = stores
        self.asked: list[PassageQuery] = []

    async def check(self, scope: Scope, stores: Sequence[str], param: str) -> None:
        for store in stores:
            if store not in self.stores:
                raise NotFound(f"Vector store '{store}' not found.", param=param)

    async def passages(self, scope: Scope, query: PassageQuery) -> Passages:
        self.asked.append(query)
        await self.check(scope, query.stores, "vector_store_ids")
        found = Passages([], {})
        faults = [fault for store in query.stores if isinstance(fault := self.stores[store], Exception)]
        if len(faults) == len(query.stores):
            raise faults[0]
        for store in query.stores:
            held = self.stores[store]
            if isinstance(held, Exception):
                found.broken[store] = str(held)
            else:
                found.found += held
        found.found = sorted(found.found, key=lambda one: -one.score)[: query.limit]
        return found


class Desk:
    """Prepares and runs turns with a shelf."""

    def __init__(self, responses: SqlResponses, conversations: SqlConversations) -> None:
        self._stores = (responses, conversations)

    async def plan(self, shelf: Shelf, model: ScriptedModel, rules: FileSearchRules | None = None, **body: Any) -> Plan:
        router = ModelRouter({})
        router.add(ProviderEntry("scripted", model))
        given = Preparation(
            counter=Tokens(),
            router=router,
            responses=self._stores[0],
            conversations=self._stores[1],
            sealer=KeySealer(b"k" * 32),
            server_tools={},
            passages=shelf,
            file_search=rules or FileSearchRules(),
        )
        fields = {"model": "scripted/scripted", "input": "What is tea?"} | body
        return await prepare(LOCAL, msgspec.convert(fields, CreateResponse), given)

    async def ask(
        self, shelf: Shelf, model: ScriptedModel, rules: FileSearchRules | None = None, **body: Any
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The events, checked for legal order, and the response."""
        plan = await self.plan(shelf, model, rules, **body)
        turn = Turn(plan, plan.response)
        events = [json.loads(encode(event)) async for batch in run(turn, nothing) for event in batch]
        check_sequence(events)
        model.assert_consumed()
        response: dict[str, Any] = events[-1]["response"]
        return events, response


async def nothing(turn: Turn) -> None:
    """Nothing is stored here."""


@pytest.fixture
def desk(responses: SqlResponses, conversations: SqlConversations) -> Desk:
    return Desk(responses, conversations)


def tool(*stores: str, **more: Any) -> msgspec.Raw:
    return msgspec.Raw(encode({"type": "file_search", "vector_store_ids": list(stores), **more}))


def told(model: ScriptedModel, request: int = 1) -> str:
    content = model.requests[request].messages[-1].content
    assert isinstance(content, str)
    return content
