"""Embeddings of a model server: one for each input, or none at all."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from treadle.api.embeddings import EmbeddingService
from treadle.errors import UpstreamBadStream
from treadle.ports import ModelEntry, RawReply, RawRoute, Route
from treadle.wire.base import encode
from treadle.wire.models import CreateEmbedding


class _Server:
    """A model server, a router to it, and its reply."""

    content_type = "application/json"

    def __init__(self, data: list[Any]) -> None:
        self._body = encode({"data": data})

    async def raw(self, name: str) -> RawRoute:
        return RawRoute(name, server=self)

    async def route(self, name: str) -> Route:
        raise AssertionError

    async def models(self) -> list[ModelEntry]:
        return []

    async def forward(self, path: str, body: bytes, model: str) -> RawReply:
        return self

    async def read(self) -> bytes:
        return self._body

    async def reads(self) -> AsyncGenerator[bytes, None]:
        yield self._body

    async def close(self) -> None: ...


def _entry(index: int, embedding: Any = (1.0,)) -> dict[str, Any]:
    return {"index": index, "embedding": embedding}


THREE = CreateEmbedding(model="m", input=["a", "b", "c"])


@pytest.mark.parametrize(
    "data",
    [
        [],
        [_entry(0), _entry(2)],
        [_entry(0), _entry(1), _entry(1)],
        [_entry(1), _entry(2), _entry(3)],
        [_entry(0), _entry(1), _entry(2), _entry(3)],
        [_entry(0), _entry(1), _entry(2, "***")],
        [_entry(0), _entry(1), _entry(2, "AAAA")],
    ],
)
async def test_vectors_that_do_not_match_the_inputs_are_refused(data: list[Any]) -> None:
    with pytest.raises(UpstreamBadStream):
        await EmbeddingService(_Server(data)).create(THREE)


async def test_vectors_in_any_order_are_given_back_in_the_order_of_the_inputs() -> None:
    data = [_entry(2, [3.0]), _entry(0, [1.0]), _entry(1, [2.0])]
    found = await EmbeddingService(_Server(data)).create(msgspec.structs.replace(THREE, encoding_format="float"))
    assert [entry.embedding for entry in found.data] == [[1.0], [2.0], [3.0]]
