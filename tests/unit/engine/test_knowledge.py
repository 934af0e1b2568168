"""File search as the engine does it: queries, bounds, what the model is told, and what happens when stores fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.unit.store.conftest import conversations, database, migrated, path, responses
from treadle.access.sealing import KeySealer
from treadle.engine.citations import Numbers
from treadle.engine.knowledge import MAX_QUERY, FileSearchRules, queries_of, recall, tell, tokens_of
from treadle.engine.loop import run
from treadle.engine.prepare import Preparation, prepare
from treadle.engine.turn import Plan, Turn
from treadle.errors import InvalidRequest, NotFound, StorageFault
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.ports import Capabilities, Passage, PassageQuery, Passages
from treadle.scope import LOCAL, Scope
from treadle.store.conversations import SqlConversations
from treadle.store.responses import SqlResponses
from treadle.testing import ScriptedModel
from treadle.testing.scripted import calls, says
from treadle.testing.sequence import check_sequence
from treadle.wire.base import encode
from treadle.wire.items import FileSearchCall, FoundPassage, Told
from treadle.wire.responses import CreateResponse
from treadle.wire.retrieval import Filter, RankingOptions

__all__ = ["conversations", "database", "migrated", "path", "responses"]

WEAK = Capabilities(tools=False, context_window=8192)


def passage(number: int, text: str = "", score: float = 0.5, **more: Any) -> Passage:
    return Passage(f"file-{number}", f"{number}.md", score, text or f"Text {number}.", {}, **more)


class Shelf:
    """A `PassageSearch` over stores that hold what a test puts into them; a fault in one is raised or reported."""

    def __init__(self, **stores: list[Passage] | Exception) -> None:
        self.stores = stores
        self.asked: list[PassageQuery] = []

    async def check(self, scope: Scope, stores: Sequence[str], param: str) -> None:
        for store in stores:
            if store not in self.stores:
                raise NotFound(f"Vector store '{store}' not found.", param=param)

    async def passages(self, scope: Scope, query: PassageQuery) -> Passages:
        self.asked.append(query)
        await self.check(scope, query.stores, "vector_store_ids")
        found = Passages([], {})
        faults = [fault for store in query.stores if isinstance(fault := self.stores[store], Exception)]
        if len(faults) == len(query.stores):
            raise faults[0]
        for store in query.stores:
            held = self.stores[store]
            if isinstance(held, Exception):
                found.broken[store] = str(held)
            else:
                found.found += held
        found.found = sorted(found.found, key=lambda one: -one.score)[: query.limit]
        return found


class Desk:
    """Prepares and runs turns with a shelf."""

    def __init__(self, responses: SqlResponses, conversations: SqlConversations) -> None:
        self._stores = (responses, conversations)

    async def plan(self, shelf: Shelf, model: ScriptedModel, rules: FileSearchRules | None = None, **body: Any) -> Plan:
        router = ModelRouter({})
        router.add(ProviderEntry("scripted", model))
        given = Preparation(
            router=router,
            responses=self._stores[0],
            conversations=self._stores[1],
            sealer=KeySealer(b"k" * 32),
            server_tools={},
            passages=shelf,
            file_search=rules or FileSearchRules(),
        )
        fields = {"model": "scripted/scripted", "input": "What is tea?"} | body
        return await prepare(LOCAL, msgspec.convert(fields, CreateResponse), given)

    async def ask(
        self, shelf: Shelf, model: ScriptedModel, rules: FileSearchRules | None = None, **body: Any
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The events, checked for legal order, and the response."""
        plan = await self.plan(shelf, model, rules, **body)
        turn = Turn(plan, plan.response)
        events = [json.loads(encode(event)) async for batch in run(turn, _settle) for event in batch]
        check_sequence(events)
        model.assert_consumed()
        response: dict[str, Any] = events[-1]["response"]
        return events, response


async def _settle(turn: Turn) -> None:
    """Nothing is stored here."""


@pytest.fixture
def desk(responses: SqlResponses, conversations: SqlConversations) -> Desk:
    return Desk(responses, conversations)


def tool(*stores: str, **more: Any) -> msgspec.Raw:
    return msgspec.Raw(encode({"type": "file_search", "vector_store_ids": list(stores), **more}))


def told(model: ScriptedModel, request: int = 1) -> str:
    content = model.requests[request].messages[-1].content
    assert isinstance(content, str)
    return content


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
    assert text.startswith("Passages that were found, the best first:\n")
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
    found = recall(list(history), list(inputs), FileSearchRules())
    ids = [getattr(item, "told", None) for item in (*found.history, *found.inputs)]
    assert [one.numbers if isinstance(one, Told) else None for one in ids] == [[1, 2], [3], None]
    assert [source.file_id for source in found.citable.named("1, 3", None)] == ["file-0", "file-0"]  # type: ignore[union-attr]
    assert found.numbers.next() == 4


# ------------------------------------------------------------------------------------- searching first


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
