"""Conversations: items in order and once, turns that append, deletion, and that nobody sees another's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.store.support import ALICE, NOW, STRANGERS, conversation, message, texts, turn
from treadle.errors import ConversationLocked, InvalidRequest, NotFound
from treadle.ports import Checkpoint, ConversationRow, Order
from treadle.store.conversations import SqlConversations
from treadle.store.db import Database
from treadle.store.responses import SqlResponses
from treadle.store.sqlite import Sqlite

IMPLAUSIBLE = ("", "\0", "conv_\0", "x" * 129, "a b")


async def create(conversations: SqlConversations, *initial: str) -> tuple[str, Checkpoint]:
    row = conversation()
    await conversations.create(ALICE, row, [message(text) for text in initial])
    end = await conversations.checkpoint(ALICE, row.id)
    assert end is not None
    return row.id, end


async def listed(conversations: SqlConversations, name: str, order: Order = "asc") -> list[str]:
    page = await conversations.items(ALICE, name, after=None, limit=100, order=order)
    assert page is not None
    assert not page.has_more
    return texts(page.items)


async def test_a_conversation_is_read_back_and_its_metadata_replaced(conversations: SqlConversations) -> None:
    row = conversation()
    await conversations.create(ALICE, row, [])
    assert await conversations.get(ALICE, row.id) == row
    changed = ConversationRow(id=row.id, created_at=NOW, metadata=b'{"a":"\\u0000"}')
    assert await conversations.update(ALICE, row.id, changed.metadata) == changed
    assert await conversations.get(ALICE, row.id) == changed
    assert await conversations.update(ALICE, "conv_unknown", b"{}") is None


@pytest.mark.parametrize("initial", [(), ("hello", "hi")])
async def test_two_turns_are_listed_in_order_and_once(
    conversations: SqlConversations, responses: SqlResponses, initial: tuple[str, ...]
) -> None:
    name, base = await create(conversations, *initial)
    for n in (1, 2):
        assert texts(await responses.history(ALICE, base)) == await listed(conversations, name)
        base = await responses.settle(ALICE, turn(f"q{n}", f"a{n}", base=base, conversation=name, append=True))
        assert await conversations.checkpoint(ALICE, name) == base
    expected = [*initial, "q1", "a1", "q2", "a2"]
    assert await listed(conversations, name) == expected
    assert await listed(conversations, name, "desc") == expected[::-1]
    assert texts(await responses.history(ALICE, base)) == expected


async def test_of_turns_at_once_one_is_stored_and_the_others_are_told(
    conversations: SqlConversations, responses: SqlResponses
) -> None:
    name, base = await create(conversations, "hello")
    rivals = [turn(f"q{n}", f"a{n}", base=base, conversation=name, append=True) for n in range(8)]
    results = await asyncio.gather(*(responses.settle(ALICE, rival) for rival in rivals), return_exceptions=True)
    losers = [result for result in results if isinstance(result, ConversationLocked)]
    assert (len(losers), {(loser.status, loser.param) for loser in losers}) == (7, {(409, "conversation")})
    (winner,) = [n for n, result in enumerate(results) if isinstance(result, Checkpoint)]
    assert await listed(conversations, name) == ["hello", f"q{winner}", f"a{winner}"]
    assert [await responses.get(ALICE, rival.row.id) is not None for rival in rivals].count(True) == 1


async def test_items_added_while_a_turn_runs_make_it_fail_as_locked(
    conversations: SqlConversations, responses: SqlResponses
) -> None:
    name, base = await create(conversations)
    assert await conversations.append(ALICE, name, [message("in between")])
    with pytest.raises(ConversationLocked):
        await responses.settle(ALICE, turn("q", "a", base=base, conversation=name, append=True))
    assert await listed(conversations, name) == ["in between"]


async def test_a_turn_in_a_conversation_deleted_meanwhile_is_not_stored(
    conversations: SqlConversations, responses: SqlResponses
) -> None:
    for initial in ((), ("hello",)):
        name, base = await create(conversations, *initial)
        await conversations.delete(ALICE, name)
        late = turn("q", "a", base=base, conversation=name, append=True)
        with pytest.raises(NotFound) as caught:
            await responses.settle(ALICE, late)
        assert caught.value.param == "conversation"
        assert await responses.get(ALICE, late.row.id) is None


async def test_a_turn_that_follows_a_response_of_a_conversation_branches(
    conversations: SqlConversations, responses: SqlResponses
) -> None:
    name, base = await create(conversations, "hello")
    first = turn("q1", "a1", base=base, conversation=name, append=True)
    at_first = await responses.settle(ALICE, first)
    at_second = await responses.settle(ALICE, turn("q2", "a2", base=at_first, previous=first.row.id))
    assert at_second.thread != at_first.thread
    assert texts(await responses.history(ALICE, at_second)) == ["hello", "q1", "a1", "q2", "a2"]
    assert await listed(conversations, name) == ["hello", "q1", "a1"]


async def test_an_item_id_can_be_in_a_conversation_only_once(
    conversations: SqlConversations, responses: SqlResponses
) -> None:
    name, _ = await create(conversations)
    twice = message("twice")
    assert await conversations.append(ALICE, name, [twice])
    base = await conversations.checkpoint(ALICE, name)
    again = turn("x", "y", base=base, conversation=name, append=True)
    again.inputs = [twice]
    attempts = [
        conversations.append(ALICE, name, [message("other"), twice]),
        conversations.append(ALICE, name, [message("a", name="msg_same"), message("b", name="msg_same")]),
        conversations.create(ALICE, conversation(), [twice, twice]),
        responses.settle(ALICE, again),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidRequest, match=r"^Item already in conversation\.$") as caught:
            await attempt
        assert caught.value.param == "items"
    assert await listed(conversations, name) == ["twice"]
    assert await conversations.checkpoint(ALICE, name) == base
    other, _ = await create(conversations)
    assert await conversations.append(ALICE, other, [twice])  # another conversation may hold it


async def test_pages_of_items_follow_their_cursor_in_both_orders(conversations: SqlConversations) -> None:
    name, _ = await create(conversations, *(f"i{n}" for n in range(10)))
    expected = [f"i{n}" for n in range(10)]
    for order, wanted in (("asc", expected), ("desc", expected[::-1])):
        seen, after, more = list[str](), None, True
        while more:
            page = await conversations.items(ALICE, name, after=after, limit=5, order=order)  # type: ignore[arg-type]
            assert page is not None
            seen += texts(page.items)
            more, after = page.has_more, page.items[-1].id
        assert seen == wanted
    for cursor in ("msg_unknown", *IMPLAUSIBLE):
        with pytest.raises(InvalidRequest) as caught:
            await conversations.items(ALICE, name, after=cursor, limit=5, order="asc")
        assert caught.value.param == "after"


async def test_an_item_is_read_and_taken_out_by_id(conversations: SqlConversations, responses: SqlResponses) -> None:
    name, _ = await create(conversations)
    first, second = message("first"), message("second")
    await conversations.append(ALICE, name, [first, second])
    assert await conversations.item(ALICE, name, first.id) == first
    assert await conversations.delete_item(ALICE, name, first.id)
    assert not await conversations.delete_item(ALICE, name, first.id)
    assert await conversations.item(ALICE, name, first.id) is None
    assert await responses.find_items(ALICE, [first.id]) == {}
    assert await listed(conversations, name) == ["second"]
    with pytest.raises(InvalidRequest):
        await conversations.items(ALICE, name, after=first.id, limit=5, order="asc")
    assert await conversations.append(ALICE, name, [first])  # and may come back
    assert await listed(conversations, name) == ["second", "first"]


async def test_an_item_taken_out_is_in_no_history_but_its_response_stays_whole(
    conversations: SqlConversations, responses: SqlResponses, database: Database
) -> None:
    name, base = await create(conversations)
    wanted = turn("q", "a", base=base, conversation=name, append=True)
    end = await responses.settle(ALICE, wanted)
    await responses.settle(ALICE, turn("branch", "b", base=end, previous=wanted.row.id))
    assert await conversations.delete_item(ALICE, name, wanted.inputs[0].id)
    assert await listed(conversations, name) == ["a"]
    assert texts(await responses.history(ALICE, end)) == ["a"]
    found = await responses.get(ALICE, wanted.row.id)
    assert found is not None
    assert (texts(found.inputs), texts(found.outputs)) == (["q"], ["a"])
    page = await responses.page(ALICE, after=None, limit=9, order="asc", model=None)
    assert ["q"] in [texts(response.inputs) for response in page.responses]
    assert await responses.delete(ALICE, wanted.row.id)
    kept = await database.read(lambda c: c.execute("SELECT id FROM items ORDER BY thread, pos"))
    assert (wanted.inputs[0].id,) not in kept
    assert len(kept) == 3


async def test_a_deleted_conversation_is_gone_but_its_responses_stay(
    conversations: SqlConversations, responses: SqlResponses, database: Database
) -> None:
    name, base = await create(conversations, "hello")
    wanted = turn("q1", "a1", base=base, conversation=name, append=True)
    end = await responses.settle(ALICE, wanted)
    loose = message("loose")
    await conversations.append(ALICE, name, [loose])
    assert await conversations.delete(ALICE, name)
    assert not await conversations.delete(ALICE, name)
    assert await conversations.get(ALICE, name) is None
    assert await conversations.update(ALICE, name, b"{}") is None
    assert await conversations.checkpoint(ALICE, name) is None
    assert await conversations.items(ALICE, name, after=None, limit=9, order="asc") is None
    assert await conversations.item(ALICE, name, wanted.inputs[0].id) is None
    assert not await conversations.append(ALICE, name, [message("late")])
    assert not await conversations.delete_item(ALICE, name, wanted.inputs[0].id)
    found = await responses.get(ALICE, wanted.row.id)
    assert found is not None
    assert (texts(found.inputs), texts(found.outputs)) == (["q1"], ["a1"])
    assert texts(await responses.history(ALICE, end)) == ["hello", "q1", "a1"]
    at_next = await responses.settle(ALICE, turn("q2", "a2", base=end, previous=wanted.row.id))
    assert texts(await responses.history(ALICE, at_next)) == ["hello", "q1", "a1", "q2", "a2"]
    assert await database.read(lambda c: c.execute("SELECT count(*) FROM items WHERE id = ?", (loose.id,))) == [(0,)]


async def test_a_conversation_without_responses_leaves_nothing_behind(
    conversations: SqlConversations, database: Database
) -> None:
    name, _ = await create(conversations, "hello")
    await conversations.delete(ALICE, name)
    for table in ("items", "threads"):
        assert await database.read(lambda c, t=table: c.execute(f"SELECT count(*) FROM {t}")) == [(0,)]  # type: ignore[misc]


async def test_deleting_a_response_leaves_its_items_in_the_conversation(
    conversations: SqlConversations, responses: SqlResponses
) -> None:
    name, base = await create(conversations)
    wanted = turn("q1", "a1", base=base, conversation=name, append=True)
    end = await responses.settle(ALICE, wanted)
    assert await responses.delete(ALICE, wanted.row.id)
    assert await listed(conversations, name) == ["q1", "a1"]
    await responses.settle(ALICE, turn("q2", "a2", base=end, conversation=name, append=True))
    assert await listed(conversations, name) == ["q1", "a1", "q2", "a2"]


async def test_ids_that_cannot_exist_never_reach_the_database(tmp_path: Path) -> None:
    conversations = SqlConversations(Sqlite(tmp_path / "never opened"))  # would raise StorageFault
    for name in IMPLAUSIBLE:
        assert await conversations.get(ALICE, name) is None
        assert await conversations.update(ALICE, name, b"{}") is None
        assert await conversations.delete(ALICE, name) is False
        assert await conversations.checkpoint(ALICE, name) is None
        assert await conversations.append(ALICE, name, []) is False
        assert await conversations.items(ALICE, name, after=None, limit=9, order="asc") is None
        for item in ("msg_1", *IMPLAUSIBLE):
            assert await conversations.item(ALICE, name, item) is None
            assert await conversations.delete_item(ALICE, name, item) is False
        assert await conversations.item(ALICE, "conv_1", name) is None
        assert await conversations.delete_item(ALICE, "conv_1", name) is False


async def test_nothing_of_one_owner_or_tenant_is_seen_or_changed_by_another(
    conversations: SqlConversations, responses: SqlResponses
) -> None:
    row, hello = conversation(), message("hello")
    await conversations.create(ALICE, row, [hello])
    base = await conversations.checkpoint(ALICE, row.id)
    for stranger in STRANGERS:
        assert await conversations.get(stranger, row.id) is None
        assert await conversations.update(stranger, row.id, b"{}") is None
        assert await conversations.checkpoint(stranger, row.id) is None
        assert await conversations.append(stranger, row.id, [message("theirs")]) is False
        assert await conversations.items(stranger, row.id, after=None, limit=9, order="asc") is None
        assert await conversations.item(stranger, row.id, hello.id) is None
        assert await conversations.delete_item(stranger, row.id, hello.id) is False
        assert await conversations.delete(stranger, row.id) is False
        assert base is not None
        assert await responses.history(stranger, base) == []
        with pytest.raises(NotFound):
            await responses.settle(stranger, turn("q", "a", base=base, conversation=row.id, append=True))
    assert await conversations.get(ALICE, row.id) == row
    assert await listed(conversations, row.id) == ["hello"]
