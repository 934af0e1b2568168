"""Each item once: what clients send again is recognised, and nothing new is taken for old."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.store.on_sqlite import database, migrated, path, responses
from treadle.engine.inputs import decode_inputs, resolve
from treadle.errors import InvalidRequest, NotFound
from treadle.ports import ResponseRow, SettledTurn, StoredItem
from treadle.scope import LOCAL, Principal, Scope
from treadle.store.responses import SqlResponses
from treadle.wire.items import Item, ItemReference, encode_item, kind_of

__all__ = ["database", "migrated", "path", "responses"]


def given(*values: Any) -> list[tuple[Item | ItemReference, str]]:
    return decode_inputs([Raw(json.dumps(value).encode()) for value in values])


def past(*values: Any) -> list[Item]:
    return [item for item, _ in given(*values) if not isinstance(item, ItemReference)]


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text} | more


def call(call_id: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": arguments} | more


def output(call_id: str, value: str = "seen", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value} | more


HISTORY = (
    user("q", id="msg_1"),
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    call("c1", id="fc_1"),
    output("c1", id="fco_1"),
    {"role": "assistant", "id": "msg_2", "content": [{"type": "output_text", "text": "a", "logprobs": []}]},
    {"type": "mystery", "id": "item_1", "x": 1},
)

AGAIN: list[tuple[str, list[Any], list[str]]] = [
    ("all of it", [*HISTORY, user("r")], ["r"]),
    ("references", [{"id": "msg_1"}, {"type": "item_reference", "id": "fc_1"}, user("r")], ["r"]),
    ("the call without its id", [call("c1"), user("r")], ["r"]),
    ("the output without its id", [output("c1"), user("r")], ["r"]),
    ("reasoning stripped of its text", [{"type": "reasoning", "id": "rs_1", "summary": []}, user("r")], ["r"]),
    ("an answer in the easy form", [{"role": "assistant", "id": "msg_2", "content": "a"}, user("r")], ["r"]),
    ("the same words under another id", [user("q", id="msg_9")], ["q"]),
    ("the same words and id, but last", [user("q", id="msg_1")], ["q"]),
    ("other words under an id of old", [user("new", id="msg_1"), user("r")], ["new", "r"]),
    ("twice the same in one input", [user("x", id="msg_5"), user("x", id="msg_5")], ["x", "x"]),
    ("a new call under an id of old", [call("c1", '{"a":1}')], ["c1"]),
    ("a further output for a call of old", [output("c1", "other")], ["c1"]),
]


@pytest.mark.parametrize(("values", "expected"), [case[1:] for case in AGAIN], ids=[case[0] for case in AGAIN])
async def test_what_comes_again_is_taken_once(values: list[Any], expected: list[str], responses: SqlResponses) -> None:
    history = past(*HISTORY)
    found = await resolve(LOCAL, given(*values), history, responses)
    shown = [json.loads(encode_item(item)) for item, _ in found]
    assert [item.get("call_id") or item["content"][0]["text"] for item in shown] == expected
    ids = [item.id for item in [*history, *(item for item, _ in found)]]
    assert len(ids) == len(set(ids)) or values[0]["type"] in ("function_call", "function_call_output")


async def test_an_output_for_a_call_whose_id_is_used_again_is_kept(responses: SqlResponses) -> None:
    history = past(call("c0"), output("c0", "a"), user("q"), call("c0"))
    found = await resolve(LOCAL, given(output("c0", "a")), history, responses)
    assert [kind_of(item) for item, _ in found] == ["function_call_output"]


def mystery(kind: str, x: int) -> dict[str, Any]:
    return {"type": kind, "id": "item_7", "x": x}


async def test_items_of_unknown_kinds_that_share_an_id_are_told_apart(responses: SqlResponses) -> None:
    values = [mystery("strange", 1), mystery("mystery", 2), mystery("mystery", 3), mystery("mystery", 2)]
    found = await resolve(LOCAL, given(*values, {"type": "mystery", "id": "item_1", "x": 1}), past(*HISTORY), responses)
    shown = [json.loads(encode_item(item)) for item, _ in found]
    assert [(item["type"], item["x"]) for item in shown[:3]] == [("strange", 1), ("mystery", 2), ("mystery", 3)]
    assert [item["id"] for item in shown] == [item.id for item, _ in found]
    assert len({item["id"] for item in shown}) == len(shown)


async def test_a_long_history_sent_again_without_ids_is_recognised_in_time(responses: SqlResponses) -> None:
    turns = [value for n in range(8000) for value in (call(f"c{n}"), output(f"c{n}"))]
    history, again = past(*turns), given(*turns, user("r"))
    begun = time.perf_counter()
    found = await resolve(LOCAL, again, history, responses)
    assert [kind_of(item) for item, _ in found] == ["message"]
    assert time.perf_counter() - begun < 2


async def stored(responses: SqlResponses, items: Sequence[Item], scope: Scope = LOCAL) -> None:
    row = ResponseRow(id="resp_1", status="completed", model="m", created_at=1)
    kept = [StoredItem(item.id or "", kind_of(item), encode_item(item)) for item in items]
    await responses.settle(scope, SettledTurn(row=row, inputs=kept, outputs=[]))


async def test_a_reference_brings_what_is_stored_elsewhere(responses: SqlResponses) -> None:
    await stored(responses, past(user("far", id="msg_far")))
    found = await resolve(LOCAL, given({"id": "msg_far"}, {"id": "msg_far"}), [], responses)
    assert [(item.id, at) for item, at in found] == [("msg_far", "input[0]")]


async def test_a_reference_to_anothers_item_finds_nothing(responses: SqlResponses) -> None:
    await stored(responses, past(user("far", id="msg_far")), Scope("default", Principal("somebody else")))
    with pytest.raises(NotFound) as caught:
        await resolve(LOCAL, given(user("x"), {"id": "msg_far"}), [], responses)
    assert caught.value.param == "input[1].id"


SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
FILED = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"]}
BARE = [
    (SEARCHED, {"results": "Tea."}),
    (FILED, {"results": [{"file_id": "file-1", "filename": "a", "score": 0.5, "text": "Tea."}]}),
]


@pytest.mark.parametrize(("search", "results"), BARE, ids=["web", "files"])
@pytest.mark.parametrize("bare", [{}, {"results": None}], ids=["left out", "null"])
async def test_a_search_that_comes_without_its_results_is_the_stored_one(
    search: dict[str, Any], results: dict[str, Any], bare: dict[str, Any], responses: SqlResponses
) -> None:
    await stored(responses, past(search | results))
    found = await resolve(LOCAL, given(search | bare, user("x")), [], responses)
    assert json.loads(encode_item(found[0][0]))["results"] == results["results"]
    # What the client brings counts as it is, and what the history holds is not taken twice.
    own = {"results": "Mine."} if search is SEARCHED else {"results": [{"text": "Mine."}]}
    ((item, _),) = await resolve(LOCAL, given(search | own), [], responses)
    assert json.loads(encode_item(item))["results"] == own["results"]
    assert await resolve(LOCAL, given(search | bare), past(search | results), responses) == []


@pytest.mark.parametrize(("search", "results"), BARE, ids=["web", "files"])
async def test_a_search_of_somebody_else_stays_bare(
    search: dict[str, Any], results: dict[str, Any], responses: SqlResponses
) -> None:
    await stored(responses, past(search | results), Scope("default", Principal("somebody else")))
    ((item, _),) = await resolve(LOCAL, given(search), [], responses)
    assert not json.loads(encode_item(item)).get("results")


async def test_a_search_whose_id_is_that_of_something_else_stays_what_it_is(responses: SqlResponses) -> None:
    await stored(responses, past(FILED))
    ((item, _),) = await resolve(LOCAL, given(SEARCHED | {"id": FILED["id"]}), [], responses)
    assert kind_of(item) == "web_search_call"


FILES = [
    ({"type": "input_image"}, "input[0].content[0].image_url", "missing_required_parameter"),
    ({"type": "input_file", "filename": "x"}, "input[0].content[0].file_data", "missing_required_parameter"),
]


@pytest.mark.parametrize(("part", "param", "code"), FILES)
def test_a_part_without_anything_to_show_is_refused(part: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        given({"role": "user", "content": [part]})
    assert (caught.value.param, caught.value.code) == (param, code)
