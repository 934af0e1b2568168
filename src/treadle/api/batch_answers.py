"""What answers the lines of batches: the same use cases as single requests."""

from __future__ import annotations

import msgspec

from treadle.api.embeddings import EmbeddingService
from treadle.api.inference import InferenceService
from treadle.api.responses import ResponseService
from treadle.errors import InvalidRequest, ServerError
from treadle.ports import Router
from treadle.scope import Scope
from treadle.wire.base import decode, encode
from treadle.wire.models import CreateEmbedding
from treadle.wire.responses import CreateResponse

_response = msgspec.json.Decoder(CreateResponse)
_embedding = msgspec.json.Decoder(CreateEmbedding)


class LineAnswers:
    """By endpoint. ServerError for what a single request would be refused for."""

    def __init__(
        self,
        router: Router,
        responses: ResponseService,
        inference: InferenceService,
        embeddings: EmbeddingService,
        *,
        default_model: str = "",
        embedding_model: str = "",
    ) -> None:
        self._router = router
        self._responses = responses
        self._inference = inference
        self._embeddings = embeddings
        self._default_model = default_model
        self._embedding_model = embedding_model

    async def check(self, endpoint: str, model: str) -> None:
        """UnknownModel if no provider has it, InvalidRequest for none where there is no default. A provider that cannot
        be asked now may have it when the line is run."""
        if not model:
            default = self._embedding_model if endpoint == "/v1/embeddings" else self._default_model
            if not default:
                raise InvalidRequest("Missing required parameter: 'model'.", param="model")
            return
        try:
            await self._router.raw(model)
        except InvalidRequest:
            raise
        except ServerError:
            pass

    async def answer(self, scope: Scope, endpoint: str, body: bytes) -> bytes:
        match endpoint:
            case "/v1/responses":
                run = await self._responses.create(scope, decode(_response, body))
                return encode(await run.result())
            case "/v1/embeddings":
                return encode(await self._embeddings.create(decode(_embedding, body)))
            case "/v1/completions":
                return await (await self._inference.complete(body)).body()
            case _:
                return await (await self._inference.chat(body)).body()
