"""File search as the engine does it: queries, bounds, what the model is told, and what happens when stores fail."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.behaviour.manifest import behaviour
from tests.unit.engine.search_kit import (
    Desk,
    Shelf,
    conversations,
    database,
    desk,
    migrated,
    passage,
    path,
    responses,
    told,
    tool,
)
from treadle.engine.citations import Numbers
from treadle.engine.knowledge import MAX_QUERY, queries_of
from treadle.engine.render import NO_RESULTS, render
from treadle.engine.telling import FileSearchRules, recall, tell, tokens_of
from treadle.engine.toolset import ToolSet
from treadle.engine.untrusted import NOTE, wrapped
from treadle.errors import InvalidRequest, NotFound, StorageFault
from treadle.ports import Capabilities, Passage, PassageQuery, TextPart
from treadle.testing import ScriptedModel
from treadle.testing.scripted import calls, says
from treadle.wire.base import encode
from treadle.wire.content import InputImage, InputText, OutputText
from treadle.wire.items import FileSearchCall, FileSearchRecord, FoundPassage, Message, Told
from treadle.wire.retrieval import Filter, RankingOptions

__all__ = ["conversations", "database", "desk", "migrated", "path", "responses"]


# ------------------------------------------------------------------------------------------------ calls


async def test_the_model_searches_and_cites(desk: Desk) -> None:
    model = ScriptedModel(calls("file_search", '{"query": "tea"}'), says("Tea is a ", "drink 【", "2】", "."))
    shelf = Shelf(vs_1=[passage(1, score=0.2, page=3, section="Milk"), passage(2, score=0.9)])
    events, response = await desk.ask(shelf, model, tools=[tool("vs_1")])
    search, message = response["output"]
    assert search == {
        "type": "file_search_call",
        "id": search["id"],
        "status": "completed",
        "queries": ["tea"],
        "results": None,
    }
    assert search["id"].startswith("fs_")
    assert [event["type"] for event in events[2:7]] == [
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
    ]
    assert events[2]["item"] == search | {"status": "in_progress", "queries": []}
    (part,) = message["content"]
    assert part["text"] == "Tea is a drink."
    assert part["annotations"] == [{"type": "file_citation", "file_id": "file-1", "filename": "1.md", "index": 14}]
    text = told(model)
    assert text.index("【1】 2.md\nText 2.") < text.index("【2】 1.md (page 3; Milk)\nText 1.")
    assert text.startswith(NOTE)
    assert text.endswith("write the passage's number like this: 【1】.")
    assert text.count("<outside-") == text.count("</outside-") == 1
    assert shelf.asked == [PassageQuery(stores=["vs_1"], queries=["tea"], limit=10)]


async def test_results_are_shown_if_asked_for(desk: Desk) -> None:
    model = ScriptedModel(calls("file_search", '{"query": "tea"}'), says("Yes."))
    shelf = Shelf(vs_1=[Passage("file-1", "1.md", 0.5, "Text.", {"year": 1987, "draft": False}, page=2)])
    _, response = await desk.ask(shelf, model, tools=[tool("vs_1")], include=["file_search_call.results"])
    assert response["output"][0]["results"] == [
        {
            "file_id": "file-1",
            "filename": "1.md",
            "score": 0.5,
            "text": "Text.",
            "attributes": {"year": 1987, "draft": False},
            "page": 2,
        }
    ]


async def test_what_was_declared_bounds_every_search(desk: Desk) -> None:
    arguments = '{"query": "tea", "filters": null, "max_num_results": 50, "vector_store_ids": ["vs_2"]}'
    model = ScriptedModel(calls("file_search", arguments), says("Yes."))
    shelf = Shelf(vs_1=[passage(n) for n in range(9)], vs_2=[passage(10)])
    given = {"type": "eq", "key": "year", "value": 1987}
    declared = tool("vs_1", "vs_1", max_num_results=3, filters=given, ranking_options={"score_threshold": 0.25})
    await desk.ask(shelf, model, tools=[declared])
    assert shelf.asked == [
        PassageQuery(
            stores=["vs_1"],
            queries=["tea"],
            filters=Filter(type="eq", key="year", value=1987),
            ranking=RankingOptions(score_threshold=0.25),
            limit=3,
        )
    ]


async def test_several_declarations_are_one_function_each_within_its_bounds(desk: Desk) -> None:
    model = ScriptedModel(calls("file_search", '{"queries": ["tea", "milk"]}'), says("Yes 【1】."))
    shelf = Shelf(vs_1=[passage(1, score=0.3)], vs_2=[passage(2, score=0.8), passage(1, score=0.1)])
    _, response = await desk.ask(
        shelf, model, tools=[tool("vs_1"), tool("vs_2", max_num_results=2)], include=["file_search_call.results"]
    )
    assert [function.name for function in model.requests[0].functions] == ["file_search"]
    assert [(query.stores, query.limit, query.queries) for query in shelf.asked] == [
        (["vs_1"], 10, ["tea", "milk"]),
        (["vs_2"], 2, ["tea", "milk"]),
    ]
    assert response["output"][0]["queries"] == ["tea", "milk"]
    assert [(one["file_id"], one["score"]) for one in response["output"][0]["results"]] == [
        ("file-2", 0.8),
        ("file-1", 0.3),
    ]
    assert response["output"][1]["content"][0]["annotations"][0]["file_id"] == "file-2"


@pytest.mark.parametrize(
    ("arguments", "queries"),
    [
        ('{"query": " tea "}', ["tea"]),
        ('{"queries": ["tea", "milk", "tea", " "]}', ["tea", "milk"]),
        ('{"query": ["tea"], "queries": "milk"}', ["tea", "milk"]),
        ('{"query": "a", "queries": ["b"]}', ["a", "b"]),
        ("{}", []),
        ("", []),
        ('{"query": 3}', []),
        (json.dumps({"query": "x" * 5000}), ["x" * MAX_QUERY]),
        (json.dumps({"queries": [str(n) for n in range(30)]}), [str(n) for n in range(8)]),
    ],
)
def test_queries_are_understood_however_a_model_spells_them(arguments: str, queries: list[str]) -> None:
    assert queries_of(arguments) == queries


async def test_a_call_without_a_query_fails_and_the_model_is_told(desk: Desk) -> None:
    model = ScriptedModel(calls("file_search", "{}"), says("Sorry."))
    _, response = await desk.ask(Shelf(vs_1=[]), model, tools=[tool("vs_1")])
    assert (response["output"][0]["status"], response["status"]) == ("failed", "completed")
    assert told(model) == "The tool failed: The query is empty."


async def test_stores_that_cannot_be_searched_fail_the_item_and_the_answer_goes_on(desk: Desk) -> None:
    model = ScriptedModel(calls("file_search", '{"query": "tea"}'), says("From memory 【1】."))
    events, response = await desk.ask(Shelf(vs_1=StorageFault("It is down.")), model, tools=[tool("vs_1")])
    search, message = response["output"]
    assert (search["status"], search["results"], search["queries"]) == ("failed", None, ["tea"])
    assert message["content"][0]["text"] == "From memory."
    assert "It is down." in told(model)
    assert "response.file_search_call.completed" not in [event["type"] for event in events]


@pytest.mark.parametrize("apart", [True, False])
async def test_one_broken_store_of_several_is_a_note_to_the_model(desk: Desk, apart: bool) -> None:
    model = ScriptedModel(calls("file_search", '{"query": "tea"}'), says("Yes."))
    shelf = Shelf(vs_1=StorageFault("It is down."), vs_2=[passage(2)])
    tools = [tool("vs_1"), tool("vs_2")] if apart else [tool("vs_1", "vs_2")]
    _, response = await desk.ask(shelf, model, tools=tools)
    assert response["output"][0]["status"] == "completed"
    assert "Text 2." in told(model)
    assert told(model).endswith("Not searched, because of a fault: vs_1 (It is down.)")


async def test_a_mark_after_an_empty_search_leaves_no_litter(desk: Desk) -> None:
    model = ScriptedModel(calls("file_search", '{"query": "tea"}'), says("Nobody knows <|file-1|>【1】."))
    _, response = await desk.ask(Shelf(vs_1=[]), model, tools=[tool("vs_1")])
    assert response["output"][1]["content"][0] == {
        "type": "output_text",
        "text": "Nobody knows.",
        "annotations": [],
        "logprobs": [],
    }
    assert told(model) == "Nothing was found."


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("tools", "kind", "param"),
    [
        ([{"type": "file_search"}], InvalidRequest, "tools[0].vector_store_ids"),
        ([{"type": "file_search", "vector_store_ids": []}], InvalidRequest, "tools[0].vector_store_ids"),
        ([{"type": "file_search", "vector_store_ids": [""]}], InvalidRequest, "tools[0].vector_store_ids[0]"),
        (
            [{"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 51}],
            InvalidRequest,
            "tools[0].max_num_results",
        ),
        (
            [{"type": "file_search", "vector_store_ids": ["vs_1"], "retrieve_first": "yes"}],
            InvalidRequest,
            "tools[0].retrieve_first",
        ),
        (
            [{"type": "file_search", "vector_store_ids": ["vs_1"], "filters": {"type": "eq", "key": "a"}}],
            InvalidRequest,
            "tools[0].filters.value",
        ),
        (
            [{"type": "file_search", "vector_store_ids": ["vs_1"], "ranking_options": {"ranker": "neural"}}],
            InvalidRequest,
            "tools[0].ranking_options.model",
        ),
        ([{"type": "file_search", "vector_store_ids": ["vs_1", "vs_9"]}], NotFound, "tools[0].vector_store_ids[1]"),
        (
            [
                {"type": "file_search", "vector_store_ids": ["vs_1"]},
                {"type": "file_search", "vector_store_ids": ["vs_9"]},
            ],
            NotFound,
            "tools[1].vector_store_ids[0]",
        ),
    ],
)
async def test_bad_declarations_are_refused_by_name_before_the_model_is_asked(
    desk: Desk, tools: list[dict[str, Any]], kind: type[InvalidRequest], param: str
) -> None:
    shelf = Shelf(vs_1=[])
    with pytest.raises(kind) as caught:
        await desk.plan(shelf, ScriptedModel(), tools=[msgspec.Raw(encode(one)) for one in tools])
    assert caught.value.param == param
    assert shelf.asked == []


# ----------------------------------------------------------------------------------- what the model is told


def results(*texts: str) -> list[FoundPassage]:
    return [FoundPassage(file_id=f"file-{n}", filename=f"{n}.md", score=0.5, text=one) for n, one in enumerate(texts)]


def test_the_lowest_scored_passages_are_left_out_when_the_budget_is_spent() -> None:
    words = " ".join(["word"] * 200)  # 250 tokens
    found = tell(results(words, words, words, "x"), ["q"], FileSearchRules(), Numbers(4), 600)
    assert found.numbers == [5, 6, 0, 0]
    assert found.passages.count("word") == 400
    assert "(2 more were found that do not fit here.)" in found.behind


def test_of_a_first_passage_that_is_too_long_the_beginning_is_shown() -> None:
    found = tell(results(" ".join(["词语"] * 5000), "x"), ["q"], FileSearchRules(), Numbers(), 300)
    assert found.numbers == [1, 0]
    assert 200 < tokens_of(found.passages) <= 301
    assert found.passages.endswith("词语 …")


@behaviour("also-templates")
def test_templates_are_filled_once_and_nothing_in_a_value_is_read_again() -> None:
    rules = FileSearchRules(
        header="H {query} {num_chunks} {text}",
        context="[{index}|{file_id}|{filename}|{score}|{metadata}] {text} {unknown}",
        footer="F {num_chunks}",
        annotation="<|{file_id}|>",
    )
    hostile = FoundPassage(
        file_id="file-{text}",
        filename="{query}",
        score=0.256,
        text="{index} {0.__class__} {filename!r} %s",
        attributes={"{score}": "{text}"},
    )
    found = tell([hostile], ["{num_chunks}"], rules, Numbers(), 1000)
    assert found.before == "H {num_chunks} 1 {text}"
    assert found.passages == (
        "[1|file-{text}|{query}|0.26| ({score}: {text})] {index} {0.__class__} {filename!r} %s {unknown}"
    )
    assert found.behind == "F 1\n<|file-{text}|>"


def test_results_that_a_client_sends_back_are_told_again_under_numbers_of_their_own() -> None:
    history = [FileSearchCall(id="fs_1", queries=["q"], results=results("one", "two"))]
    inputs = [FileSearchCall(id="fs_2", queries=["q"], results=results("three")), FileSearchCall(id="fs_3")]
    found = recall(list(history), list(inputs), FileSearchRules(), 1000)
    ids = [getattr(item, "told", None) for item in (*found.history, *found.inputs)]
    assert [one.numbers if isinstance(one, Told) else None for one in ids] == [[1, 2], [3], None]
    assert [source.file_id for source in found.citable.named("1, 3", None)] == ["file-0", "file-0"]  # type: ignore[union-attr]
    assert found.numbers.next() == 4


# --------------------------------------------------------------------------------------------- history


def user(*parts: Any) -> Message:
    return Message(
        id="msg", role="user", content=[InputText(part) if isinstance(part, str) else part for part in parts]
    )


def answer(text: str) -> Message:
    return Message(id="msg", role="assistant", content=[OutputText(text=text)])


def searched(number: int, text: str) -> FileSearchRecord:
    return FileSearchRecord(
        id=f"fs_{number}", queries=["q"], told=Told(before="Found:", passages=text, behind="Cite.", numbers=[number])
    )


def test_a_chain_shows_a_model_with_tools_every_search_as_a_call() -> None:
    items = [user("one"), searched(1, "first"), answer("1"), user("two"), searched(2, "second"), answer("2")]
    found = render(items, ToolSet(), Capabilities())
    assert [one.role for one in found] == ["user", "assistant", "tool", "assistant"] * 2
    assert found[2].content == f"Found:\n{wrapped('first', 'fs_1')}\nCite."
    assert render(items[:3], ToolSet(), Capabilities()) == found[:4]


def test_a_chain_shows_a_model_without_tools_the_last_search_before_its_question() -> None:
    picture = InputImage(image_url="https://a.example/x.png")
    items = [user("one"), searched(1, "first"), answer("1"), user("two", picture), searched(2, "second")]
    found = render(items, ToolSet(), Capabilities(tools=False))
    assert [one.role for one in found] == ["user", "assistant", "user"]
    assert found[0].content == "one"
    parts = found[2].content
    assert parts[0] == TextPart(f"Found:\n{wrapped('second', 'fs_2')}\nCite.\n\nAccording to the text above: ")
    assert parts[1] == TextPart("two")


def test_a_search_of_a_model_with_more_room_is_cut_for_one_with_less() -> None:
    items = [user("one"), searched(1, "word " * 9000)]
    (found,) = render(items, ToolSet(), Capabilities(tools=False, context_window=2048))
    assert isinstance(found.content, str)
    assert 2000 < len(found.content) < 2700


def test_of_a_search_that_was_not_stored_only_the_call_is_known() -> None:
    items = [user("one"), FileSearchCall(id="fs_" + "0" * 34, queries=["q"]), answer("1")]
    assert [one.content for one in render(items, ToolSet(), Capabilities())] == ["one", "", NO_RESULTS, "1"]
    assert [one.content for one in render(items, ToolSet(), Capabilities(tools=False))] == ["one", "1"]


def test_another_servers_search_is_not_shown() -> None:
    items = [user("one"), FileSearchCall(id="fs_1", queries=["q"]), answer("1")]
    assert [one.content for one in render(items, ToolSet(), Capabilities())] == ["one", "1"]
