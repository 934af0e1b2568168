"""The conformance suite of the store: threads, branches, deletion and who may see what."""

from __future__ import annotations

import asyncio

import pytest

from treadle.errors import ConversationLocked, InvalidRequest
from treadle.ids import new_conversation_id, new_id
from treadle.ports import (
    Checkpoint,
    ConversationRow,
    Conversations,
    ResponseRow,
    Responses,
    SettledTurn,
    StoredItem,
)
from treadle.scope import Principal, Scope

ALICE = Scope("acme", Principal("alice"))
STRANGERS = [Scope("acme", Principal("bob")), Scope("globex", Principal("alice"))]
CREATED = 1_800_000_000
LEASE = 4_000_000_000
"""Far enough in the future for any clock."""


def item(text: str, *, role: str = "user") -> StoredItem:
    """A message that says `text`."""
    name = new_id("msg")
    data = f'{{"id":"{name}","type":"message","role":"{role}","status":"completed","content":"{text}"}}'
    return StoredItem(name, "message", data.encode())


def turn(text: str, *, base: Checkpoint | None = None, conversation: str | None = None) -> SettledTurn:
    row = ResponseRow(
        id=new_id("resp"), status="completed", model="m", created_at=CREATED, conversation=conversation, data=b'{"a":1}'
    )
    return SettledTurn(
        row=row,
        inputs=[item(f"{text}?")],
        outputs=[item(f"{text}!", role="assistant")],
        base=base,
        append_to_conversation=conversation is not None,
    )


def ids(*turns: SettledTurn) -> list[str]:
    return [one.id for made in turns for one in [*made.inputs, *made.outputs]]


async def chain(responses: Responses, *texts: str) -> list[SettledTurn]:
    """Settled turns, each continuing the one before."""
    made: list[SettledTurn] = []
    base: Checkpoint | None = None
    for age, text in enumerate(texts):
        made.append(turn(text, base=base))
        made[-1].row.created_at += age
        base = await responses.settle(ALICE, made[-1])
    return made


async def history(responses: Responses, made: SettledTurn) -> list[str]:
    found = await responses.checkpoint(ALICE, made.row.id)
    assert found is not None
    return [one.id for one in await responses.history(ALICE, found[1])]


async def named(conversations: Conversations, *items: StoredItem) -> str:
    row = ConversationRow(id=new_conversation_id(), created_at=CREATED, metadata=b'{"k":"v"}')
    await conversations.create(ALICE, row, list(items))
    return row.id


class StoreSuite:
    """For the ports Responses and Conversations together. Provide `responses` and `conversations` over one store."""

    @pytest.fixture
    def responses(self) -> Responses:
        raise NotImplementedError("a subclass provides the store under test")

    @pytest.fixture
    def conversations(self) -> Conversations:
        raise NotImplementedError("a subclass provides the store under test")

    async def test_a_settled_turn_is_there_whole(self, responses: Responses) -> None:
        [made] = await chain(responses, "one")
        stored = await responses.get(ALICE, made.row.id)
        assert stored is not None
        assert (stored.row, stored.inputs, stored.outputs) == (made.row, made.inputs, made.outputs)

    async def test_a_chain_has_all_its_turns_in_order(self, responses: Responses) -> None:
        made = await chain(responses, "one", "two", "three")
        assert await history(responses, made[2]) == ids(*made)
        assert await history(responses, made[0]) == ids(made[0])

    async def test_branches_share_their_past_and_nothing_else(self, responses: Responses) -> None:
        one, two = await chain(responses, "one", "two")
        found = await responses.checkpoint(ALICE, one.row.id)
        assert found is not None
        branch = turn("other", base=found[1])
        twig = turn("twig", base=await responses.settle(ALICE, branch))
        await responses.settle(ALICE, twig)
        assert await history(responses, twig) == ids(one, branch, twig)
        assert await history(responses, two) == ids(one, two)

    async def test_turns_that_continue_one_response_at_once_all_survive(self, responses: Responses) -> None:
        [root] = await chain(responses, "root")
        found = await responses.checkpoint(ALICE, root.row.id)
        assert found is not None
        made = [turn(str(number), base=found[1]) for number in range(8)]
        await asyncio.gather(*(responses.settle(ALICE, one) for one in made))
        for one in made:
            assert await history(responses, one) == ids(root, one)

    async def test_a_deleted_response_is_gone_but_later_ones_keep_their_past(self, responses: Responses) -> None:
        one, two = await chain(responses, "one", "two")
        assert await responses.delete(ALICE, one.row.id)
        assert await responses.get(ALICE, one.row.id) is None
        assert await responses.checkpoint(ALICE, one.row.id) is None
        assert not await responses.delete(ALICE, one.row.id)
        assert await history(responses, two) == ids(one, two)

    async def test_items_that_nobody_needs_any_more_go(self, responses: Responses) -> None:
        [made] = await chain(responses, "one")
        assert set(await responses.find_items(ALICE, ids(made))) == set(ids(made))
        await responses.delete(ALICE, made.row.id)
        assert await responses.find_items(ALICE, ids(made)) == {}

    async def test_a_running_response_is_visible_until_it_settles(self, responses: Responses) -> None:
        made = turn("one")
        running = ResponseRow(id=made.row.id, status="in_progress", model="m", created_at=CREATED)
        await responses.begin(ALICE, running, made.inputs, LEASE)
        stored = await responses.get(ALICE, made.row.id)
        assert stored is not None
        assert stored.row.status == "in_progress"
        assert stored.inputs == made.inputs
        await responses.settle(ALICE, made)
        stored = await responses.get(ALICE, made.row.id)
        assert stored is not None
        assert stored.row.status == "completed"
        assert await history(responses, made) == ids(made)

    async def test_an_abandoned_response_leaves_nothing(self, responses: Responses) -> None:
        made = turn("one")
        running = ResponseRow(id=made.row.id, status="in_progress", model="m", created_at=CREATED)
        await responses.begin(ALICE, running, made.inputs, LEASE)
        await responses.abandon(ALICE, made.row.id)
        assert await responses.get(ALICE, made.row.id) is None
        assert await responses.find_items(ALICE, ids(made)) == {}

    async def test_pages_join_to_the_whole_list(self, responses: Responses) -> None:
        made = [one.row.id for one in await chain(responses, *"abcde")]
        seen: list[str] = []
        more = True
        while more:
            page = await responses.page(ALICE, after=seen[-1] if seen else None, limit=2, order="asc", model=None)
            seen += [one.row.id for one in page.responses]
            more = page.has_more
            assert len(seen) <= len(made)
        assert seen == made
        newest = await responses.page(ALICE, after=None, limit=1, order="desc", model="m")
        assert [one.row.id for one in newest.responses] == made[-1:]
        assert (await responses.page(ALICE, after=None, limit=1, order="desc", model="other")).responses == []

    async def test_an_unknown_cursor_is_refused_by_name(
        self, responses: Responses, conversations: Conversations
    ) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await responses.page(ALICE, after="resp_nowhere", limit=1, order="asc", model=None)
        assert caught.value.param == "after"
        name = await named(conversations)
        with pytest.raises(InvalidRequest) as caught:
            await conversations.items(ALICE, name, after="msg_nowhere", limit=1, order="asc")
        assert caught.value.param == "after"

    async def test_text_is_kept_byte_for_byte(self, responses: Responses) -> None:
        made = turn("one")
        made.inputs = [StoredItem(new_id("msg"), "message", '{"t":"\\u0000 😀 \u2028 \\ud800"}'.encode())]
        await responses.settle(ALICE, made)
        stored = await responses.get(ALICE, made.row.id)
        assert stored is not None
        assert stored.inputs == made.inputs

    async def test_a_conversation_keeps_its_items_in_order(self, conversations: Conversations) -> None:
        first, second, third = item("a"), item("b"), item("c")
        name = await named(conversations, first)
        assert await conversations.append(ALICE, name, [second, third])
        page = await conversations.items(ALICE, name, after=None, limit=2, order="asc")
        assert page is not None
        assert (page.items, page.has_more) == ([first, second], True)
        page = await conversations.items(ALICE, name, after=second.id, limit=2, order="asc")
        assert page is not None
        assert (page.items, page.has_more) == ([third], False)
        assert await conversations.item(ALICE, name, second.id) == second
        assert await conversations.delete_item(ALICE, name, second.id)
        assert await conversations.item(ALICE, name, second.id) is None
        with pytest.raises(InvalidRequest):
            await conversations.append(ALICE, name, [third])

    async def test_turns_append_to_their_conversation_and_the_second_at_once_is_refused(
        self, responses: Responses, conversations: Conversations
    ) -> None:
        name = await named(conversations)
        base = await conversations.checkpoint(ALICE, name)
        made = [turn(text, base=base, conversation=name) for text in "ab"]
        outcomes = await asyncio.gather(*(responses.settle(ALICE, one) for one in made), return_exceptions=True)
        [won] = [one for one, outcome in zip(made, outcomes, strict=True) if isinstance(outcome, Checkpoint)]
        assert [type(one) for one in outcomes if not isinstance(one, Checkpoint)] == [ConversationLocked]
        page = await conversations.items(ALICE, name, after=None, limit=10, order="asc")
        assert page is not None
        assert [one.id for one in page.items] == ids(won)

    async def test_a_conversation_can_be_changed_and_deleted(self, conversations: Conversations) -> None:
        name = await named(conversations, item("a"))
        changed = await conversations.update(ALICE, name, b'{"k":"w"}')
        assert changed is not None
        assert changed == await conversations.get(ALICE, name)
        assert changed.metadata == b'{"k":"w"}'
        assert await conversations.delete(ALICE, name)
        assert await conversations.get(ALICE, name) is None
        assert await conversations.items(ALICE, name, after=None, limit=1, order="asc") is None
        assert not await conversations.delete(ALICE, name)

    @pytest.mark.parametrize("stranger", STRANGERS, ids=["another principal", "another tenant"])
    async def test_nothing_shows_to_a_stranger(
        self, responses: Responses, conversations: Conversations, stranger: Scope
    ) -> None:
        [made] = await chain(responses, "one")
        kept = item("a")
        name = await named(conversations, kept)
        found = await responses.checkpoint(ALICE, made.row.id)
        assert found is not None
        assert await responses.get(stranger, made.row.id) is None
        assert await responses.checkpoint(stranger, made.row.id) is None
        assert await responses.history(stranger, found[1]) == []
        assert await responses.find_items(stranger, ids(made)) == {}
        assert (await responses.page(stranger, after=None, limit=9, order="asc", model=None)).responses == []
        assert not await responses.delete(stranger, made.row.id)
        assert await conversations.get(stranger, name) is None
        assert await conversations.checkpoint(stranger, name) is None
        assert await conversations.update(stranger, name, b"{}") is None
        assert not await conversations.append(stranger, name, [item("x")])
        assert await conversations.items(stranger, name, after=None, limit=9, order="asc") is None
        assert await conversations.item(stranger, name, kept.id) is None
        assert not await conversations.delete_item(stranger, name, kept.id)
        assert not await conversations.delete(stranger, name)
        assert await responses.get(ALICE, made.row.id) is not None
        assert await conversations.item(ALICE, name, kept.id) == kept
