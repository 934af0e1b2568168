"""How hits become scores and one order: ranking options, reciprocal-rank and weighted fusion (contract §13.5).

A search goes: hits by meaning and by words are `fused` for each query, queries are put together by `best_of`, a
reranker's scores are `blended` in, and `kept` applies the threshold, once, to the score that is reported.

Scores are in 0..1, in every mode and at every step:

- By meaning alone: the cosine, 0 if it is negative. Vectors that point apart are no more relevant than unrelated ones,
  and stretching -1..1 to 0..1 would give unrelated text 0.5, above any threshold that people set.
- By words alone: `keyword_score` of the BM25 weight, which has no upper end.
- Reciprocal rank: the sum of share / (impact factor + rank) over the lists, scaled so that the first of all lists
  has 1.
- Weighted: the sum of share x score over the lists. What a list does not hold counts 0 there.
- A list with a share of 0 is left out.
- Ranker `none`: the better one of the two scores.

Rankers decide between two lists, so they change nothing in a search by meaning or by words alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Generic, Literal, TypeVar

import msgspec

from treadle.errors import InvalidRequest
from treadle.wire.retrieval import RankerWeights, RankingOptions, SearchMode

Fusion = Literal["rrf", "weighted", "none"]

IMPACT_FACTOR = 60.0
"""The constant of reciprocal ranks that its inventors found to work on any collection (Cormack et al. 2009)."""

HALF_KEYWORD = 10.0
"""The BM25 weight that counts as a score of 0.5: about what one rare word or two common ones weigh."""

_STEPS = 1e6
"""Scores are rounded, to six digits, before they order anything: engines add float32 products in different orders, and
differences that small mean nothing."""

_DEFAULTS = (None, "auto", "default-2024-11-15")
_NEURAL = ("neural", "classifier")
_FUSIONS: dict[str, Fusion] = {"rrf": "rrf", "weighted": "weighted", "none": "none"}


K = TypeVar("K")


class Scored(msgspec.Struct, Generic[K], frozen=True):
    """A hit's name and its score."""

    key: K
    score: float


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Ranking options that were checked, with every default filled in."""

    mode: SearchMode
    fusion: Fusion = "rrf"
    vector: float = 0.5
    """Share of the list by meaning; with `keyword` it makes 1."""
    keyword: float = 0.5
    neural: float = 0.0
    """Share of the reranker's score in the final one; 0: no reranking."""
    model: str = ""
    """The reranker."""
    impact_factor: float = IMPACT_FACTOR
    threshold: float = 0.0


class RankingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's configuration says for searches that do not say."""

    mode: SearchMode = "hybrid"
    fusion: Literal["rrf", "weighted"] = "weighted"
    """By scores, because that found more than ranks did on either of the sets in docs/retrieval.md."""
    model: str = ""
    """The reranker of a search that wants one and names none."""


def ranking(
    options: RankingOptions | None,
    mode: SearchMode | None = None,
    *,
    defaults: RankingDefaults,
    at: str = "ranking_options",
) -> Ranking:
    """What `options` and `mode` ask for. InvalidRequest, with `param` the path of the fault below `at`, for options
    that contradict each other or have no effect with the ranker that was chosen."""
    options = options or RankingOptions()
    _check(options, mode, at)
    neural = _neural_share(options)
    model = options.model or defaults.model
    if neural and not model:
        raise InvalidRequest("Name the model to rerank with: the server has no default one.", param=f"{at}.model")
    vector, keyword = _shares(options)
    return Ranking(
        mode=mode or ("hybrid" if options.hybrid_search else defaults.mode),
        fusion=_fusion(options, defaults),
        vector=vector,
        keyword=keyword,
        neural=neural,
        model=model if neural else "",
        impact_factor=options.impact_factor or IMPACT_FACTOR,
        threshold=options.score_threshold or 0.0,
    )


def vector_score(cosine: float) -> float:
    return _unit(cosine)


def keyword_score(weight: float) -> float:
    """A BM25 weight as a score: w / (w + 10), which rises with the weight and stays below 1."""
    return _unit(weight / (weight + HALF_KEYWORD)) if weight > 0 else 0.0


def fused(nearest: Sequence[Scored[K]], matching: Sequence[Scored[K]], ranking: Ranking) -> list[Scored[K]]:
    """The hits of one query, best first. `nearest` holds cosines and `matching` BM25 weights, each best first and each
    key once; a list that the mode does not ask for is not looked at."""
    if ranking.mode == "hybrid" and ranking.fusion == "rrf":
        by_meaning, by_words = _by_rank(nearest, ranking), _by_rank(matching, ranking)
    else:
        by_meaning = [Scored(hit.key, vector_score(hit.score)) for hit in nearest]
        by_words = [Scored(hit.key, keyword_score(hit.score)) for hit in matching]
    if ranking.mode == "vector":
        return in_order(by_meaning)
    if ranking.mode == "keyword":
        return in_order(by_words)
    if ranking.fusion == "none":
        return best_of([by_meaning, by_words])
    totals: dict[K, float] = {}
    for share, hits in ((ranking.vector, by_meaning), (ranking.keyword, by_words)):
        for hit in hits if share else ():
            totals[hit.key] = totals.get(hit.key, 0.0) + share * hit.score
    return in_order(Scored(key, _unit(score)) for key, score in totals.items())


def best_of(lists: Iterable[Sequence[Scored[K]]]) -> list[Scored[K]]:
    """Each key of the lists with the best of its scores: what several queries found together."""
    best: dict[K, float] = {}
    for hits in lists:
        for hit in hits:
            best[hit.key] = max(best.get(hit.key, 0.0), hit.score)
    return in_order(Scored(key, score) for key, score in best.items())


def blended(hits: Sequence[Scored[K]], neural: Sequence[float], ranking: Ranking) -> list[Scored[K]]:
    """The hits with a reranker's scores, one for each, counted by their share."""
    return in_order(
        Scored(hit.key, _unit((1 - ranking.neural) * hit.score + ranking.neural * _unit(score)))
        for hit, score in zip(hits, neural, strict=True)
    )


def kept(hits: Sequence[Scored[K]], ranking: Ranking, limit: int) -> list[Scored[K]]:
    """The first hits whose score reaches the threshold."""
    return [hit for hit in hits if hit.score >= ranking.threshold][:limit]


def in_order(hits: Iterable[Scored[K]]) -> list[Scored[K]]:
    """Best first; equal scores by key, whose order must be total."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.key))


def _by_rank(hits: Sequence[Scored[K]], ranking: Ranking) -> list[Scored[K]]:
    k = ranking.impact_factor
    return [Scored(hit.key, (k + 1) / (k + rank)) for rank, hit in enumerate(hits, start=1)]


def _unit(score: float) -> float:
    """Within 0..1 and rounded. Something that is no number counts nothing."""
    if 0.0 < score < 1.0:
        return round(score * _STEPS) / _STEPS  # a third of the time of rounding to digits, and searches round hundreds
    return 1.0 if 1.0 <= score < math.inf else 0.0


def _check(options: RankingOptions, mode: SearchMode | None, at: str) -> None:
    ranker = options.ranker
    if ranker not in (*_DEFAULTS, *_FUSIONS, *_NEURAL):
        known = ", ".join(f"'{name}'" for name in (*_DEFAULTS[1:], *_FUSIONS, *_NEURAL))
        raise InvalidRequest(f"There is no ranker {ranker!r:.100}; use one of {known}.", param=f"{at}.ranker")
    if options.alpha is not None and (ranker not in (*_DEFAULTS, "weighted") or options.weights):
        raise _conflict(f"{at}.alpha", "weights" if options.weights else f"ranker '{ranker}'")
    if options.impact_factor is not None:
        if ranker not in (*_DEFAULTS, "rrf") or options.alpha is not None:
            raise _conflict(f"{at}.impact_factor", "alpha" if options.alpha is not None else f"ranker '{ranker}'")
        if not math.isfinite(options.impact_factor):
            raise InvalidRequest("An impact factor is a finite number.", param=f"{at}.impact_factor")
    if options.weights:
        _check_weights(options.weights, f"{at}.weights")
        if ranker == "none":
            raise _conflict(f"{at}.weights", "ranker 'none'")
        if ranker in _NEURAL and not _neural_share(options):
            raise _conflict(f"{at}.weights", f"ranker '{ranker}' unless `neural` has a share")
    if options.hybrid_search:
        _check_hybrid(options, mode, at)
    if options.model is not None and not _neural_share(options):
        raise _conflict(f"{at}.model", f"ranker '{ranker}'" if ranker else "weights without `neural`")


def _check_weights(weights: RankerWeights, at: str) -> None:
    total = sum(weight or 0.0 for weight in (weights.vector, weights.keyword, weights.neural))
    if not math.isclose(total, 1.0, abs_tol=1e-3):
        raise InvalidRequest(f"The weights must sum to 1, not {total:g}.", param=at)


def _check_hybrid(options: RankingOptions, mode: SearchMode | None, at: str) -> None:
    weights = options.hybrid_search
    assert weights is not None
    path = f"{at}.hybrid_search"
    total = weights.embedding_weight + weights.text_weight
    if total == 0:
        raise InvalidRequest("The two weights of hybrid_search must not both be 0.", param=path)
    if not math.isfinite(total):
        raise InvalidRequest("The two weights of hybrid_search are too large.", param=path)
    for name, value in (("weights", options.weights), ("alpha", options.alpha)):
        if value is not None:
            raise _conflict(path, name)
    if options.ranker not in (*_DEFAULTS, "rrf"):
        raise _conflict(path, f"ranker '{options.ranker}'")
    if mode in ("vector", "keyword"):
        raise _conflict(path, f"search_mode '{mode}'")


def _conflict(path: str, other: str) -> InvalidRequest:
    return InvalidRequest(f"'{path.rpartition('.')[2]}' cannot be combined with {other}.", param=path)


def _fusion(options: RankingOptions, defaults: RankingDefaults) -> Fusion:
    if options.ranker in _FUSIONS:
        return _FUSIONS[options.ranker]
    if options.alpha is not None:
        return "weighted"
    return "rrf" if options.hybrid_search or options.impact_factor is not None else defaults.fusion


def _shares(options: RankingOptions) -> tuple[float, float]:
    if options.hybrid_search:
        pair = options.hybrid_search.embedding_weight, options.hybrid_search.text_weight
    elif options.weights:
        pair = options.weights.vector or 0.0, options.weights.keyword or 0.0
    elif options.alpha is not None:
        pair = options.alpha, 1 - options.alpha
    else:
        pair = 1.0, 1.0
    total = sum(pair)
    return (pair[0] / total, pair[1] / total) if total else (0.5, 0.5)


def _neural_share(options: RankingOptions) -> float:
    if options.weights and options.weights.neural is not None:
        return options.weights.neural
    named = options.model is not None and options.ranker in _DEFAULTS and options.weights is None
    return 1.0 if options.ranker in _NEURAL or named else 0.0
