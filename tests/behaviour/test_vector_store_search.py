"""Searching a vector store through the official client: modes, filters, thresholds, rankers, rewriting."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import error
from tests.behaviour.knowledge import Library, libraries, library, shared_library
from tests.behaviour.manifest import behaviour
from treadle.testing.turns import Refuse, Reply

__all__ = ["library", "shared_library"]

TEXTS = {
    "apple.txt": ("The apple pie needs sugar and cinnamon.", {"kind": "cake", "minutes": 9, "sweet": True}),
    "pear.txt": ("A pear tart with vanilla.", {"kind": "cake", "minutes": 100, "sweet": True}),
    "soup.txt": ("Leek soup with potatoes, called zz81q here.", {"kind": "soup", "minutes": 40, "sweet": False}),
    "bare.txt": ("A note without attributes about bread.", {}),
}


@pytest.fixture(scope="module")
def recipes(shared_library: Library) -> str:
    store = shared_library.store(name="recipes")
    for name, (text, attributes) in TEXTS.items():
        assert shared_library.add(store, text, name, attributes=attributes).status == "completed"
    return store


def names(library: Library, store: str, query: str = "food", **given: Any) -> set[str]:
    return {found.filename for found in library.search(store, query, **given).data}


def test_a_result_has_the_files_own_id_name_attributes_and_text(library: Library, recipes: str) -> None:
    page = library.post(f"/vector_stores/{recipes}/search", {"query": "apple pie"}).json()
    assert (page["object"], page["search_query"], page["has_more"], page["next_page"]) == (
        "vector_store.search_results.page",
        ["apple pie"],
        False,
        None,
    )
    best = page["data"][0]
    text, attributes = TEXTS["apple.txt"]
    files = {file.id for file in library.client.vector_stores.files.list(recipes)}
    assert best["file_id"] in files
    assert (best["filename"], best["attributes"]) == ("apple.txt", attributes)
    assert best["content"] == [{"type": "text", "text": text}]
    assert 0 < best["score"] <= 1
    assert next(found.filename for found in library.search(recipes, "apple pie")) == "apple.txt"


def test_several_queries_are_one_search(library: Library, recipes: str) -> None:
    page = library.search(recipes, ["apple pie", "leek soup"], max_num_results=2)
    assert {found.filename for found in page.data} == {"apple.txt", "soup.txt"}
    raw = library.post(f"/vector_stores/{recipes}/search", {"query": ["a", "b"]}).json()
    assert raw["search_query"] == ["a", "b"]


@behaviour("bug-65")
@pytest.mark.parametrize("mode", ["vector", "keyword", "hybrid"])
def test_scores_are_shares_and_a_threshold_is_applied_once_in_every_mode(
    library: Library, recipes: str, mode: str
) -> None:
    def scores(threshold: float) -> list[float]:
        page = library.search(
            recipes,
            "apple pie with sugar",
            ranking_options={"score_threshold": threshold},
            extra_body={"search_mode": mode},
        )
        return [found.score for found in page.data]

    everything = scores(0)
    assert everything
    assert everything == sorted(everything, reverse=True)
    for threshold in (0.5, 1.0, everything[0], everything[-1]):
        assert scores(threshold) == [score for score in everything if score >= threshold]


@behaviour("bug-65")
def test_what_is_named_by_a_rare_word_comes_first_when_words_count(library: Library, recipes: str) -> None:
    for mode in ("keyword", "hybrid"):
        page = library.search(recipes, "zz81q", extra_body={"search_mode": mode})
        assert page.data[0].filename == "soup.txt", mode
    assert names(library, recipes, "zz81q", extra_body={"search_mode": "keyword"}) == {"soup.txt"}
    assert names(library, recipes, "!!! ???", extra_body={"search_mode": "keyword"}) == set()


@behaviour("bug-64")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"type": "eq", "key": "kind", "value": "cake"}, {"apple", "pear"}),
        ({"type": "ne", "key": "kind", "value": "cake"}, {"soup", "bare"}),
        ({"type": "gt", "key": "minutes", "value": 9}, {"pear", "soup"}),
        ({"type": "gte", "key": "minutes", "value": 9.0}, {"apple", "pear", "soup"}),
        ({"type": "lt", "key": "minutes", "value": 100}, {"apple", "soup"}),
        ({"type": "lte", "key": "minutes", "value": 9}, {"apple"}),
        ({"type": "in", "key": "minutes", "value": [9, 40, "x"]}, {"apple", "soup"}),
        ({"type": "nin", "key": "minutes", "value": [9, 40]}, {"pear", "bare"}),
        ({"type": "eq", "key": "sweet", "value": True}, {"apple", "pear"}),
        ({"type": "eq", "key": "sweet", "value": 1}, set()),
        ({"type": "eq", "key": "it's \" odd", "value": "x"}, set()),
        (
            {
                "type": "and",
                "filters": [
                    {"type": "eq", "key": "sweet", "value": True},
                    {"type": "or", "filters": [{"type": "gt", "key": "minutes", "value": 50}]},
                ],
            },
            {"pear"},
        ),
        (
            {
                "type": "or",
                "filters": [
                    {"type": "eq", "key": "kind", "value": "soup"},
                    {"type": "lt", "key": "minutes", "value": 10},
                ],
            },
            {"soup", "apple"},
        ),
    ],
)
def test_filters_mean_what_they_say(library: Library, recipes: str, wanted: Any, expected: set[str]) -> None:
    assert names(library, recipes, filters=wanted) == {f"{name}.txt" for name in expected}


@behaviour("bug-64")
def test_what_a_filter_keeps_is_found_however_many_others_are_nearer(library: Library) -> None:
    store = library.store()
    near = [library.upload(f"apple pie apple pie {number}") for number in range(97)]
    far = [library.upload(f"zebra number {number}") for number in range(3)]
    library.client.vector_stores.file_batches.create(
        store,
        files=[
            *({"file_id": file, "attributes": {"n": 9}} for file in near),
            *({"file_id": file, "attributes": {"n": 100}} for file in far),
        ],
    )
    assert library.settled(store)["completed"] == 100
    page = library.search(store, "apple pie", filters={"type": "gt", "key": "n", "value": 9}, max_num_results=10)
    assert {found.file_id for found in page.data} == set(far)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": ""}, "query"),
        ({"query": []}, "query"),
        ({"query": ["x", ""]}, "query[1]"),
        ({"query": 5}, "query"),
        ({"query": "x", "max_num_results": 0}, "max_num_results"),
        ({"query": "x", "max_num_results": 51}, "max_num_results"),
        ({"query": "x", "search_mode": "magic"}, "search_mode"),
        ({"query": "x", "filters": {"type": "like", "key": "a", "value": "b"}}, "filters.type"),
        ({"query": "x", "filters": {"type": "eq", "value": "b"}}, "filters.key"),
        ({"query": "x", "filters": {"type": "eq", "key": "b"}}, "filters.value"),
        ({"query": "x", "filters": {"type": "and", "filters": [{"type": "or"}]}}, "filters.filters[0].filters"),
        ({"query": "x", "ranking_options": {"score_threshold": 1.1}}, "ranking_options.score_threshold"),
        ({"query": "x", "ranking_options": {"ranker": "magic"}}, "ranking_options.ranker"),
        ({"query": "x", "ranking_options": {"ranker": "neural"}}, "ranking_options.model"),
        (
            {"query": "x", "ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}},
            "ranking_options.hybrid_search",
        ),
        ({"query": "x", "ranking_options": {"weights": {"vector": 0.9}}}, "ranking_options.weights"),
        ({"query": "x", "rewrite_query": True}, "rewrite_query"),
    ],
)
def test_a_search_that_cannot_be_is_refused_by_its_place(library: Library, recipes: str, body: Any, param: str) -> None:
    assert error(library.post(f"/vector_stores/{recipes}/search", body), 400)["param"] == param


@pytest.mark.parametrize(
    "options",
    [
        {"ranker": "auto"},
        {"ranker": "default-2024-11-15"},
        {"ranker": "none"},
        {"ranker": "rrf", "impact_factor": 5},
        {"ranker": "weighted", "alpha": 0.2},
        {"weights": {"vector": 0.7, "keyword": 0.3}},
        {"hybrid_search": {"embedding_weight": 1, "text_weight": 3}},
        {"ranker": "neural", "model": "scripted/judge"},
        {"weights": {"vector": 0.3, "keyword": 0.3, "neural": 0.4}, "model": "scripted/judge"},
    ],
)
def test_every_ranker_finds_the_obvious_first_with_scores_in_bounds(
    library: Library, recipes: str, options: Any
) -> None:
    page = library.search(recipes, "apple pie sugar cinnamon", extra_body={"ranking_options": options})
    assert page.data[0].filename == "apple.txt"
    assert all(0 <= found.score <= 1 for found in page.data)


def test_a_reranker_that_is_not_there_is_a_clear_fault(library: Library, recipes: str) -> None:
    body = {"query": "x", "ranking_options": {"ranker": "neural", "model": "local/nobody"}}
    refused = error(library.post(f"/vector_stores/{recipes}/search", body), 404)
    assert refused["param"] == "ranking_options.model"


def test_a_query_is_rewritten_by_the_default_model_and_shown(tmp_path_factory: pytest.TempPathFactory) -> None:
    with libraries(tmp_path_factory.mktemp("rewriting"), "default_model: scripted/scripted") as library:
        store = library.store()
        library.add(store, "apple pie")
        library.model.script(Reply(text='"apple pie recipe"'), Refuse(400, {"error": {"message": "no"}}))
        page = library.post(f"/vector_stores/{store}/search", {"query": "how do I…", "rewrite_query": True}).json()
        assert page["search_query"] == ["apple pie recipe"]
        assert page["data"][0]["content"][0]["text"] == "apple pie"
        page = library.post(f"/vector_stores/{store}/search", {"query": "how do I…", "rewrite_query": True}).json()
        assert page["search_query"] == ["how do I…"], "the model refused, so the query is searched for as it is"


def test_an_empty_store_has_no_results(library: Library) -> None:
    assert library.search(library.store(), "anything").data == []


def test_chunks_with_ready_vectors_are_inserted_found_and_filtered(library: Library) -> None:
    store = library.store()
    vectors = library.client.embeddings.create(
        model="scripted/words", input=["green moss", "red fox"], encoding_format="float"
    )
    chunks = [
        {
            "content": text,
            "chunk_id": f"c{number}",
            "metadata": {"document_id": f"doc{number}", "topic": topic},
            "chunk_metadata": {"document_id": f"doc{number}", "content_token_count": 2},
            "embedding": vectors.data[number].embedding,
            "embedding_model": "scripted/words",
            "embedding_dimension": 64,
        }
        for number, (text, topic) in enumerate((("green moss", "plant"), ("red fox", "animal")))
    ]
    done = library.post("/vector-io/insert", {"vector_store_id": store, "chunks": chunks})
    assert (done.status_code, done.content) == (204, b"")
    found = library.post("/vector-io/query", {"vector_store_id": store, "query": "fox"}).json()
    assert [chunk["metadata"]["document_id"] for chunk in found["chunks"]] == ["doc1", "doc0"]
    assert len(found["scores"]) == 2
    params = {"filters": {"type": "eq", "key": "topic", "value": "plant"}, "max_chunks": 1}
    found = library.post("/vector-io/query", {"vector_store_id": store, "query": "fox", "params": params}).json()
    assert [chunk["chunk_id"] for chunk in found["chunks"]] == ["c0"]
    best = library.search(store, "moss").data[0]
    assert (best.file_id, best.attributes) == ("doc0", {"document_id": "doc0", "topic": "plant"})
    assert library.counts(store)["total"] == 0
    for body in ({"vector_store_id": "vs_0", "chunks": []}, {"vector_store_id": "vs_0", "query": "x"}):
        path = "/vector-io/insert" if "chunks" in body else "/vector-io/query"
        assert error(library.post(path, body), 404)["param"] in ("vector_store_id", "vector_store_ids")
