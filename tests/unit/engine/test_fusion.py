"""Ranking options, scores and orders (contract §13.5, bug case 65)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.fusion import (
    Ranking,
    RankingDefaults,
    Scored,
    best_of,
    blended,
    fused,
    kept,
    keyword_score,
    ranking,
    vector_score,
)
from treadle.errors import InvalidRequest
from treadle.wire.retrieval import RankingOptions, SearchMode

DEFAULTS = RankingDefaults(model="reranker")
DECODER = msgspec.json.Decoder(RankingOptions)
MODES: list[SearchMode] = ["vector", "keyword", "hybrid"]

# Cosines and BM25 weights, best first.
NEAREST = [Scored("a", 0.9), Scored("b", 0.6), Scored("c", -0.2)]
MATCHING = [Scored("b", 30.0), Scored("d", 10.0)]


def ranked(options: dict[str, Any] | None = None, mode: SearchMode | None = None, **defaults: Any) -> Ranking:
    given = None if options is None else DECODER.decode(msgspec.json.encode(options))
    return ranking(given, mode, defaults=RankingDefaults(**defaults) if defaults else DEFAULTS)


def order(options: dict[str, Any] | None = None, mode: SearchMode | None = "hybrid") -> list[str]:
    return [hit.key for hit in fused(NEAREST, MATCHING, ranked(options, mode))]


def scores(options: dict[str, Any] | None = None, mode: SearchMode | None = "hybrid") -> dict[str, float]:
    return {hit.key: hit.score for hit in fused(NEAREST, MATCHING, ranked(options, mode))}


def test_by_meaning_alone_the_score_is_the_cosine_and_0_if_that_is_negative() -> None:
    assert scores(mode="vector") == {"a": 0.9, "b": 0.6, "c": 0.0}
    assert vector_score(1.0000001) == 1.0


def test_by_words_alone_the_score_is_that_of_the_weight() -> None:
    assert scores(mode="keyword") == {"b": 0.75, "d": 0.5}
    assert keyword_score(0) == keyword_score(-1) == 0


@pytest.mark.parametrize("mode", ["vector", "keyword"])
@pytest.mark.parametrize("ranker", ["rrf", "weighted", "none", "auto"])
def test_rankers_change_nothing_where_there_is_one_list(mode: SearchMode, ranker: str) -> None:
    assert scores({"ranker": ranker}, mode) == scores(None, mode)


def test_reciprocal_ranks_count_places_and_the_first_of_both_lists_has_1() -> None:
    found = scores({"ranker": "rrf"})
    assert found["b"] == pytest.approx((61 / 62 + 61 / 61) / 2, abs=1e-6)
    assert found["a"] == pytest.approx(61 / 61 / 2, abs=1e-6)
    assert found["d"] == pytest.approx(61 / 62 / 2, abs=1e-6)
    [hit] = fused([Scored("x", 0.1)], [Scored("x", 0.1)], ranked({"ranker": "rrf"}, "hybrid"))
    assert hit.score == 1.0


def test_the_impact_factor_says_how_much_places_count() -> None:
    assert scores({"ranker": "rrf", "impact_factor": 1})["b"] == pytest.approx((2 / 3 + 1) / 2, abs=1e-6)
    assert scores({"impact_factor": 1}) == scores({"ranker": "rrf", "impact_factor": 1})


def test_alpha_is_the_share_of_meaning() -> None:
    found = scores({"ranker": "weighted", "alpha": 0.8})
    assert found["b"] == pytest.approx(0.8 * 0.6 + 0.2 * 0.75)
    assert found["a"] == pytest.approx(0.8 * 0.9)
    assert order({"ranker": "weighted", "alpha": 1}) == ["a", "b", "c"]
    assert order({"ranker": "weighted", "alpha": 0}) == ["b", "d"]
    assert scores({"alpha": 0.8}) == found


def test_weights_count_in_either_fusion() -> None:
    weights = {"vector": 0.2, "keyword": 0.8}
    assert scores({"ranker": "weighted", "weights": weights}) == scores({"ranker": "weighted", "alpha": 0.2})
    assert scores({"ranker": "rrf", "weights": weights})["a"] == pytest.approx(0.2, abs=1e-6)


def test_hybrid_search_weighs_the_reciprocal_ranks_and_turns_hybrid_search_on() -> None:
    options = {"hybrid_search": {"embedding_weight": 1, "text_weight": 3}}
    assert scores(options)["d"] == pytest.approx(0.75 * 61 / 62, abs=1e-6)
    assert order({"hybrid_search": {"embedding_weight": 1, "text_weight": 0}}) == ["a", "b", "c"]
    given = DECODER.decode(msgspec.json.encode(options))
    assert ranking(given, defaults=RankingDefaults(mode="vector")).mode == "hybrid"


def test_the_ranker_none_takes_the_better_score() -> None:
    assert scores({"ranker": "none"}) == {"a": 0.9, "b": 0.75, "d": 0.5, "c": 0.0}


def test_the_servers_defaults_are_used_where_nothing_is_said() -> None:
    for options in (None, {}, {"ranker": "auto"}, {"ranker": "default-2024-11-15"}):
        assert ranked(options, fusion="weighted", mode="keyword").fusion == "weighted"
        assert ranked(options, fusion="weighted", mode="keyword").mode == "keyword"
        assert ranked(options, fusion="rrf").fusion == "rrf"
        assert ranked(options).neural == 0
        assert ranked(options).model == ""


def test_without_a_word_lists_are_put_together_by_scores_and_by_ranks_where_options_speak_of_ranks() -> None:
    for options in (None, {}, {"ranker": "auto"}, {"weights": {"vector": 0.4, "keyword": 0.6}}):
        assert ranked(options).fusion == "weighted"
    assert (ranked().vector, ranked().keyword) == (0.5, 0.5)
    for options in ({"ranker": "rrf"}, {"hybrid_search": {}}, {"impact_factor": 10}):
        assert ranked(options).fusion == "rrf"


def test_a_reranker_is_used_when_it_is_asked_for() -> None:
    assert ranked({"ranker": "neural"}).model == "reranker"
    assert ranked({"ranker": "neural"}).neural == 1
    assert ranked({"ranker": "classifier", "model": "m"}).model == "m"
    assert ranked({"model": "m"}).model == "m"
    mixed = ranked({"weights": {"vector": 0.4, "keyword": 0.1, "neural": 0.5}, "model": "m"})
    assert [mixed.vector, mixed.keyword, mixed.neural] == pytest.approx([0.8, 0.2, 0.5])
    hits = blended([Scored("a", 1.0), Scored("b", 0.5)], [0.0, 0.8], mixed)
    assert hits == [Scored("b", 0.65), Scored("a", 0.5)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_the_threshold_holds_for_the_reported_score_in_each_mode(mode: SearchMode, threshold: float) -> None:
    order = ranked({"score_threshold": threshold}, mode)
    everything = fused(NEAREST, MATCHING, order)
    assert kept(everything, order, 10) == [hit for hit in everything if hit.score >= threshold]
    perfect = fused([Scored("x", 0.9999999)], [Scored("x", 1e12)], order)
    assert kept(perfect, order, 10) == perfect


def test_equal_scores_are_ordered_by_key() -> None:
    hits = [Scored(key, 0.5) for key in ("c", "a", "b")]
    assert [hit.key for hit in fused(hits, [], ranked(None, "vector"))] == ["a", "b", "c"]
    assert [hit.key for hit in best_of([hits])] == ["a", "b", "c"]


def test_of_several_queries_the_best_score_counts() -> None:
    one, two = [Scored("a", 0.9), Scored("b", 0.1)], [Scored("b", 0.95), Scored("c", 0.2)]
    assert best_of([one, two]) == [Scored("b", 0.95), Scored("a", 0.9), Scored("c", 0.2)]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"ranker": "magic"}, "ranker"),
        ({"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}, "hybrid_search"),
        ({"hybrid_search": {"embedding_weight": 1e308, "text_weight": 1e308}}, "hybrid_search"),
        ({"hybrid_search": {}, "weights": {"vector": 0.5, "keyword": 0.5}}, "hybrid_search"),
        ({"hybrid_search": {}, "alpha": 0.5}, "hybrid_search"),
        ({"hybrid_search": {}, "ranker": "weighted"}, "hybrid_search"),
        ({"hybrid_search": {}, "ranker": "neural"}, "hybrid_search"),
        ({"hybrid_search": {}, "ranker": "none"}, "hybrid_search"),
        ({"weights": {"vector": 0.5, "keyword": 0.4}}, "weights"),
        ({"weights": {}}, "weights"),
        ({"weights": {"vector": 1}, "ranker": "none"}, "weights"),
        ({"weights": {"vector": 1, "neural": 0}, "ranker": "neural"}, "weights"),
        ({"alpha": 0.5, "ranker": "rrf"}, "alpha"),
        ({"alpha": 0.5, "ranker": "none"}, "alpha"),
        ({"alpha": 0.5, "weights": {"vector": 1}}, "alpha"),
        ({"impact_factor": 1, "ranker": "weighted"}, "impact_factor"),
        ({"impact_factor": 1, "alpha": 0.5}, "impact_factor"),
        ({"model": "m", "ranker": "rrf"}, "model"),
        ({"model": "m", "weights": {"vector": 1}}, "model"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ranked(options)
    assert refused.value.param == f"ranking_options.{param}"


def test_options_that_contradict_the_mode_or_lack_a_model_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ranked({"hybrid_search": {}}, "keyword")
    assert refused.value.param == "ranking_options.hybrid_search"
    for options in ({"ranker": "neural"}, {"weights": {"vector": 0.5, "neural": 0.5}}):
        with pytest.raises(InvalidRequest) as refused:
            ranked(options, model="")
        assert refused.value.param == "ranking_options.model"


_lists = st.dictionaries(st.integers(0, 8), st.floats(-1, 60), max_size=8).map(
    lambda found: sorted((Scored(key, score) for key, score in found.items()), key=lambda hit: (-hit.score, hit.key))
)
_rankings = st.builds(
    lambda mode, fusion, share, factor: Ranking(
        mode=mode, fusion=fusion, vector=share, keyword=1 - share, impact_factor=factor
    ),
    st.sampled_from(MODES),
    st.sampled_from(["rrf", "weighted", "none"]),
    st.floats(0, 1),
    st.floats(0.1, 1000),
)


def expected(
    key: int, nearest: list[Scored[int]], matching: list[Scored[int]], order: Ranking
) -> tuple[float, float, float]:
    """By meaning, by words, and together; NaN where a list does not hold the key."""
    cosine = next((max(0.0, min(1.0, hit.score)) for hit in nearest if hit.key == key), math.nan)
    weight = next(
        (hit.score / (hit.score + 10) if hit.score > 0 else 0.0 for hit in matching if hit.key == key), math.nan
    )
    if order.fusion == "none":
        return cosine, weight, max((score for score in (cosine, weight) if not math.isnan(score)), default=math.nan)
    total = 0.0
    for share, score, hits in ((order.vector, cosine, nearest), (order.keyword, weight, matching)):
        if math.isnan(score):
            continue
        place = [hit.key for hit in hits].index(key) + 1
        k = order.impact_factor
        total += share * (score if order.fusion == "weighted" else (1 / (k + place)) / (1 / (k + 1)))
    return cosine, weight, total


@given(_lists, _lists, _rankings)
def test_fusion_is_what_plain_arithmetic_says(
    nearest: list[Scored[int]], matching: list[Scored[int]], order: Ranking
) -> None:
    hits = fused(nearest, matching, order)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len({hit.key for hit in hits}) == len(hits)
    assert hits == fused(list(nearest), list(matching), order)
    for hit in hits:
        assert 0 <= hit.score <= 1
        column = {"vector": 0, "keyword": 1, "hybrid": 2}[order.mode]
        assert hit.score == pytest.approx(expected(hit.key, nearest, matching, order)[column], abs=1e-5)
    if order.mode == "hybrid" and 0 < order.vector < 1:
        assert {hit.key for hit in hits} == {hit.key for hit in [*nearest, *matching]}


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2))
def test_keyword_scores_rise_with_the_weight(weights: list[float]) -> None:
    ordered = [keyword_score(weight) for weight in sorted(weights)]
    assert ordered == sorted(ordered)
    assert all(0 <= score <= 1 for score in ordered)
