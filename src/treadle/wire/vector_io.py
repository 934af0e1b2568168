"""OGX's way to put chunks that have their vectors already into a vector store, and to ask for chunks (contract §13)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from treadle.wire.base import Text
from treadle.wire.retrieval import AttributeValue, Filter, RankingOptions, SearchMode
from treadle.wire.vector_stores import FileId


class TextPart(msgspec.Struct, kw_only=True):
    type: Literal["text"] = "text"
    text: Text


Content = Text | TextPart | list[Text | TextPart]
Metadata = dict[Annotated[str, Meta(max_length=64)], AttributeValue | None]
"""Becomes attributes; null is as good as absent."""


class ChunkMetadata(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What OGX's clients say about a chunk besides. Only the first three mean something here."""

    chunk_id: str | None = None
    document_id: str | None = None
    source: str | None = None
    created_timestamp: int | None = None
    updated_timestamp: int | None = None
    content_token_count: int | None = None


class EmbeddedChunk(msgspec.Struct, kw_only=True):
    content: Content
    chunk_id: Annotated[str, Meta(min_length=1, max_length=512)]
    metadata: Annotated[Metadata, Meta(max_length=16)] = {}
    chunk_metadata: ChunkMetadata | None = None
    embedding: Annotated[list[float], Meta(min_length=1, max_length=65536)]
    embedding_model: str | None = None
    embedding_dimension: int | None = None


class InsertChunks(msgspec.Struct, kw_only=True):
    vector_store_id: FileId
    chunks: Annotated[list[EmbeddedChunk], Meta(max_length=10_000)]


class QueryParams(msgspec.Struct, kw_only=True):
    max_chunks: Annotated[int, Meta(ge=1, le=1000)] | None = None
    mode: SearchMode | None = None
    score_threshold: float | None = None
    filters: Filter | None = None
    ranking_options: RankingOptions | None = None


class QueryChunks(msgspec.Struct, kw_only=True):
    vector_store_id: FileId
    query: Content
    params: QueryParams | None = None


class QueryResult(msgspec.Struct, kw_only=True):
    """Best first, with one score for each chunk."""

    chunks: list[EmbeddedChunk]
    scores: list[float]


def text_of(content: Content) -> str:
    """The text of a content, its parts in lines."""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(part if isinstance(part, str) else part.text for part in parts)
