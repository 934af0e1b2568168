"""`/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/models`."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from treadle.api.embeddings import EmbeddingService
from treadle.api.inference import Completion, InferenceService
from treadle.api.models import ModelService
from treadle.http.bodies import read_json, read_utf8
from treadle.http.endpoints import Answer, Endpoint
from treadle.http.replies import JSON, reply
from treadle.http.sse import Asked, Reads
from treadle.wire.chat import CreateChatCompletion, CreateCompletion
from treadle.wire.models import AnyObject, CreateEmbedding, EmbeddingList, Model, ModelList

_embedding = msgspec.json.Decoder(CreateEmbedding)
_STATUSES = (404, 413, 415, 503)


class InferenceRoutes:
    """Endpoints that pass on to model servers."""

    def __init__(
        self,
        inference: InferenceService,
        embeddings: EmbeddingService,
        models: ModelService,
        max_body: int,
        keep_alive: float,
    ) -> None:
        self._inference = inference
        self._embeddings = embeddings
        self._models = models
        self._max_body = max_body
        self._keep_alive = keep_alive

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path="/v1/chat/completions",
                name="createChatCompletion",
                summary="Complete a chat.",
                action=self.chat,
                body=CreateChatCompletion,
                result=AnyObject,
                streams=True,
                statuses=_STATUSES,
                passes_refusals=True,
            ),
            Endpoint(
                method="POST",
                path="/v1/completions",
                name="createCompletion",
                summary="Complete a text.",
                action=self.complete,
                body=CreateCompletion,
                result=AnyObject,
                streams=True,
                statuses=_STATUSES,
                passes_refusals=True,
            ),
            Endpoint(
                method="POST",
                path="/v1/embeddings",
                name="createEmbedding",
                summary="Embed texts.",
                action=self.embed,
                body=CreateEmbedding,
                result=EmbeddingList,
                statuses=_STATUSES,
                passes_refusals=True,
            ),
            Endpoint(
                method="GET",
                path="/v1/models",
                name="listModels",
                summary="List the models on offer.",
                action=self.models,
                result=ModelList,
            ),
            Endpoint(
                method="GET",
                path="/v1/models/{model_id:path}",
                name="getModel",
                summary="Retrieve a model.",
                action=self.model,
                result=Model,
                statuses=(404,),
            ),
        ]

    async def chat(self, request: Request) -> Answer:
        body = await read_utf8(request, self._max_body)
        return Asked(lambda: _passed(self._inference.chat(body)), self._keep_alive)

    async def complete(self, request: Request) -> Answer:
        body = await read_utf8(request, self._max_body)
        return Asked(lambda: _passed(self._inference.complete(body)), self._keep_alive)

    async def embed(self, request: Request) -> Answer:
        wanted = await read_json(request, _embedding, self._max_body)
        return Asked(lambda: _embedded(self._embeddings.create(wanted)), self._keep_alive)

    async def models(self, request: Request) -> Answer:
        return reply(await self._models.all())

    async def model(self, request: Request) -> Answer:
        return reply(await self._models.get(request.path_params["model_id"]))


async def _passed(asked: Awaitable[Completion]) -> ASGIApp | Reads:
    completion = await asked
    if completion.stream:
        return Reads(completion.reads())
    return Response(await completion.body(), media_type=JSON)


async def _embedded(asked: Awaitable[EmbeddingList]) -> ASGIApp:
    return reply(await asked)
