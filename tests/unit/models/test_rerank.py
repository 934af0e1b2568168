"""Rerankers behind `/v1/rerank`: the shapes that servers send, scores in 0..1, answers that do not fit."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest

from treadle.errors import InvalidRequest, UnknownModel, UpstreamBadStream
from treadle.models.rerank import RemoteReranker
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.testing import ScriptedModel
from treadle.testing.scripted import WordEmbedder


class Reply:
    content_type = "application/json"

    def __init__(self, body: object) -> None:
        self._body = json.dumps(body).encode()
        self.closed = False

    async def read(self) -> bytes:
        return self._body

    async def reads(self) -> AsyncGenerator[bytes, None]:
        yield self._body

    async def close(self) -> None:
        self.closed = True


class Server:
    def __init__(self, body: object) -> None:
        self.reply = Reply(body)
        self.asked: list[tuple[str, dict[str, object], str]] = []

    async def forward(self, path: str, body: bytes, model: str) -> Reply:
        self.asked.append((path, json.loads(body), model))
        return self.reply


def reranker(server: Server) -> RemoteReranker:
    router = ModelRouter({}, {"local/words": WordEmbedder()})
    router.add(ProviderEntry("judges", ScriptedModel(), raw=server))
    return RemoteReranker(router)


async def test_the_server_gets_query_and_documents_and_its_scores_come_back_in_order() -> None:
    server = Server({"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]})
    assert await reranker(server).rerank("judges/bge", "q", ["a", "b"]) == [0.1, 0.9]
    asked = {"model": "bge", "query": "q", "documents": ["a", "b"], "top_n": 2}
    assert server.asked == [("/rerank", asked, "bge")]
    assert server.reply.closed


@pytest.mark.parametrize(
    "body",
    [
        [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.1}],
        {"data": [{"index": 0, "relevance_score": 0.1}, {"index": 1, "relevance_score": 0.9}], "object": "list"},
    ],
)
async def test_other_shapes_of_the_answer_are_understood(body: object) -> None:
    assert await reranker(Server(body)).rerank("judges/bge", "q", ["a", "b"]) == [0.1, 0.9]


async def test_logits_become_shares_in_the_same_order() -> None:
    scores = [{"index": number, "relevance_score": score} for number, score in enumerate((-900.0, -1.0, 0.0, 900.0))]
    found = await reranker(Server({"results": scores})).rerank("judges/bge", "q", ["a", "b", "c", "d"])
    assert found == sorted(found)
    assert found[2] == 0.5
    assert all(0 <= score <= 1 for score in found)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"results": []},
        {"results": [{"index": 0, "relevance_score": 0.5}]},
        {"results": [{"index": 0, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.5}]},
        {"results": [{"index": 0, "relevance_score": 0.5}, {"index": 2, "relevance_score": 0.5}]},
        {"results": [{"index": 0}, {"index": 1}]},
        "no",
    ],
)
async def test_an_answer_without_one_score_for_each_text_is_a_fault_of_the_server(body: object) -> None:
    server = Server(body)
    with pytest.raises(UpstreamBadStream):
        await reranker(server).rerank("judges/bge", "q", ["a", "b"])
    assert server.reply.closed


async def test_a_model_that_is_not_there_or_makes_embeddings_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        await reranker(Server({})).rerank("local/words", "q", ["a"])
    with pytest.raises(UnknownModel):
        await RemoteReranker(ModelRouter({})).rerank("nobody", "q", ["a"])
