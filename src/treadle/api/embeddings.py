"""Embeddings: by an embedder of ours, or passed on to a model server and given back in the encoding asked for."""

from __future__ import annotations

import array
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence

import msgspec

from treadle.errors import InvalidRequest, UpstreamBadStream
from treadle.ports import Embedder, RawModel, Router
from treadle.wire.base import encode
from treadle.wire.models import CreateEmbedding, EmbeddingEntry, EmbeddingList, EmbeddingUsage

_MAX_INPUTS = 2048


class _Entry(msgspec.Struct):
    index: int
    embedding: list[float] | str


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _Reply(msgspec.Struct):
    data: list[_Entry]
    usage: _Usage = msgspec.field(default_factory=_Usage)


_reply = msgspec.json.Decoder(_Reply)


class EmbeddingService:
    """The use case of `/v1/embeddings`."""

    def __init__(self, router: Router, default_model: str = "") -> None:
        self._router = router
        self._default = default_model

    async def create(self, request: CreateEmbedding) -> EmbeddingList:
        _check(request.input)
        name = request.model or self._default
        if not name:
            missing = "Missing required parameter: 'model'."
            raise InvalidRequest(missing, param="model", code="missing_required_parameter")
        route = await self._router.raw(name)
        if route.embedder is not None:
            vectors, tokens = await self._embed(route.embedder, request)
        elif route.server is not None:
            vectors, tokens = await self._forward(route.server, route.upstream, request)
        else:
            raise InvalidRequest(f"The model '{name}' does not embed.", param="model")
        packed = request.encoding_format == "base64"
        data = [EmbeddingEntry(i, _packed(vector) if packed else vector) for i, vector in enumerate(vectors)]
        return EmbeddingList(data=data, model=name, usage=EmbeddingUsage(tokens, tokens))

    async def _embed(self, embedder: Embedder, request: CreateEmbedding) -> tuple[list[list[float]], int]:
        texts = [request.input] if isinstance(request.input, str) else request.input
        chosen = [text for text in texts if isinstance(text, str)]
        if len(chosen) != len(texts):
            raise InvalidRequest("This model takes texts, not token ids.", param="input", code="invalid_type")
        found = await embedder.embed(chosen, dimensions=request.dimensions)
        return found.vectors, found.tokens

    async def _forward(
        self, server: RawModel, upstream: str, request: CreateEmbedding
    ) -> tuple[list[list[float]], int]:
        body: dict[str, object] = {"model": upstream, "input": request.input, "encoding_format": "float"}
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        if request.user is not None:
            body["user"] = request.user
        reply = await server.forward("/embeddings", encode(body), upstream)
        try:
            found = _reply.decode(await reply.read())
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UpstreamBadStream("The model server's answer holds no embeddings.") from None
        finally:
            await reply.close()
        entries = sorted(found.data, key=lambda entry: entry.index)
        if [entry.index for entry in entries] != list(range(_wanted(request.input))):
            # Vectors that belong to other texts than the caller believes would spoil an index unnoticed.
            raise UpstreamBadStream("The model server's answer does not hold one embedding for each input.")
        try:
            return [_unpacked(entry.embedding) for entry in entries], found.usage.prompt_tokens
        except ValueError:
            raise UpstreamBadStream("The model server's answer holds an embedding that cannot be read.") from None


def _wanted(given: str | Sequence[str | int | list[int]]) -> int:
    """How many inputs there are: a list of token ids is one."""
    return 1 if isinstance(given, str) or all(isinstance(entry, int) for entry in given) else len(given)


def _check(given: str | Sequence[str | int | list[int]]) -> None:
    """The rules of contract §14: 1 to 2048 inputs, none of them empty."""
    if isinstance(given, str):
        if not given:
            raise InvalidRequest("The input must not be empty.", param="input")
        return
    if not given:
        raise InvalidRequest("The input must not be empty.", param="input", code="array_below_min_length")
    if len(given) > _MAX_INPUTS and not all(isinstance(entry, int) for entry in given):
        raise InvalidRequest(f"At most {_MAX_INPUTS} inputs.", param="input", code="array_above_max_length")
    for index, entry in enumerate(given):
        if entry == "" or entry == []:
            raise InvalidRequest("An input must not be empty.", param=f"input[{index}]")


def _packed(vector: list[float]) -> str:
    """Little-endian 32-bit floats in base64, what the official SDK asks for by default."""
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return b64encode(values.tobytes()).decode()


def _unpacked(vector: list[float] | str) -> list[float]:
    if not isinstance(vector, str):
        return vector
    values = array.array("f", b64decode(vector, validate=True))
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
