"""Searches that the server makes before it asks the model, mostly for models that cannot call tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from tests.unit.engine.search_kit import (
    WEAK,
    Desk,
    Shelf,
    conversations,
    database,
    desk,
    migrated,
    nothing,
    passage,
    path,
    responses,
    told,
    tool,
)
from treadle.engine.knowledge import MAX_QUERY
from treadle.engine.loop import run
from treadle.engine.telling import FileSearchRules
from treadle.engine.turn import Turn
from treadle.errors import StorageFault, UpstreamTimeout
from treadle.ports import Capabilities, PassageQuery, Passages
from treadle.scope import Scope
from treadle.testing import ScriptedModel
from treadle.testing.gates import Gate
from treadle.testing.scripted import calls, says
from treadle.testing.sequence import check_sequence
from treadle.wire.base import encode

__all__ = ["conversations", "database", "desk", "migrated", "path", "responses"]


async def test_a_model_without_tools_gets_the_passages_before_the_question(desk: Desk) -> None:
    model = ScriptedModel(says("Tea is a drink 【1】."), capabilities=WEAK)
    shelf = Shelf(vs_1=[passage(1, "Tea is a drink.")])
    events, response = await desk.ask(shelf, model, tools=[tool("vs_1")], instructions="Be kind.")
    search, message = response["output"]
    assert (search["type"], search["status"], search["queries"]) == ("file_search_call", "completed", ["What is tea?"])
    assert [event["type"] for event in events[2:7]] == [
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
    ]
    (request,) = model.requests
    assert request.functions == []
    assert [one.role for one in request.messages] == ["system", "user"]
    text = told(model, 0)
    assert text.endswith("\n\nAccording to the text above: What is tea?")
    assert text.count("</outside-") == 1
    assert "write the passage's number" not in text
    assert message["content"][0]["annotations"] == [
        {"type": "file_citation", "file_id": "file-1", "filename": "1.md", "index": 14}
    ]


async def test_a_model_that_cites_nothing_gets_no_citation(desk: Desk) -> None:
    model = ScriptedModel(says("Tea is a drink."), capabilities=WEAK)
    _, response = await desk.ask(Shelf(vs_1=[passage(1, "Tea is a drink.")]), model, tools=[tool("vs_1")])
    assert response["output"][1]["content"][0]["annotations"] == []


async def test_a_small_window_gets_few_passages(desk: Desk) -> None:
    words = " ".join(["word"] * 300)  # 375 tokens
    shelf = Shelf(vs_1=[passage(n, words) for n in range(5)])
    shown = {}
    for window in (None, 4096, 2048, 1024):
        model = ScriptedModel(says("Yes."), capabilities=Capabilities(tools=False, context_window=window))
        await desk.ask(shelf, model, tools=[tool("vs_1")], instructions="x" * 1600)
        shown[window] = told(model, 0).count("word")
    assert shown == {None: 600, 4096: 600, 2048: 300, 1024: pytest.approx(200, abs=10)}


@pytest.mark.parametrize(
    ("rules", "declared", "can_call", "searches"),
    [
        ("auto", None, True, False),
        ("auto", None, False, True),
        ("always", None, True, True),
        ("never", None, False, False),
        ("never", "always", True, True),
        ("always", "never", True, False),
        ("always", "auto", True, False),
        ("never", "auto", False, True),
    ],
)
async def test_who_decides_whether_the_server_searches_first(
    desk: Desk, rules: Any, declared: str | None, can_call: bool, searches: bool
) -> None:
    plan = await desk.plan(
        Shelf(vs_1=[]),
        ScriptedModel(capabilities=Capabilities(tools=can_call)),
        FileSearchRules(retrieve_first=rules),
        tools=[tool("vs_1", **({"retrieve_first": declared} if declared else {}))],
    )
    assert (plan.first_search is not None) == searches


@pytest.mark.parametrize(
    ("choice", "searches"),
    [
        ("auto", True),
        ("none", False),
        ("required", True),
        ({"type": "file_search"}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "file_search"}]}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "act"}]}, False),
    ],
)
async def test_tool_choice_forbids_or_is_met(desk: Desk, choice: Any, searches: bool) -> None:
    model = ScriptedModel(says("Yes."))
    shelf = Shelf(vs_1=[passage(1)])
    act = msgspec.Raw(encode({"type": "function", "name": "act"}))
    _, response = await desk.ask(
        shelf,
        model,
        FileSearchRules(retrieve_first="always"),
        tools=[tool("vs_1"), act],
        tool_choice=msgspec.Raw(encode(choice)),
    )
    assert [item["type"] for item in response["output"]] == ["file_search_call"] * searches + ["message"]
    assert model.requests[0].tool_choice == ("none" if choice == "none" else None)


async def test_a_forced_function_is_still_forced_after_the_servers_own_search(desk: Desk) -> None:
    model = ScriptedModel(calls("act"))
    act = msgspec.Raw(encode({"type": "function", "name": "act"}))
    await desk.ask(
        Shelf(vs_1=[passage(1)]),
        model,
        FileSearchRules(retrieve_first="always"),
        tools=[tool("vs_1"), act],
        tool_choice=msgspec.Raw(b'{"type":"function","name":"act"}'),
    )
    assert model.requests[0].tool_choice == "function:act"


async def test_a_model_with_tools_sees_the_servers_search_as_a_call_and_may_search_on(desk: Desk) -> None:
    model = ScriptedModel(calls("file_search", '{"query": "milk"}'), says("Both 【1】【2】."))
    shelf = Shelf(vs_1=[passage(1)])
    _, response = await desk.ask(
        shelf, model, tools=[tool("vs_1", retrieve_first="always")], max_tool_calls=2, input="Tea?"
    )
    assert [item["type"] for item in response["output"]] == ["file_search_call", "file_search_call", "message"]
    first, second = model.requests
    assert [one.role for one in first.messages] == ["user", "assistant", "tool"]
    assert first.messages[1].calls[0].name == "file_search"
    assert json.loads(first.messages[1].calls[0].arguments) == {"query": "Tea?"}
    assert [one.role for one in second.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert "【1】 1.md" in told(model, 0)
    assert "【2】 1.md" in told(model, 1)


async def test_only_the_declarations_that_want_it_are_searched_first(desk: Desk) -> None:
    model = ScriptedModel(says("Yes."))
    shelf = Shelf(vs_1=[], vs_2=[])
    await desk.ask(shelf, model, tools=[tool("vs_1"), tool("vs_2", retrieve_first="always")])
    assert [query.stores for query in shelf.asked] == [["vs_2"]]


async def test_a_failed_search_of_the_server_is_told_and_the_model_answers(desk: Desk) -> None:
    model = ScriptedModel(says("I do not know."), capabilities=WEAK)
    _, response = await desk.ask(Shelf(vs_1=StorageFault("Down.")), model, tools=[tool("vs_1")])
    assert [item["type"] for item in response["output"]] == ["file_search_call", "message"]
    assert response["output"][0]["status"] == "failed"
    assert told(model, 0) == "The tool failed: Down.\n\nWhat is tea?"


async def test_a_long_question_is_searched_by_its_beginning_and_end(desk: Desk) -> None:
    model = ScriptedModel(says("Yes."), capabilities=WEAK)
    shelf = Shelf(vs_1=[passage(1)])
    text = "Begin. " + "x" * 50_000 + " What is tea?"
    parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    await desk.ask(shelf, model, tools=[tool("vs_1")], input=[msgspec.Raw(encode({"role": "user", "content": parts}))])
    (query,) = shelf.asked[0].queries
    assert query.startswith("Begin. ")
    assert query.endswith(" What is tea?")
    assert len(query) <= MAX_QUERY


async def test_without_a_question_of_this_turn_nothing_is_searched(desk: Desk) -> None:
    items = [
        {"role": "user", "content": "Tea?"},
        {"type": "function_call", "call_id": "c", "name": "act", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    searched_already = [
        *items[:1],
        {"type": "file_search_call", "id": "fs_1", "queries": ["Tea?"], "results": [{"file_id": "f", "text": "Tea."}]},
        *items[1:],
    ]
    only_system = [{"role": "developer", "content": "Hi."}]
    for given, searched in ((items, True), (searched_already, False), (only_system, False)):
        plan = await desk.plan(
            Shelf(vs_1=[]),
            ScriptedModel(capabilities=WEAK),
            tools=[tool("vs_1")],
            input=[msgspec.Raw(encode(item)) for item in given],
        )
        assert (plan.first_search is not None) == searched


class SlowShelf(Shelf):
    """A shelf that is searched for ever."""

    def __init__(self) -> None:
        super().__init__(vs_1=[])
        self.searching = Gate()

    async def passages(self, scope: Scope, query: PassageQuery) -> Passages:
        self.searching.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("told_why", [True, False])
async def test_a_turn_that_is_interrupted_while_it_searches_ends_in_order(desk: Desk, told_why: bool) -> None:
    shelf = SlowShelf()
    plan = await desk.plan(shelf, ScriptedModel(capabilities=WEAK), tools=[tool("vs_1")])
    turn = Turn(plan, plan.response)
    events: list[dict[str, Any]] = []

    async def drain() -> None:
        async for batch in run(turn, nothing):
            events.extend(json.loads(encode(event)) for event in batch)

    task = asyncio.create_task(drain())
    await shelf.searching.wait()
    turn.interruption = UpstreamTimeout("Too late.") if told_why else None
    task.cancel()
    if told_why:
        await task
        assert events[-1]["response"]["output"][0]["status"] == "failed"
    else:
        with pytest.raises(asyncio.CancelledError):
            await task
    check_sequence(events, complete=told_why)
    assert [json.loads(bytes(raw))["status"] for raw in turn.raws.values()] == ["failed"]
