"""Background responses without HTTP: for whom they are made, databases that fail, tools that do not let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec import Raw

from tests.unit.store.conftest import conversations, migrated, path
from tests.unit.store.on_sqlite import database, responses
from treadle.access.sealing import KeySealer
from treadle.api.background import RUNNING, BackgroundRules, BackgroundService
from treadle.api.background_run import BackgroundRun
from treadle.api.event_writer import EventWriter
from treadle.api.responses import ResponseService
from treadle.api.tasks import Tasks
from treadle.engine.prepare import Preparation
from treadle.errors import NotFound, StorageFault
from treadle.jobs.local import LocalQueue
from treadle.jobs.workers import Pace
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.models.tokens import Tokens
from treadle.ports import Checkpoint, Job, ModelFunction, NewJob, SettledTurn, ToolDeclaration, ToolOutcome
from treadle.scope import Principal, Scope
from treadle.store.conversations import SqlConversations
from treadle.store.db import Database
from treadle.store.event_log import SqlEventLog
from treadle.store.jobs import SqlJobs
from treadle.store.responses import SqlResponses
from treadle.testing import Gate, ScriptedModel, calls, says
from treadle.testing.frames import parse_sse
from treadle.testing.sequence import check_sequence
from treadle.wire.responses import CreateResponse, Response

__all__ = ["conversations", "database", "migrated", "path", "responses"]

ALICE = Scope("acme", Principal("alice", {"roles": ("admin",)}))
BOB = Scope("acme", Principal("bob"))
CLING = [Raw(b'{"type":"cling"}')]


class Flaky(SqlResponses):
    """A store whose database cannot be written for the first `faults` ends of turns."""

    faults = 0

    async def settle(self, scope: Scope, turn: SettledTurn) -> Checkpoint:
        if self.faults:
            self.faults -= 1
            raise StorageFault("The disk is full.")
        return await super().settle(scope, turn)


class Stubborn:
    """A tool that notes for whom it runs, and that waits for `gate` even when it is told to stop."""

    exclusive = False

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.running, self.gate = Gate(), Gate()

    def declare(self, declaration: ToolDeclaration) -> list[ModelFunction]:
        return [ModelFunction(name="cling")]

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        self.scopes.append(scope)
        self.running.set()
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
        return ToolOutcome("let go")


class Place:
    """A server's worth of background work on one database."""

    def __init__(self, database: Database, conversations: SqlConversations, model: ScriptedModel) -> None:
        self.store = Flaky(database)
        self.jobs, self.events, self.tasks = SqlJobs(database), SqlEventLog(database), Tasks()
        self.tool = Stubborn()
        router = ModelRouter({})
        router.add(ProviderEntry("scripted", model))
        sealer = KeySealer(b"k" * 32)
        preparation = Preparation(
            counter=Tokens(),
            router=router,
            responses=self.store,
            conversations=conversations,
            sealer=sealer,
            server_tools={"cling": self.tool},
        )
        self.responses = ResponseService(preparation, self.store, Tokens(), self.tasks)
        self.queue = LocalQueue(self.jobs, Pace(poll=0.2, watch=0.2))
        self.ended: list[tuple[Scope, str]] = []
        writer = EventWriter(self.events, self.tasks.spawn)
        self.service = BackgroundService(
            self.responses,
            self.store,
            self.jobs,
            self.events,
            self.queue,
            sealer,
            writer,
            BackgroundRules(),
            notices=self._notice,
        )
        runner = BackgroundRun(self.service, self.responses, self.events, writer, sealer, timeout_seconds=10)
        self.queue.handle("response", runner, workers=2)

    def _notice(self, scope: Scope, response: Response) -> Sequence[NewJob]:
        self.ended.append((scope, response.status))
        return [NewJob(id=f"told_{response.id}", kind="told")]

    async def outcome(self, scope: Scope, response_id: str) -> Response:
        async with asyncio.timeout(15):
            while (found := await self.responses.get(scope, response_id)).status in RUNNING:
                await asyncio.sleep(0.01)
        return found

    async def stop(self) -> None:
        self.tool.gate.set()
        await self.queue.stop()
        await self.tasks.join(5)


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
async def place(database: Database, conversations: SqlConversations, model: ScriptedModel) -> AsyncIterator[Place]:
    found = Place(database, conversations, model)
    await found.queue.start()
    yield found
    await found.stop()


def request(**more: object) -> CreateResponse:
    return CreateResponse(model="scripted/m", input="x", background=True, **more)  # type: ignore[arg-type] # test data


@pytest.mark.behaviour("bug-75")
async def test_a_job_works_as_whoever_asked_for_it(place: Place, model: ScriptedModel) -> None:
    place.tool.gate.set()
    model.script(calls("cling"), says("Alice's."), calls("cling"), says("Bob's."))
    for scope, said in ((ALICE, "Alice's."), (BOB, "Bob's.")):
        queued = await place.service.create(scope, request(tools=CLING))
        done = await place.outcome(scope, queued.id)
        assert said.encode() in bytes(done.output[-1])
    assert place.tool.scopes == [ALICE, BOB]
    assert place.ended == [(ALICE, "completed"), (BOB, "completed")]
    with pytest.raises(NotFound):
        await place.responses.get(ALICE, queued.id)
    with pytest.raises(NotFound):
        await place.service.cancel(ALICE, queued.id)


@pytest.mark.behaviour("bug-69")
async def test_an_end_that_cannot_be_written_is_tried_again(
    place: Place, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    place.store.faults = 2
    model.script(says("Kept after all."))
    queued = await place.service.create(ALICE, request(stream=True))
    done = await place.outcome(ALICE, queued.id)
    assert done.status == "completed"
    assert caplog.text.count("could not be stored and is tried again: The disk is full.") == 2
    content = b"".join([data async for data in await place.service.events(ALICE, queued.id, -1)])
    check_sequence(parse_sse(content + b"data: [DONE]\n\n"))
    assert len(model.requests) == 1


@pytest.mark.behaviour("background-cancel")
async def test_a_tool_that_does_not_let_go_cannot_keep_a_response_from_being_cancelled(
    place: Place, model: ScriptedModel
) -> None:
    model.script(calls("cling"), says("Too late."))
    queued = await place.service.create(ALICE, request(tools=CLING))
    await place.tool.running.within()
    cancelled = await place.service.cancel(ALICE, queued.id)
    assert cancelled.status == "cancelled"
    place.tool.gate.set()
    await asyncio.sleep(0.2)
    assert (await place.responses.get(ALICE, queued.id)).status == "cancelled"
    assert await place.jobs.cancel(ALICE, queued.id) is None


async def test_what_is_told_with_an_end_is_put_with_it(place: Place, model: ScriptedModel) -> None:
    model.script(says("Done."))
    queued = await place.service.create(ALICE, request())
    await place.outcome(ALICE, queued.id)
    (told,) = await place.jobs.claim("told", "c", 1 << 40, 1)
    assert isinstance(told, Job)
    assert (told.id, told.scope) == (f"told_{queued.id}", ALICE)
