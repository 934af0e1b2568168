"""Conversations: their items, the turns in them, and what happens when two turns want one at once."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.behaviour import shared as one_server
from tests.behaviour.conftest import MODEL, Driver, httpx2, sent, text_of
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream

shared, model, server = one_server.shared, one_server.model, one_server.server

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
PATIENCE = 15


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text} | more


def start(api: Driver, *texts: str, **more: Any) -> str:
    found: str = api.post("/conversations", items=[user(text) for text in texts], **more).json()["id"]
    return found


def items(api: Driver, conversation: str, query: str = "order=asc") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/conversations/{conversation}/items?{query}").json()["data"]
    return found


def texts(api: Driver, conversation: str) -> list[str]:
    return [item["content"][0]["text"] for item in items(api, conversation) if item["type"] == "message"]


def eventually(met: Callable[[], bool]) -> None:
    """Waits for what another thread is about to do, in bounded time."""
    end = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


@behaviour("bug-35")
@pytest.mark.parametrize("first", [[], ["Before."]])
@pytest.mark.parametrize("form", ["text", "object"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_holds_its_turns_in_order_once(
    api: Driver, model: ScriptedUpstream, first: list[str], form: str, stream: bool
) -> None:
    model.script(Reply(text="Hello."), Reply(text="Bye."))
    conversation = start(api, *first)
    given: Any = conversation if form == "text" else {"id": conversation}
    for text in ("Hi.", "Go."):
        if stream:
            response = api.stream(input=text, conversation=given)[-1]["response"]
        else:
            response = api.create(input=text, conversation=given)
        assert response["conversation"] == {"id": conversation}
        assert response["previous_response_id"] is None
        assert api.get(f"/responses/{response['id']}").json() == response
    assert texts(api, conversation) == [*first, "Hi.", "Hello.", "Go.", "Bye."]
    assert [m["content"] for m in sent(model, 2)] == [*first, "Hi.", "Hello.", "Go."]
    assert items(api, conversation)[-1]["id"] == response["output"][0]["id"]


@behaviour("bug-35")
def test_a_tool_loop_in_a_conversation_is_kept_whole(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(reasoning="Hm.", calls=[Call("look")]), Reply(text="Sunny."))
    conversation = start(api)
    first = api.create(input="Weather?", conversation=conversation, tools=TOOLS)
    call = first["output"][-1]
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
    api.create(input=[answer], conversation=conversation, tools=TOOLS)
    kinds = [item["type"] for item in items(api, conversation)]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output", "message"]
    assert [m["role"] for m in sent(model, 2)] == ["user", "assistant", "tool"]


def test_own_items_sent_again_are_not_doubled(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."), Reply(text="Bye."))
    conversation = start(api)
    api.create(input="Hi.", conversation=conversation)
    api.create(input=[*items(api, conversation), user("Go.")], conversation=conversation)
    assert texts(api, conversation) == ["Hi.", "Hello.", "Go.", "Bye."]
    assert [m["content"] for m in sent(model, 2)] == ["Hi.", "Hello.", "Go."]


def test_a_response_in_a_conversation_can_be_branched_from(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."), Reply(text="Aside."), Reply(text="Bye."))
    conversation = start(api)
    first = api.create(input="Hi.", conversation=conversation)
    api.create(input="Psst.", previous_response_id=first["id"])
    api.create(input="Go.", conversation=conversation)
    assert [m["content"] for m in sent(model, 2)] == ["Hi.", "Hello.", "Psst."]
    assert texts(api, conversation) == ["Hi.", "Hello.", "Go.", "Bye."]


@behaviour("bug-38")
@pytest.mark.parametrize("stream", [False, True])
def test_a_second_turn_at_once_is_told_that_the_conversation_is_locked(
    api: Driver, model: ScriptedUpstream, stream: bool
) -> None:
    go = Gate()
    model.script(Reply(text="One.", before=go), Reply(text="Two."))
    conversation = start(api)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(api.create, input="1", conversation=conversation)
        model.received_blocking(1)
        for _ in range(3):
            reply = api.post(input="2", conversation={"id": conversation}, stream=stream)
            assert reply.status_code == 409
            error = reply.json()["error"]
            assert (error["code"], error["param"]) == ("conversation_locked", "conversation")
        assert text_of(api.create(input="2", conversation=start(api, "elsewhere"))) == "Two."
        go.set()
        assert first.result(PATIENCE)["status"] == "completed"
    model.script(Reply(text="Three."))
    api.create(input="3", conversation=conversation)
    assert texts(api, conversation) == ["1", "One.", "3", "Three."]


@behaviour("bug-38")
def test_items_are_not_added_under_a_running_turn(api: Driver, model: ScriptedUpstream) -> None:
    go = Gate()
    model.script(Reply(text="One.", before=go))
    conversation = start(api)
    path = f"/conversations/{conversation}/items"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        turn = pool.submit(api.create, input="1", conversation=conversation)
        model.received_blocking(1)
        reply = api.post(path, items=[user("aside")])
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "conversation_locked")
        assert reply.headers["retry-after"] == "1"
        go.set()
        turn.result(PATIENCE)
    assert api.post(path, items=[user("aside")]).status_code == 200
    assert texts(api, conversation) == ["1", "One.", "aside"]


@behaviour("bug-38")
def test_many_turns_at_once_never_mix(api: Driver, model: ScriptedUpstream) -> None:
    model.default = lambda request: Reply(text=f"re {request.body['messages'][-1]['content']}")
    conversation = start(api)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: api.post(input=str(n), conversation=conversation), range(24)))
    assert {reply.status_code for reply in replies} <= {200, 409}
    done = [n for n, reply in enumerate(replies) if reply.status_code == 200]
    found = texts(api, conversation)
    assert sorted(found[::2], key=int) == [str(n) for n in done]
    assert found[1::2] == [f"re {text}" for text in found[::2]]


@behaviour("bug-38")
@pytest.mark.parametrize("fault", [Refuse(500), Refuse(400), Drop(after=2)], ids=["500", "400", "broken off"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_turn_appends_nothing_and_frees_the_conversation(
    api: Driver, model: ScriptedUpstream, fault: Refuse | Drop, stream: bool
) -> None:
    conversation = start(api, "Before.")
    model.default = fault
    api.post(input="Lost.", conversation=conversation, stream=stream)
    assert texts(api, conversation) == ["Before."]
    model.default = Reply(text="Fine.")
    api.create(input="Again.", conversation=conversation)
    assert texts(api, conversation) == ["Before.", "Again.", "Fine."]
    assert [m["content"] for m in sent(model, len(model.requests))] == ["Before.", "Again."]


@behaviour("bug-38", "bug-72")
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_appends_nothing_and_frees_the_conversation(
    api: Driver, model: ScriptedUpstream, stream: bool
) -> None:
    never = Gate()
    model.script(Reply(text="one two three", held={3: never}))
    conversation = start(api, "Before.")
    body = {"model": MODEL, "input": "Lost.", "conversation": conversation, "stream": stream}
    with httpx2.Client(timeout=0.5 if not stream else PATIENCE) as other:
        if stream:
            with other.stream("POST", f"{api.server.url}/responses", json=body) as live:
                next(line for line in live.iter_lines() if "output_text.delta" in line)
        else:
            with pytest.raises(httpx2.ReadTimeout):
                other.post(f"{api.server.url}/responses", json=body)
    model.requests[0].disconnected.wait_blocking(PATIENCE)

    def newest() -> dict[str, Any]:
        found: dict[str, Any] = next(iter(api.get("/responses?limit=1").json()["data"]), {})
        return found

    eventually(lambda: (newest().get("conversation"), newest().get("status")) == ({"id": conversation}, "cancelled"))
    kept = newest()
    assert texts(api, conversation) == ["Before."]
    model.script(Reply(text="Fine."))
    api.create(input="Again.", conversation=conversation)
    assert texts(api, conversation) == ["Before.", "Again.", "Fine."]
    refused = api.post(input="x", previous_response_id=kept["id"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
    never.set()


def test_a_turn_refused_before_it_began_frees_the_conversation(api: Driver, model: ScriptedUpstream) -> None:
    conversation = start(api)
    for bad in ({"input": []}, {"input": "x", "tools": [{"type": "toaster"}]}, {"input": [{"id": "msg_nobody"}]}):
        assert api.post(conversation=conversation, **({"input": None} | bad)).status_code in (400, 404)
    model.script(Reply(text="Fine."))
    api.create(input="x", conversation=conversation)


def test_with_store_false_a_turn_sees_the_conversation_and_leaves_it_as_it_was(
    api: Driver, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="Fine."))
    conversation = start(api, "Before.")
    response = api.create(input="x", conversation=conversation, store=False)
    assert response["conversation"] == {"id": conversation}
    assert [m["content"] for m in sent(model)] == ["Before.", "x"]
    assert texts(api, conversation) == ["Before."]


def test_a_conversation_deleted_under_a_turn_does_not_lose_the_turn(api: Driver, model: ScriptedUpstream) -> None:
    go = Gate()
    model.script(Reply(text="Fine.", before=go), Reply(text="On."))
    conversation = start(api, "Before.")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        turn = pool.submit(api.create, input="x", conversation=conversation)
        model.received_blocking(1)
        assert api.delete(f"/conversations/{conversation}").status_code == 200
        go.set()
        response = turn.result(PATIENCE)
    assert response["status"] == "completed"
    assert api.get(f"/responses/{response['id']}").json() == response
    assert api.get(f"/conversations/{conversation}").status_code == 404
    assert text_of(api.create(input="y", previous_response_id=response["id"])) == "On."


def test_a_cut_answer_is_part_of_the_conversation(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Half an", finish="length"))
    conversation = start(api)
    assert api.create(input="x", conversation=conversation)["status"] == "incomplete"
    assert texts(api, conversation) == ["x", "Half an"]


# ---------------------------------------------------------------------------------------------- the endpoints


def test_a_conversation_is_made_read_changed_and_deleted(client: Any, api: Driver) -> None:
    made = client.conversations.create(metadata={"a": "1"}, items=[{"role": "user", "content": "Hi."}])
    assert made.id.startswith("conv_")
    assert len(made.id) == len("conv_") + 48
    assert (made.object, made.metadata) == ("conversation", {"a": "1"})
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"b": "2"})
    assert (changed.metadata, changed.created_at) == ({"b": "2"}, made.created_at)
    assert client.conversations.update(made.id, metadata=None).metadata == {}
    (item,) = client.conversations.items.list(made.id)
    assert client.conversations.items.retrieve(item.id, conversation_id=made.id) == item
    gone = client.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    for path in ("", "/items", f"/items/{item.id}"):
        assert api.get(f"/conversations/{made.id}{path}").status_code == 404
    assert api.delete(f"/conversations/{made.id}").status_code == 404


def test_a_conversation_needs_no_body(api: Driver) -> None:
    reply = api.http.post(api.server.url + "/conversations")
    assert reply.status_code == 200
    assert reply.json()["metadata"] == {}
    assert api.post("/conversations", items=None, metadata=None).status_code == 200


def test_an_update_needs_metadata(api: Driver) -> None:
    reply = api.http.post(f"{api.server.url}/conversations/{start(api)}", json={})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "metadata", "missing_required_parameter")


SHAPES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (user("a"), [{"type": "input_text", "text": "a"}]),
    ({"role": "user", "content": [{"type": "text", "text": "a"}]}, [{"type": "input_text", "text": "a"}]),
    ({"type": "message", "role": "system", "content": "a"}, [{"type": "input_text", "text": "a"}]),
    (
        {"role": "assistant", "content": "a"},
        [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
    ),
]


@pytest.mark.parametrize(("given", "content"), SHAPES)
def test_stored_content_is_always_a_list_of_parts_with_a_status(
    api: Driver, given: dict[str, Any], content: list[dict[str, Any]]
) -> None:
    conversation = start(api)
    added = api.post(f"/conversations/{conversation}/items", items=[given]).json()
    for item in (*added["data"], *items(api, conversation)):
        assert item["content"] == content
        assert (item["type"], item["status"], item["role"]) == ("message", "completed", given["role"])
        assert item["id"].startswith("msg_")


def test_items_are_added_in_order_and_listed_with_honest_pages(client: Any, api: Driver) -> None:
    conversation = client.conversations.create().id
    added = client.conversations.items.create(conversation, items=[user(str(n)) for n in range(20)])
    assert [item.content[0].text for item in added.data] == [str(n) for n in range(20)]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
    client.conversations.items.create(conversation, items=[user(str(n)) for n in range(20, 25)])
    for order in ("asc", "desc"):
        listed = client.conversations.items.list(conversation, limit=10, order=order)
        assert listed.has_more is True
        found = [item.content[0].text for item in listed]
        assert found == [str(n) for n in (range(25) if order == "asc" else reversed(range(25)))]
    empty = client.conversations.items.list(client.conversations.create().id)
    assert (empty.data, empty.has_more, empty.first_id, empty.last_id) == ([], False, "", "")
    too_many = api.post(f"/conversations/{conversation}/items", items=[user("x")] * 21)
    assert too_many.json()["error"]["code"] == "array_above_max_length"
    none = api.post(f"/conversations/{conversation}/items", items=[])
    assert none.json()["error"]["param"] == "items"


def test_deleting_an_item_gives_the_conversation_and_hides_it_from_later_turns(
    client: Any, api: Driver, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="Hello."), Reply(text="Bye."))
    conversation = start(api, "Before.")
    response = api.create(input="Hi.", conversation=conversation)
    gone = items(api, conversation)[1]
    assert client.conversations.items.delete(gone["id"], conversation_id=conversation).id == conversation
    assert texts(api, conversation) == ["Before.", "Hello."]
    assert api.get(f"/conversations/{conversation}/items/{gone['id']}").status_code == 404
    assert api.delete(f"/conversations/{conversation}/items/{gone['id']}").status_code == 404
    api.create(input="Go.", conversation=conversation)
    assert [m["content"] for m in sent(model, 2)] == ["Before.", "Hello.", "Go."]
    assert api.get(f"/responses/{response['id']}").json() == response


def test_an_item_id_stands_once_in_a_conversation(api: Driver) -> None:
    conversation = start(api)
    path = f"/conversations/{conversation}/items"
    assert api.post(path, items=[user("a", id="msg_1")]).status_code == 200
    for given in ([user("b", id="msg_1")], [user("a", id="msg_1")], [user("x", id="msg_2"), user("y", id="msg_2")]):
        reply = api.post(path, items=given)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "items")
        assert error["message"] == "Item already in conversation."
    assert texts(api, conversation) == ["a"]
    assert api.post(f"/conversations/{start(api)}/items", items=[user("c", id="msg_1")]).status_code == 200


def test_a_reference_is_no_item(api: Driver) -> None:
    reply = api.post("/conversations", items=[{"type": "item_reference", "id": "msg_1"}])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "items[0].type")


def test_every_kind_of_item_is_kept_as_it_came(api: Driver) -> None:
    given: list[dict[str, Any]] = [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "edit", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "from_the_future", "deep": {"x": [1, None]}},
    ]
    conversation = api.post("/conversations", items=given).json()["id"]
    for kept, sent_ in zip(items(api, conversation), given, strict=True):
        assert kept["id"]
        assert kept | sent_ == kept
