"""The model inside the installation as a model server like any other, started when it is first used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import aiohttp
import msgspec

from treadle.errors import InvalidRequest
from treadle.models.local import MODEL, LocalServer
from treadle.models.openai_chat import ChatCompletions, Endpoint
from treadle.models.vendors import EMBEDDED, vendor
from treadle.ports import Capabilities, ModelChunk, ModelRequest, RawReply


class EmbeddedModel:
    """A ChatModel and RawModel over a LocalServer. A server that died is started again by the next call."""

    def __init__(self, server: LocalServer, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session
        self._row = vendor(EMBEDDED)
        self._client: ChatCompletions | None = None

    def capabilities(self, model: str) -> Capabilities:
        return self._row.capabilities

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[ModelChunk], None]:
        client = await self._started()
        async with aclosing(client.stream(request)) as batches:
            async for batch in batches:
                yield batch

    async def models(self) -> list[str]:
        """The one there is. ModelNotInstalled while it cannot run, so that it is not offered."""
        await asyncio.to_thread(self._server.weights)
        return [MODEL]

    async def forward(self, path: str, body: bytes, model: str) -> RawReply:
        if path == "/embeddings":
            raise InvalidRequest(f"The model '{EMBEDDED}/{model}' chats; it makes no embeddings.", param="model")
        return await (await self._started()).forward(path, body, model)

    async def _started(self) -> ChatCompletions:
        place = await self._server.start()
        if self._client is None or self._client.endpoint.url != place.url:
            endpoint = Endpoint(name=EMBEDDED, url=place.url, key=place.api_key, capabilities=self._row.capabilities)
            self._client = ChatCompletions(msgspec.structs.replace(endpoint, drops=self._row.drops), self._session)
        return self._client
