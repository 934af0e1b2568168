"""Jobs and event logs: one worker for each job, in whichever process; what is written counts only under its claim."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.unit.store.conftest import Another
from tests.unit.store.support import ALICE, BOB, NOW
from treadle.errors import ClaimLost, ConversationLocked, QueueFull
from treadle.ports import (
    ConversationRow,
    EventChunk,
    Job,
    JobEnd,
    LogState,
    NewJob,
    ResponseRow,
    SettledTurn,
    StoredItem,
)
from treadle.scope import Principal, Scope
from treadle.store.conversations import SqlConversations
from treadle.store.db import Database
from treadle.store.event_log import SqlEventLog
from treadle.store.jobs import SqlJobs
from treadle.store.responses import SqlResponses, fail_interrupted

INPUT = StoredItem("msg_1", "message", b'{"id":"msg_1"}')


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jobs(database: Database, clock: Clock) -> SqlJobs:
    return SqlJobs(database, clock=clock)


@pytest.fixture
def responses(database: Database, clock: Clock) -> SqlResponses:
    return SqlResponses(database, clock=clock)


@pytest.fixture
def events(database: Database) -> SqlEventLog:
    return SqlEventLog(database)


def row(response_id: str = "resp_1", status: str = "queued", conversation: str | None = None) -> ResponseRow:
    return ResponseRow(id=response_id, status=status, model="m", created_at=NOW, conversation=conversation)


def job(job_id: str = "resp_1", kind: str = "response", delay: float = 0.0) -> NewJob:
    return NewJob(id=job_id, kind=kind, payload=b"secret", delay=delay)


async def claimed(jobs: SqlJobs, claim: str = "mine", kind: str = "response", limit: int = 1) -> list[Job]:
    return await jobs.claim(kind, claim, NOW + 30, limit)


async def test_a_job_says_for_whom_with_all_that_was_known_of_them(jobs: SqlJobs) -> None:
    scope = Scope("acme", Principal("carol", {"roles": ("admin", "dev")}))
    await jobs.put(scope, job())
    (found,) = await claimed(jobs)
    assert found.scope == scope
    assert (found.id, found.kind, found.payload, found.claim) == ("resp_1", "response", b"secret", "mine")
    assert (found.attempts, found.acted, found.cancelled, found.created_at) == (1, False, False, NOW * 1000)


async def test_only_due_jobs_of_the_kind_are_claimed_and_the_oldest_first(jobs: SqlJobs, clock: Clock) -> None:
    await jobs.put(ALICE, job("later", delay=10))
    await jobs.put(ALICE, job("other", kind="batch"))
    await jobs.put(ALICE, job("b"))
    clock.now += 1
    await jobs.put(BOB, job("c"))
    assert [one.id for one in await claimed(jobs, limit=1)] == ["b"]
    assert [one.id for one in await claimed(jobs, limit=5)] == ["c"]
    clock.now += 10
    assert [one.id for one in await claimed(jobs, limit=5)] == ["later"]
    assert await claimed(jobs, limit=0) == []


async def test_processes_that_ask_at_once_never_get_the_same_job(jobs: SqlJobs, another: Another, clock: Clock) -> None:
    for number in range(20):
        await jobs.put(ALICE, job(f"j{number:02}"))
    others = [jobs, *[SqlJobs(await another(), clock=clock) for _ in range(3)]]
    found = await asyncio.gather(*(claimed(one, f"c{n}", limit=3) for n, one in enumerate(others * 2)))
    ids = [one.id for some in found for one in some]
    while rest := await claimed(jobs, "rest", limit=5):
        ids += [one.id for one in rest]
    assert sorted(ids) == [f"j{number:02}" for number in range(20)]


async def test_a_claim_ends_with_its_lease_and_then_counts_no_more(jobs: SqlJobs, clock: Clock) -> None:
    await jobs.put(ALICE, job())
    (first,) = await claimed(jobs, "first")
    assert await claimed(jobs, "second") == []
    assert await jobs.renew([first], NOW + 60) == {"resp_1": False}
    clock.now += 61
    (second,) = await claimed(jobs, "second")
    assert second.attempts == 2
    assert await jobs.renew([first], NOW + 90) == {}
    with pytest.raises(ClaimLost):
        await jobs.note_acted(first.scope, first)
    await jobs.finish(first.scope, first)
    await jobs.release(first.scope, first)
    assert await jobs.renew([second], NOW + 90) == {"resp_1": False}


async def test_what_is_given_back_waits_and_counts_if_it_is_to(jobs: SqlJobs, clock: Clock) -> None:
    await jobs.put(ALICE, job())
    (found,) = await claimed(jobs)
    await jobs.release(found.scope, found, counted=False)
    (found,) = await claimed(jobs)
    assert found.attempts == 1
    await jobs.note_acted(found.scope, found)
    await jobs.release(found.scope, found, delay=5)
    assert await claimed(jobs) == []
    clock.now += 5
    (found,) = await claimed(jobs)
    assert (found.attempts, found.acted) == (2, True)
    await jobs.finish(found.scope, found)
    clock.now += 100
    assert await claimed(jobs) == []


async def test_as_many_wait_as_may(jobs: SqlJobs) -> None:
    for number in range(2):
        await jobs.put(ALICE, job(f"j{number}"), most=2)
    with pytest.raises(QueueFull):
        await jobs.put(BOB, job("j3"), most=2)
    await jobs.put(BOB, job("b", kind="batch"), most=2)
    await claimed(jobs)
    await jobs.put(BOB, job("j3"), most=2)


async def test_a_cancel_tells_whether_somebody_works(jobs: SqlJobs) -> None:
    await jobs.put(ALICE, job())
    assert await jobs.cancel(BOB, "resp_1") is None
    assert await jobs.cancel(ALICE, "resp_1") is False
    (found,) = await claimed(jobs)
    assert found.cancelled
    assert await jobs.cancel(ALICE, "resp_1") is True
    assert await jobs.renew([found], NOW + 60) == {"resp_1": True}
    assert await jobs.cancel(ALICE, "gone") is None


async def test_a_queued_response_and_its_job_come_together_and_end_together(
    jobs: SqlJobs, responses: SqlResponses, events: SqlEventLog
) -> None:
    await responses.queue(ALICE, row(), [INPUT], job(), most=1, events=EventChunk(0, 1, b"a\n\nb\n\n"))
    with pytest.raises(QueueFull):
        await responses.queue(ALICE, row("resp_2"), [INPUT], job("resp_2"), most=1)
    assert await responses.get(ALICE, "resp_2") is None
    found = await responses.get(ALICE, "resp_1")
    assert found is not None
    assert (found.row.status, found.inputs) == ("queued", [INPUT])
    (mine,) = await claimed(jobs)
    found = await responses.get(ALICE, "resp_1")
    assert found is not None
    assert found.row.status == "in_progress"
    end = SettledTurn(
        row=row(status="completed"),
        inputs=[INPUT],
        outputs=[],
        job=JobEnd("resp_1", mine.claim),
        events=EventChunk(2, 2, b"c\n\n"),
        jobs=[job("event_1", kind="webhook")],
    )
    with pytest.raises(ClaimLost):
        await responses.settle(ALICE, msgspec.structs.replace(end, job=JobEnd("resp_1", "another")))
    assert await events.state(ALICE, "resp_1") == LogState(1, ended=False)
    await responses.settle(ALICE, end)
    assert await events.state(ALICE, "resp_1") == LogState(2, ended=True)
    assert await jobs.cancel(ALICE, "resp_1") is None
    assert [one.id for one in await claimed(jobs, kind="webhook")] == ["event_1"]


async def test_a_job_that_somebody_has_is_only_taken_away_by_force(
    jobs: SqlJobs, responses: SqlResponses, events: SqlEventLog
) -> None:
    await responses.queue(ALICE, row(), [INPUT], job(), most=1)
    (mine,) = await claimed(jobs)
    end = SettledTurn(row=row(status="cancelled"), inputs=[INPUT], outputs=[], job=JobEnd("resp_1"))
    with pytest.raises(ClaimLost):
        await responses.settle(ALICE, end)
    await responses.settle(ALICE, msgspec.structs.replace(end, job=JobEnd("resp_1", forced=True)))
    with pytest.raises(ClaimLost):
        await responses.settle(ALICE, msgspec.structs.replace(end, job=JobEnd("resp_1", mine.claim)))
    assert await events.append([(mine, EventChunk(0, 0, b"a\n\n"))]) == {"resp_1"}
    found = await responses.get(ALICE, "resp_1")
    assert found is not None
    assert found.row.status == "cancelled"


async def test_one_response_at_a_time_in_a_conversation(responses: SqlResponses, database: Database) -> None:
    await SqlConversations(database).create(ALICE, ConversationRow(id="conv_1", created_at=NOW), [])
    await responses.queue(ALICE, row(conversation="conv_1"), [INPUT], job(), most=9)
    assert await responses.holder(ALICE, "conv_1") == "resp_1"
    assert await responses.holder(BOB, "conv_1") is None
    with pytest.raises(ConversationLocked):
        await responses.queue(ALICE, row("resp_2", conversation="conv_1"), [INPUT], job("resp_2"), most=9)


async def test_of_those_who_queue_at_once_in_a_conversation_one_does(
    responses: SqlResponses, database: Database, another: Another, clock: Clock
) -> None:
    await SqlConversations(database).create(ALICE, ConversationRow(id="conv_1", created_at=NOW), [])
    stores = [responses, *[SqlResponses(await another(), clock=clock) for _ in range(2)]]
    queued = await asyncio.gather(
        *(
            store.queue(ALICE, row(f"resp_{n}", conversation="conv_1"), [INPUT], job(f"resp_{n}"), most=9)
            for n, store in enumerate(stores * 2)
        ),
        return_exceptions=True,
    )
    assert sum(one is None for one in queued) == 1
    assert all(one is None or isinstance(one, ConversationLocked) for one in queued)


async def test_what_a_job_makes_does_not_fail_with_its_process(responses: SqlResponses, database: Database) -> None:
    await responses.queue(ALICE, row(), [INPUT], job(), most=9)
    await responses.begin(ALICE, row("resp_2", status="in_progress"), [INPUT], NOW + 60)
    await database.write(fail_interrupted)
    statuses = [found.row.status for one in ("resp_1", "resp_2") if (found := await responses.get(ALICE, one))]
    assert statuses == ["queued", "failed"]


async def test_a_log_is_read_from_any_number_by_its_owner_alone(
    jobs: SqlJobs, responses: SqlResponses, events: SqlEventLog
) -> None:
    await responses.queue(ALICE, row(), [INPUT], job(), most=1, events=EventChunk(0, 1, b"a\n\nb\n\n"))
    (mine,) = await claimed(jobs)
    rest = [EventChunk(2, 4, b"c\n\nd\n\ne\n\n"), EventChunk(5, 5, b"f\n\n")]
    for chunk in rest:
        assert await events.append([(mine, chunk)]) == frozenset()
    assert await events.read(ALICE, "resp_1", 1, 9) == rest
    assert await events.read(ALICE, "resp_1", 3, 1) == rest[:1]
    assert await events.read(ALICE, "resp_1", 5, 9) == []
    assert await events.read(BOB, "resp_1", -1, 9) == []
    assert await events.state(BOB, "resp_1") is None
    assert await events.state(ALICE, "resp_1") == LogState(5, ended=False)


async def test_logs_of_old_responses_go_unless_those_are_being_made(
    jobs: SqlJobs, responses: SqlResponses, events: SqlEventLog
) -> None:
    for name in ("resp_1", "resp_2"):
        await responses.queue(ALICE, row(name), [INPUT], job(name), most=9, events=EventChunk(0, 0, b"a\n\n"))
    (mine,) = await claimed(jobs)
    await responses.settle(
        ALICE, SettledTurn(row=row(status="failed"), inputs=[], outputs=[], job=JobEnd(mine.id, mine.claim))
    )
    await events.expire(NOW)
    assert await events.state(ALICE, "resp_1") == LogState(0, ended=True)
    await events.expire(NOW + 1)
    assert await events.state(ALICE, "resp_1") == LogState(None, ended=True)
    assert await events.state(ALICE, "resp_2") == LogState(0, ended=False)


async def test_a_log_goes_with_its_response(jobs: SqlJobs, responses: SqlResponses, database: Database) -> None:
    await responses.queue(ALICE, row(), [INPUT], job(), most=9, events=EventChunk(0, 0, b"a\n\n"))
    (mine,) = await claimed(jobs)
    await responses.settle(
        ALICE, SettledTurn(row=row(status="failed"), inputs=[], outputs=[], job=JobEnd(mine.id, mine.claim))
    )
    assert await responses.delete(ALICE, "resp_1")
    assert await database.read(lambda c: c.execute("SELECT * FROM response_events")) == []
