"""Models, embeddings, and the small administrative objects (contract §14, §15)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from treadle.wire.base import Text, TokenId


class ModelDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """OGX's clients read these."""

    model_type: Literal["llm", "embedding"]
    provider_id: str
    provider_resource_id: str
    embedding_dimension: int | UnsetType = UNSET


class Model(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    custom_metadata: ModelDetails


class ModelList(msgspec.Struct):
    data: list[Model]
    object: Literal["list"] = "list"


class CreateEmbedding(msgspec.Struct, kw_only=True):
    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    input: Text | list[Text | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None
    user: str | None = None


class EmbeddingEntry(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage


class Health(msgspec.Struct):
    status: Literal["OK"] = "OK"


class Version(msgspec.Struct):
    version: str


class Provider(msgspec.Struct, kw_only=True):
    api: str
    provider_id: str
    provider_type: str
    config: dict[str, str]
    health: dict[str, str]


class ProviderList(msgspec.Struct):
    data: list[Provider]


AnyObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
