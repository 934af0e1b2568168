"""The official Python client, in strict mode, on conversations and their items."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, sent
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream


def _user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def test_a_conversation_is_created_read_changed_and_deleted(client: Any) -> None:
    from openai import NotFoundError

    made = client.conversations.create(metadata={"topic": "birds"}, items=[_user("Hi")])
    assert (made.object, made.metadata) == ("conversation", {"topic": "birds"})
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "trees"})
    assert (changed.id, changed.metadata) == (made.id, {"topic": "trees"})
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "conversation.deleted")
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(made.id)


def test_items_are_added_listed_read_and_removed(client: Any) -> None:
    from openai import NotFoundError

    conversation = client.conversations.create()
    added = client.conversations.items.create(
        conversation.id, items=[_user("One"), {"role": "assistant", "content": "Two"}, _user("Three")]
    )
    assert [item.content[0].text for item in added.data] == ["One", "Two", "Three"]
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[-1].id)
    first = client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id)
    assert first == added.data[0]
    assert client.conversations.items.delete(first.id, conversation_id=conversation.id).id == conversation.id
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(first.id, conversation_id=conversation.id)
    left = [item.content[0].text for item in client.conversations.items.list(conversation.id)]
    assert left == ["Three", "Two"]


def test_items_are_paged_through_to_the_end(client: Any) -> None:
    conversation = client.conversations.create(items=[_user(str(number)) for number in range(5)])
    pages = list(client.conversations.items.list(conversation.id, limit=2, order="asc").iter_pages())
    assert [[item.content[0].text for item in page.data] for page in pages] == [["0", "1"], ["2", "3"], ["4"]]


def test_an_empty_conversation_lists_no_items(client: Any) -> None:
    conversation = client.conversations.create()
    assert list(client.conversations.items.list(conversation.id)) == []


@pytest.mark.parametrize("form", ["id", "object"])
def test_turns_in_a_conversation_see_each_other(client: Any, model: ScriptedUpstream, form: str) -> None:
    model.script(Reply(text="Hello Alice."), Reply(text="Alice."))
    conversation = client.conversations.create(items=[_user("My name is Alice.")])
    given = conversation.id if form == "id" else {"id": conversation.id}
    first = client.responses.create(model=MODEL, conversation=given, input="Say hello.")
    assert first.conversation.id == conversation.id
    with client.responses.stream(model=MODEL, conversation=given, input="What is my name?") as stream:
        stream.until_done()
    assert [message["role"] for message in sent(model, 2)] == ["user", "user", "assistant", "user"]
    kinds = [item.type for item in client.conversations.items.list(conversation.id)]
    assert kinds == ["message"] * 5


def test_calls_and_reasoning_in_a_conversation_pass_the_types(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(reasoning="Hm.", calls=[Call("look", {"at": "sky"}), Call("shell", {"input": "ls"})]))
    tools = [
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False},
        {"type": "custom", "name": "shell"},
    ]
    conversation = client.conversations.create()
    client.responses.create(model=MODEL, conversation=conversation.id, input="Look.", tools=tools)
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "reasoning", "function_call", "custom_tool_call"]
