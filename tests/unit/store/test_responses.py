"""Responses: settling, running, reading, listing, deleting; and that nobody sees another's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.unit.store.support import ALICE, NOW, STRANGERS, message, row, texts, turn
from treadle.errors import InvalidRequest, NotFound, PreviousNotFound, StorageFault
from treadle.ports import Checkpoint, StoredItem
from treadle.store.db import Database
from treadle.store.responses import SqlResponses
from treadle.store.sqlite import Sqlite

IMPLAUSIBLE = ("", "\0", "resp_\0", "x" * 129, "a b", "'; DROP TABLE items; --", "résp")


def stored_bytes(path: Path) -> bytes:
    """All that a thief of the file would find, freed pages and log included."""
    return b"".join(file.read_bytes() for file in (path, path.with_name(path.name + "-wal")) if file.exists())


# ---------------------------------------------------------------------------------------------- settling


async def test_a_settled_turn_is_read_back_whole(responses: SqlResponses) -> None:
    wanted = turn("system", "question", "answer")
    wanted.row.completed_at = NOW + 3
    wanted.row.data = b'{"usage":{"input_tokens":3}}'
    end = await responses.settle(ALICE, wanted)
    found = await responses.get(ALICE, wanted.row.id)
    assert found is not None
    assert (found.row, found.inputs, found.outputs) == (wanted.row, wanted.inputs, wanted.outputs)
    assert await responses.checkpoint(ALICE, wanted.row.id) == (wanted.row, end)
    assert await responses.history(ALICE, end) == [*wanted.inputs, *wanted.outputs]


async def test_a_turn_may_have_neither_inputs_nor_outputs(responses: SqlResponses) -> None:
    first = turn("question", "answer")
    base = await responses.settle(ALICE, first)
    empty = turn("x", "y", base=base, previous=first.row.id)
    empty.inputs, empty.outputs = [], []
    end = await responses.settle(ALICE, empty)
    found = await responses.get(ALICE, empty.row.id)
    assert found is not None
    assert (found.inputs, found.outputs, end) == ([], [], base)
    await responses.settle(ALICE, turn("again", "yes", base=end, previous=empty.row.id))


async def test_continuing_at_the_tip_stays_in_the_thread_and_elsewhere_branches(responses: SqlResponses) -> None:
    a = turn("a1", "a2")
    at_a = await responses.settle(ALICE, a)
    at_b = await responses.settle(ALICE, turn("b1", "b2", base=at_a, previous=a.row.id))
    at_c = await responses.settle(ALICE, turn("c1", "c2", base=at_a, previous=a.row.id))
    assert at_b.thread == at_a.thread
    assert at_c.thread != at_a.thread
    assert texts(await responses.history(ALICE, at_b)) == ["a1", "a2", "b1", "b2"]
    assert texts(await responses.history(ALICE, at_c)) == ["a1", "a2", "c1", "c2"]
    assert texts(await responses.history(ALICE, at_a)) == ["a1", "a2"]


async def test_of_turns_that_race_from_one_point_each_keeps_its_own_history(responses: SqlResponses) -> None:
    a = turn("a1", "a2")
    base = await responses.settle(ALICE, a)
    rivals = [turn(f"q{n}", f"r{n}", base=base, previous=a.row.id) for n in range(16)]
    ends = await asyncio.gather(*(responses.settle(ALICE, rival) for rival in rivals))
    assert len({end.thread for end in ends}) == 16
    for n, end in enumerate(ends):
        assert texts(await responses.history(ALICE, end)) == ["a1", "a2", f"q{n}", f"r{n}"]


async def test_settling_twice_is_refused_and_changes_nothing(responses: SqlResponses) -> None:
    wanted = turn("question", "answer")
    end = await responses.settle(ALICE, wanted)
    other = turn("other", "text", base=end)
    other.row.id = wanted.row.id
    with pytest.raises(StorageFault) as caught:
        await responses.settle(ALICE, other)
    assert caught.value.code == "response_already_settled"
    assert texts(await responses.history(ALICE, end)) == ["question", "answer"]
    assert texts(await responses.history(ALICE, Checkpoint(end.thread, 99))) == ["question", "answer"]


async def test_a_turn_whose_predecessor_was_deleted_meanwhile_is_not_stored(responses: SqlResponses) -> None:
    first = turn("question", "answer")
    base = await responses.settle(ALICE, first)
    await responses.delete(ALICE, first.row.id)
    for previous in (first.row.id, None):
        late = turn("late", "later", base=base, previous=previous)
        with pytest.raises(PreviousNotFound):
            await responses.settle(ALICE, late)
        assert await responses.get(ALICE, late.row.id) is None


async def test_a_turn_is_not_stored_with_holes_in_its_history(responses: SqlResponses) -> None:
    first = turn("a1", "a2")
    base = await responses.settle(ALICE, first)
    second = turn("b1", "b2", base=base, previous=first.row.id)
    at_second = await responses.settle(ALICE, second)
    await responses.delete(ALICE, second.row.id)  # its items go; the thread stays
    late = turn("late", "later", base=at_second, previous=second.row.id)
    with pytest.raises(PreviousNotFound):
        await responses.settle(ALICE, late)
    assert await responses.get(ALICE, late.row.id) is None


async def test_nul_characters_in_the_json_survive(responses: SqlResponses) -> None:
    item = StoredItem("msg_1", "message", b'{"id":"msg_1","content":"a\\u0000b"}')
    wanted = turn("x", "y")
    wanted.inputs, wanted.row.data = [item], b'{"metadata":{"k":"\\u0000"}}'
    end = await responses.settle(ALICE, wanted)
    found = await responses.get(ALICE, wanted.row.id)
    assert found is not None
    assert (found.inputs, found.row.data) == ([item], wanted.row.data)
    assert (await responses.history(ALICE, end))[0] == item


# ---------------------------------------------------------------------------------------------- running


async def test_a_running_response_is_visible_and_settling_replaces_it(responses: SqlResponses) -> None:
    running = row(status="in_progress", data=b'{"usage":null}')
    await responses.begin(ALICE, running, [message("question")], NOW + 60)
    found = await responses.get(ALICE, running.id)
    assert found is not None
    assert (found.row, texts(found.inputs), found.outputs) == (running, ["question"], [])
    wanted = turn("question", "answer")
    wanted.row.id = running.id
    await responses.settle(ALICE, wanted)
    found = await responses.get(ALICE, running.id)
    assert found is not None
    assert (found.row.status, texts(found.inputs), texts(found.outputs)) == ("completed", ["question"], ["answer"])


async def test_the_inputs_of_a_running_response_are_in_nobodys_history(responses: SqlResponses) -> None:
    first = turn("a1", "a2")
    base = await responses.settle(ALICE, first)
    asked = message("running")
    await responses.begin(ALICE, row(status="in_progress", previous=first.row.id), [asked], NOW + 60)
    end = await responses.settle(ALICE, turn("b1", "b2", base=base, previous=first.row.id))
    assert end.thread == base.thread
    assert texts(await responses.history(ALICE, end)) == ["a1", "a2", "b1", "b2"]
    assert await responses.find_items(ALICE, [asked.id]) == {}


async def test_beginning_again_updates_the_row(responses: SqlResponses) -> None:
    queued = row(status="queued")
    await responses.begin(ALICE, queued, [message("question")], NOW + 5)
    queued.status = "in_progress"
    await responses.begin(ALICE, queued, [message("question")], NOW + 60)
    found = await responses.get(ALICE, queued.id)
    assert found is not None
    assert (found.row.status, len(found.inputs)) == ("in_progress", 1)


async def test_an_expired_lease_reads_as_failed_and_a_renewed_one_does_not(database: Database) -> None:
    now = NOW
    responses = SqlResponses(database, clock=lambda: now)
    lost = row(status="in_progress", data=b'{"error":null,"tools":[1]}')
    kept = row(status="in_progress")
    for running in (lost, kept):
        await responses.begin(ALICE, running, [message("question")], NOW + 60)
    now = NOW + 50
    await responses.renew(ALICE, [kept.id, "unknown", "\0"], NOW + 120)
    now = NOW + 61
    page = await responses.page(ALICE, after=None, limit=9, order="asc", model=None)
    got = await responses.get(ALICE, lost.id)
    assert got is not None
    shown = {found.row.id: found.row for found in page.responses}
    assert shown[lost.id] == got.row
    assert shown[kept.id].status == "in_progress"
    data = msgspec.json.decode(got.row.data)
    assert (got.row.status, data["error"]["code"], data["tools"]) == ("failed", "server_error", [1])
    assert texts(got.inputs) == ["question"]
    with pytest.raises(InvalidRequest, match="is failed and"):
        await responses.checkpoint(ALICE, lost.id)
    with pytest.raises(InvalidRequest, match="is in_progress and") as caught:
        await responses.checkpoint(ALICE, kept.id)
    assert caught.value.param == "previous_response_id"


async def test_an_abandoned_response_is_gone_and_a_settled_one_cannot_be_abandoned(responses: SqlResponses) -> None:
    running, settled = row(status="in_progress"), turn("question", "answer")
    await responses.begin(ALICE, running, [], NOW + 60)
    await responses.settle(ALICE, settled)
    for scope in (*STRANGERS, ALICE):
        assert (await responses.get(ALICE, running.id)) is not None
        await responses.abandon(scope, running.id)
        await responses.abandon(scope, settled.row.id)
    assert await responses.get(ALICE, running.id) is None
    assert await responses.get(ALICE, settled.row.id) is not None


async def test_a_response_deleted_while_it_runs_stays_deleted(responses: SqlResponses) -> None:
    running = row(status="in_progress")
    await responses.begin(ALICE, running, [message("question")], NOW + 60)
    assert await responses.delete(ALICE, running.id)
    assert not await responses.delete(ALICE, running.id)
    wanted = turn("question", "answer")
    wanted.row.id = running.id
    with pytest.raises(NotFound):
        await responses.settle(ALICE, wanted)
    with pytest.raises(NotFound):
        await responses.begin(ALICE, running, [], NOW + 60)
    await responses.renew(ALICE, [running.id], NOW + 60)
    assert await responses.get(ALICE, running.id) is None
    assert await responses.checkpoint(ALICE, running.id) is None
    assert (await responses.page(ALICE, after=None, limit=9, order="asc", model=None)).responses == []
    assert await responses.find_items(ALICE, [item.id for item in wanted.outputs]) == {}


# ----------------------------------------------------------------------------------------------- reading


async def test_items_are_found_by_id_and_the_newest_wins(responses: SqlResponses) -> None:
    first, second = turn("old", "x"), turn("new", "y")
    second.inputs = [message("new", name=first.inputs[0].id)]
    await responses.settle(ALICE, first)
    await responses.settle(ALICE, second)
    wanted = [first.inputs[0].id, first.outputs[0].id, "unknown", *IMPLAUSIBLE]
    found = await responses.find_items(ALICE, wanted)
    assert {name: texts([item]) for name, item in found.items()} == {wanted[0]: ["new"], wanted[1]: ["x"]}


async def test_pages_follow_their_cursor_in_both_orders_without_gap_or_repeat(responses: SqlResponses) -> None:
    turns = [turn(f"q{n}", f"a{n}", created_at=NOW + n // 3) for n in range(10)]  # several in one second
    for wanted in turns:
        await responses.settle(ALICE, wanted)
    ascending = sorted(turns, key=lambda wanted: (wanted.row.created_at, wanted.row.id))
    for order, expected in (("asc", ascending), ("desc", ascending[::-1])):
        seen, after, more = list[str](), None, True
        while more:
            page = await responses.page(ALICE, after=after, limit=4, order=order, model=None)  # type: ignore[arg-type]
            more, after = page.has_more, page.responses[-1].row.id
            seen += [found.row.id for found in page.responses]
            for found in page.responses:
                wanted = next(wanted for wanted in turns if wanted.row.id == found.row.id)
                assert (found.inputs, found.outputs) == (wanted.inputs, wanted.outputs)
        assert seen == [wanted.row.id for wanted in expected]


async def test_a_page_ends_without_more_exactly_at_the_limit(responses: SqlResponses) -> None:
    for _ in range(3):
        await responses.settle(ALICE, turn("q", "a"))
    page = await responses.page(ALICE, after=None, limit=3, order="asc", model=None)
    assert (len(page.responses), page.has_more) == (3, False)
    page = await responses.page(ALICE, after=page.responses[-1].row.id, limit=3, order="asc", model=None)
    assert (page.responses, page.has_more) == ([], False)


async def test_a_page_can_be_of_one_model(responses: SqlResponses) -> None:
    for model in ("x", "y", "x"):
        wanted = turn("q", "a")
        wanted.row.model = model
        await responses.settle(ALICE, wanted)
    page = await responses.page(ALICE, after=None, limit=9, order="asc", model="x")
    assert [found.row.model for found in page.responses] == ["x", "x"]


async def test_an_unknown_cursor_is_refused(responses: SqlResponses) -> None:
    strangers = turn("q", "a")
    await responses.settle(STRANGERS[0], strangers)
    for cursor in ("resp_unknown", strangers.row.id, *IMPLAUSIBLE):
        with pytest.raises(InvalidRequest) as caught:
            await responses.page(ALICE, after=cursor, limit=9, order="asc", model=None)
        assert caught.value.param == "after"


async def test_ids_that_cannot_exist_never_reach_the_database(tmp_path: Path) -> None:
    responses = SqlResponses(Sqlite(tmp_path / "never opened"))  # would raise StorageFault
    for name in IMPLAUSIBLE:
        assert await responses.get(ALICE, name) is None
        assert await responses.checkpoint(ALICE, name) is None
        assert await responses.delete(ALICE, name) is False
        await responses.abandon(ALICE, name)
    assert await responses.find_items(ALICE, IMPLAUSIBLE) == {}


async def test_nothing_of_one_owner_or_tenant_is_seen_or_changed_by_another(responses: SqlResponses) -> None:
    wanted, running = turn("question", "answer"), row(status="in_progress")
    end = await responses.settle(ALICE, wanted)
    await responses.begin(ALICE, running, [message("question")], NOW + 60)
    for stranger in STRANGERS:
        for name in (wanted.row.id, running.id):
            assert await responses.get(stranger, name) is None
            assert await responses.checkpoint(stranger, name) is None
            assert not await responses.delete(stranger, name)
            await responses.abandon(stranger, name)
            theirs = turn("mine", "now")
            theirs.row.id = name
            with pytest.raises(StorageFault):
                await responses.settle(stranger, theirs)
            with pytest.raises(StorageFault):
                await responses.begin(stranger, theirs.row, [], NOW + 60)
        assert await responses.history(stranger, end) == []
        assert await responses.find_items(stranger, [item.id for item in wanted.inputs]) == {}
        assert (await responses.page(stranger, after=None, limit=9, order="asc", model=None)).responses == []
        await responses.renew(stranger, [running.id], 1)
        for append in (False, True):
            with pytest.raises(InvalidRequest):
                await responses.settle(stranger, turn("x", "y", base=end, append=append))
        with pytest.raises(PreviousNotFound):
            await responses.settle(stranger, turn("x", "y", base=end, previous=wanted.row.id))
    got = [await responses.get(ALICE, name) for name in (wanted.row.id, running.id)]
    assert [found and found.row.status for found in got] == ["completed", "in_progress"]
    assert texts(await responses.history(ALICE, Checkpoint(end.thread, 99))) == ["question", "answer"]


# ---------------------------------------------------------------------------------------------- deleting


async def test_a_deleted_response_is_not_found_anywhere(responses: SqlResponses) -> None:
    wanted = turn("question", "answer")
    await responses.settle(ALICE, wanted)
    assert await responses.delete(ALICE, wanted.row.id)
    assert not await responses.delete(ALICE, wanted.row.id)
    assert await responses.get(ALICE, wanted.row.id) is None
    assert await responses.checkpoint(ALICE, wanted.row.id) is None
    assert await responses.find_items(ALICE, [wanted.inputs[0].id]) == {}
    with pytest.raises(InvalidRequest):
        await responses.page(ALICE, after=wanted.row.id, limit=9, order="asc", model=None)
    assert (await responses.page(ALICE, after=None, limit=9, order="asc", model=None)).responses == []


async def test_what_follows_a_deleted_response_keeps_its_whole_history(responses: SqlResponses) -> None:
    a = turn("a1", "a2")
    at_a = await responses.settle(ALICE, a)
    b = turn("b1", "b2", base=at_a, previous=a.row.id)
    at_b = await responses.settle(ALICE, b)
    c = turn("c1", "c2", base=at_b, previous=b.row.id)
    at_c = await responses.settle(ALICE, c)
    for gone in (a, b):
        await responses.delete(ALICE, gone.row.id)
    assert texts(await responses.history(ALICE, at_c)) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    at_d = await responses.settle(ALICE, turn("d1", "d2", base=at_c, previous=c.row.id))
    assert texts(await responses.history(ALICE, at_d))[-3:] == ["c2", "d1", "d2"]


async def test_text_that_nothing_needs_is_removed_from_the_file(path: Path) -> None:
    database = Sqlite(path)
    await database.start()
    responses = SqlResponses(database)
    kept = turn("kept question", "kept answer")
    base = await responses.settle(ALICE, kept)
    secret = turn("first secret", "second secret", base=base, previous=kept.row.id)
    secret.row.data = b'{"instructions":"third secret"}'
    at_secret = await responses.settle(ALICE, secret)
    branch = turn("fourth secret", "fifth secret", base=base, previous=kept.row.id)
    await responses.settle(ALICE, branch)
    running = row(status="in_progress", data=b'{"instructions":"sixth secret"}')
    await responses.begin(ALICE, running, [message("seventh secret")], 10**10)
    assert stored_bytes(path).count(b"secret") >= 7
    for name in (secret.row.id, branch.row.id, running.id):
        assert await responses.delete(ALICE, name)
    await database.close()  # folds the log
    left = stored_bytes(path)
    assert b"secret" not in left
    assert b"kept question" in left
    assert at_secret.thread == base.thread


async def test_a_point_that_was_freed_by_deleting_is_never_taken_by_another_turn(responses: SqlResponses) -> None:
    a = turn("a1", "a2")
    at_a = await responses.settle(ALICE, a)
    b = turn("b1", "b2", base=at_a, previous=a.row.id)
    at_b = await responses.settle(ALICE, b)
    await responses.delete(ALICE, b.row.id)
    at_c = await responses.settle(ALICE, turn("c1", "c2", base=at_a, previous=a.row.id))
    assert at_c != at_b
    assert texts(await responses.history(ALICE, at_c)) == ["a1", "a2", "c1", "c2"]


async def test_keys_of_threads_do_not_come_back(responses: SqlResponses) -> None:
    first = turn("question", "answer")
    end = await responses.settle(ALICE, first)
    await responses.delete(ALICE, first.row.id)
    assert (await responses.settle(ALICE, turn("other", "text"))).thread != end.thread
