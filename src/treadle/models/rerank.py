"""Rerankers behind a model server's `/v1/rerank`, the form of Jina and Cohere that vLLM, llama.cpp and others share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from treadle import ports
from treadle.errors import InvalidRequest, UpstreamBadStream
from treadle.ports import Router


class _Result(msgspec.Struct):
    index: int
    relevance_score: float | None = None
    score: float | None = None


class _Results(msgspec.Struct):
    results: list[_Result] | None = None
    data: list[_Result] | None = None


_reply: msgspec.json.Decoder[_Results | list[_Result]] = msgspec.json.Decoder(_Results | list[_Result])
"""Voyage calls the list `data`; text-embeddings-inference sends it bare, and says `score`."""


class RemoteReranker(ports.Reranker):
    """Asks the server of the model. UnknownModel for a name that leads nowhere."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """UpstreamBadStream if the answer does not have one score for each text."""
        route = await self._router.raw(model)
        if route.server is None:
            raise InvalidRequest(f"The model '{model}' does not rerank.", param="model")
        body = {"model": route.upstream, "query": query, "documents": list(texts), "top_n": len(texts)}
        reply = await route.server.forward("/rerank", msgspec.json.encode(body), route.upstream)
        try:
            found = _reply.decode(await reply.read())
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UpstreamBadStream("The reranker's answer holds no scores.") from None
        finally:
            await reply.close()
        results = found if isinstance(found, list) else found.results or found.data or []
        return _shares(_in_order(results, len(texts)))


def _in_order(results: Sequence[_Result], count: int) -> list[float]:
    scores: dict[int, float] = {}
    for result in results:
        score = result.score if result.relevance_score is None else result.relevance_score
        if score is not None and math.isfinite(score):
            scores[result.index] = score
    if sorted(scores) != list(range(count)):
        raise UpstreamBadStream("The reranker's answer does not hold one score for each text.")
    return [scores[number] for number in range(count)]


def _shares(scores: list[float]) -> list[float]:
    """The scores in 0..1: some servers, llama.cpp among them, send logits."""
    if all(0 <= score <= 1 for score in scores):
        return scores
    return [1 / (1 + math.exp(-max(-60.0, min(60.0, score)))) for score in scores]
