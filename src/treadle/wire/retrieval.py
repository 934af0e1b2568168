"""What searching vector stores and the `file_search` tool share: attributes, filters, ranking (contract §13)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

AttributeValue = Annotated[str, Meta(max_length=512)] | int | float | bool
Attributes = Annotated[dict[Annotated[str, Meta(max_length=64)], AttributeValue], Meta(max_length=16)]
"""Of a file in a store. Integers stay integers."""

SearchMode = Literal["vector", "keyword", "hybrid"]
Weight = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

Comparison = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
MAX_DEPTH = 16
"""Filters in filters."""


class Filter(msgspec.Struct, kw_only=True):
    """A comparison (`key` and `value`) or a compound (`filters`), told apart by `type`; see `checked`."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or"]
    key: str | None = None
    value: AttributeValue | list[AttributeValue] | None = None
    filters: list[Filter] | None = None


class HybridWeights(msgspec.Struct, kw_only=True):
    embedding_weight: Weight = 1.0
    text_weight: Weight = 1.0


class RankerWeights(msgspec.Struct, kw_only=True):
    """OGX's spelling; they sum to 1."""

    vector: Share | None = None
    keyword: Share | None = None
    neural: Share | None = None


class RankingOptions(msgspec.Struct, kw_only=True):
    """How hits are ordered. `auto`, `default-2024-11-15` and None: the server's default fusion; `none`: no fusion and
    no reranking. OGX's `weighted`, `rrf`, `neural` and `classifier` choose for themselves."""

    ranker: str | None = None
    score_threshold: Share | None = None
    alpha: Share | None = None
    impact_factor: Annotated[float, Meta(gt=0)] | None = None
    model: str | None = None
    weights: RankerWeights | None = None
    hybrid_search: HybridWeights | None = None
