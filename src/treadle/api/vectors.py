"""Texts to vectors of unit length, by whichever embedding model a vector store was made with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from treadle.api.embeddings import EmbeddingService
from treadle.errors import InvalidRequest, ServerError, UpstreamBadStream, UpstreamRefused
from treadle.wire.models import CreateEmbedding

_PROBE = "What this model makes of a text decides the shape of a vector store."


class EmbeddingChoice(msgspec.Struct, frozen=True):
    """The embedding model of a vector store. `shortened`: it gives more dimensions unless it is asked for these."""

    model: str
    dimensions: int
    shortened: bool = False


class TextVectors:
    """Embeds for vector stores, through the use case of `/v1/embeddings`."""

    def __init__(self, embeddings: EmbeddingService) -> None:
        self._embeddings = embeddings

    async def choose(self, model: str, dimensions: int | None) -> EmbeddingChoice:
        """The model, tried out. Raises what it raises, naming `embedding_model`; InvalidRequest
        (`param="embedding_dimension"`) if it cannot give `dimensions`."""
        try:
            own = len((await self._vectors([_PROBE], model, None))[0])
        except ServerError as fault:
            fault.param = "embedding_model"
            raise
        if dimensions is None or dimensions == own:
            return EmbeddingChoice(model, own)
        try:
            given = len((await self._vectors([_PROBE], model, dimensions))[0])
        except (InvalidRequest, UpstreamRefused) as fault:
            if fault.status != 400:
                raise
            given = own
        if given != dimensions:
            raise InvalidRequest(
                f"The model '{model}' gives vectors of {own} numbers, not of {dimensions}.", param="embedding_dimension"
            )
        return EmbeddingChoice(model, dimensions, shortened=True)

    async def embed(self, texts: Sequence[str], choice: EmbeddingChoice) -> list[list[float]]:
        """One vector for each text. UpstreamBadStream if the model has changed: it gives other vectors than it did when
        the store was made."""
        vectors = await self._vectors(texts, choice.model, choice.dimensions if choice.shortened else None)
        if any(len(vector) != choice.dimensions for vector in vectors):
            raise UpstreamBadStream(
                f"The embedding model '{choice.model}' no longer gives vectors of {choice.dimensions} numbers, which "
                "the vector store was made for."
            )
        return [unit(vector) for vector in vectors]

    async def _vectors(self, texts: Sequence[str], model: str, dimensions: int | None) -> list[list[float]]:
        found = await self._embeddings.create(CreateEmbedding(model=model, input=list(texts), dimensions=dimensions))
        return [entry.embedding for entry in found.data if not isinstance(entry.embedding, str)]


def unit(vector: list[float]) -> list[float]:
    """The vector at length 1. UpstreamBadStream for one that has no direction."""
    length = math.hypot(*vector)
    if not math.isfinite(length) or length == 0:
        raise UpstreamBadStream("The embedding model gave a vector that is zero or not finite.")
    return vector if abs(length - 1) < 1e-4 else [number / length for number in vector]
