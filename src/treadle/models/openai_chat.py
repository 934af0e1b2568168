"""The chat-completions dialect, which most model servers speak: raw bytes, own frame splitter, typed decode."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from io import BytesIO

import aiohttp
import msgspec

from treadle.errors import ServerError, UpstreamBadStream, UpstreamFault, UpstreamTimeout
from treadle.models.chat_wire import ChunkReader, encode_request
from treadle.models.sse import EventSplitter
from treadle.models.upstream import MAX_WAIT, RETRIED, fault_of, read_body, scrubbed, wait_seconds
from treadle.ports import Capabilities, ModelChunk, ModelRequest

log = logging.getLogger("treadle.models")

_MAX_BODY = 16_777_216
"""Bytes of a model list or of an answer in one piece."""
_LARGE_BODY = 262_144
"""Bytes from which on a request is written in pieces."""
_MAX_FORWARDED = 67_108_864
"""Bytes of an answer in one piece that is passed on: embeddings are long, and images come as text."""
_MAX_REFUSAL = 262_144
_MAX_STREAM = 33_554_432
"""Bytes of one streamed answer: far more than any model writes, and less than what exhausts a machine."""
_TOLD = 300
_SECRET = 8
"""Characters of the shortest header value that is taken for a secret."""
_TAIL_SECONDS = 0.5
_LATE_SECONDS = 10.0
"""After the finish reason only usage and `[DONE]` may follow; some servers send neither and keep the line open."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model server is and how to speak to it: a provider section with its vendor's row applied."""

    name: str
    url: str
    key: str = ""
    key_header: str = "authorization"
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    capabilities: Capabilities = Capabilities()
    max_tokens_field: str = "max_tokens"
    drops: frozenset[str] = frozenset()
    extra_body: dict[str, msgspec.Raw] = {}
    models: tuple[str, ...] = ()
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    retries: int = 2

    @property
    def secrets(self) -> list[str]:
        """What must not show in a message: the key, and headers long enough to be one, with and without a scheme."""
        values = [value for value in self.headers.values() if len(value) >= _SECRET]
        return [self.key, *values, *(bare for value in values if len(bare := value.rpartition(" ")[2]) >= _SECRET)]


class _Listed(msgspec.Struct):
    id: str = ""


class _ModelList(msgspec.Struct):
    data: list[_Listed] | None = None


_model_list: msgspec.json.Decoder[_ModelList | list[_Listed]] = msgspec.json.Decoder(_ModelList | list[_Listed])
"""Together sends a bare array, Ollama `null` when it has no models."""


class Reply:
    """The RawReply port over an open response."""

    def __init__(self, response: aiohttp.ClientResponse, broken: Callable[[Exception], UpstreamFault]) -> None:
        self.content_type = response.headers.get("content-type", "application/json")
        self._response = response
        self._broken = broken

    async def read(self) -> bytes:
        try:
            body = await read_body(self._response, _MAX_FORWARDED)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._broken(error) from None
        if body is None:
            raise UpstreamBadStream("The model server's answer does not end.")
        return body

    async def reads(self) -> AsyncGenerator[bytes, None]:
        try:
            while read := await self._response.content.readany():
                yield read
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._broken(error) from None

    async def close(self) -> None:
        _close(self._response)


class ChatCompletions:
    """A ChatModel over one endpoint, and the raw pass-through that `/v1/chat/completions` needs."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession) -> None:
        self.endpoint = endpoint
        self._session = session
        self._lone_closers: set[str] = set()

    def capabilities(self, model: str) -> Capabilities:
        return self.endpoint.capabilities

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[ModelChunk], None]:
        end = self.endpoint
        body = encode_request(
            request, end.capabilities, max_tokens_field=end.max_tokens_field, drops=end.drops, extra=end.extra_body
        )
        hold = not request.watched or request.model in self._lone_closers
        reader = ChunkReader(hold_thinking=hold, logprobs=request.logprobs, secrets=end.secrets)
        response = await self.open("/chat/completions", body, model=request.model)
        try:
            kind = response.headers.get("content-type", "")
            if "json" in kind:
                # A server that ignores `stream` answers with one object.
                yield await self._whole(response, reader)
                return
            if "html" in kind:
                raise UpstreamBadStream(f"The model server '{end.name}' answered with an HTML page; is its URL right?")
            async with aclosing(self._read(response, reader)) as batches:
                async for batch in batches:
                    yield batch
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._broken(error) from None
        finally:
            _close(response)
            if reader.learned_lone_close:
                self._lone_closers.add(request.model)

    async def models(self) -> list[str]:
        """The endpoint's models: those its section names, or what it lists itself."""
        if self.endpoint.models:
            return list(self.endpoint.models)
        try:
            async with self._session.get(
                self.endpoint.url + "/models",
                headers=self._headers(),
                params=self.endpoint.query,
                timeout=aiohttp.ClientTimeout(total=min(10.0, self.endpoint.connect_timeout)),
                allow_redirects=False,
            ) as response:
                body = await read_body(response, _MAX_BODY)
                if response.status != 200:
                    raise fault_of(response.status, body or b"", _lower(response.headers), self.endpoint.secrets, "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from None
        try:
            found = _model_list.decode(body or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise UpstreamBadStream(f"The model server '{self.endpoint.name}' sent no model list.") from None
        return [entry.id for entry in (found if isinstance(found, list) else found.data or ()) if entry.id]

    async def open(self, path: str, body: bytes, *, model: str) -> aiohttp.ClientResponse:
        """A response with status 200, its body unread; the caller closes it.

        Tries again after a refused connection or a passing fault, with growing waits, before the first byte only.
        """
        for attempt in range(self.endpoint.retries + 1):
            last = attempt == self.endpoint.retries
            try:
                response = await self._post(path, body)
            except aiohttp.ClientConnectorError as error:
                if last:
                    raise self._unreachable(error) from None
                wait: float | None = None
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # Mostly a kept connection that the server had closed meanwhile: no byte of an answer has come.
                if last:
                    raise self._broken(error) from None
                wait = 0.0
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self._broken(error) from None
            else:
                if response.status == 200:
                    return response
                headers, refusal = _lower(response.headers), await _refusal_body(response)
                wait = wait_seconds(headers)
                if last or response.status not in RETRIED or (wait is not None and wait > MAX_WAIT):
                    raise fault_of(response.status, refusal, headers, self.endpoint.secrets, model)
            pause = wait if wait is not None else min(MAX_WAIT, 0.25 * 2**attempt) * random.uniform(0.5, 1.0)  # noqa: S311
            log.info("asking %s again in %.2f s", self.endpoint.name, pause)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def forward(self, path: str, body: bytes, model: str) -> Reply:
        response = await self.open(path, body, model=model)
        return Reply(response, self._broken)

    # ------------------------------------------------------------------------------------------------

    async def _read(
        self, response: aiohttp.ClientResponse, reader: ChunkReader
    ) -> AsyncGenerator[list[ModelChunk], None]:
        content, splitter, size = response.content, EventSplitter(), 0
        deadline: float | None = None
        while True:
            out: list[ModelChunk] = []
            try:
                if reader.finished and deadline is None:
                    deadline = asyncio.get_running_loop().time() + _LATE_SECONDS
                read = await (content.readany() if deadline is None else _late(content, deadline))
                size += len(read)
                if size > _MAX_STREAM:
                    raise UpstreamBadStream("The model server's answer does not end.")
                _take(read, splitter, reader, out)
            except (ServerError, aiohttp.ClientError, TimeoutError):
                # What came before the fault counts, also when it came with the same read.
                reader.finish(out)
                if out:
                    yield out
                raise
            if out:
                yield out
            if reader.done:
                break
        await _drain(content)

    async def _whole(self, response: aiohttp.ClientResponse, reader: ChunkReader) -> list[ModelChunk]:
        body = await read_body(response, _MAX_BODY)
        if body is None:
            raise UpstreamBadStream("The model server's answer does not end.")
        out: list[ModelChunk] = []
        reader.read(body, out)
        if not reader.finished:
            raise UpstreamBadStream("The model server's answer has no finish reason.")
        return out

    async def _post(self, path: str, body: bytes) -> aiohttp.ClientResponse:
        end = self.endpoint
        return await self._session.post(
            end.url + path,
            # Written piece by piece, so that a body with pictures in it does not stop everybody else.
            data=body if len(body) < _LARGE_BODY else BytesIO(body),
            headers=self._headers(),
            params=end.query,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=end.connect_timeout, sock_read=end.idle_timeout),
            allow_redirects=False,
        )

    def _headers(self) -> dict[str, str]:
        end = self.endpoint
        # Compressed streams tend to be held back by whatever compresses them.
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
        }
        if end.key:
            headers[end.key_header] = f"Bearer {end.key}" if end.key_header == "authorization" else end.key
        return headers | end.headers

    def _told(self, error: Exception) -> str:
        """The error for the log: its `repr` would show the request, and so the key."""
        return f"{type(error).__name__}: {' '.join(scrubbed(str(error), self.endpoint.secrets).split())[:_TOLD]}"

    def _unreachable(self, error: Exception) -> UpstreamFault:
        log.warning("model server %s cannot be reached: %s", self.endpoint.name, self._told(error))
        return UpstreamFault(f"The model server '{self.endpoint.name}' cannot be reached{_cause(error)}.")

    def _broken(self, error: Exception) -> UpstreamFault:
        log.warning("model server %s broke off: %s", self.endpoint.name, self._told(error))
        if isinstance(error, TimeoutError):
            return UpstreamTimeout(f"The model server '{self.endpoint.name}' did not answer in time.")
        return UpstreamBadStream(f"The model server '{self.endpoint.name}' broke off the connection.")


def _take(read: bytes, splitter: EventSplitter, reader: ChunkReader, out: list[ModelChunk]) -> None:
    """The chunks of one read; an empty one is the end. Raises UpstreamBadStream for an end that comes too early."""
    for data in splitter.feed(read) if read else splitter.close():
        reader.read(data, out)
        if reader.done:
            break
    if not read and not reader.done:
        if not reader.finished:
            raise UpstreamBadStream("The model server ended the stream before the answer was finished.")
        reader.done = True
    if reader.done:
        if not reader.begun:
            raise UpstreamBadStream("The model server ended the stream without an answer.")
        reader.finish(out)


async def _late(content: aiohttp.StreamReader, deadline: float) -> bytes:
    """A read after the finish reason: the answer is whole, so whatever ends the stream now ends it well.

    All such reads share one deadline: a server that sends comments to keep the line open would never reach another.
    """
    if asyncio.get_running_loop().time() >= deadline:
        return b""  # a read that has its bytes at hand does not notice a timeout
    try:
        async with asyncio.timeout_at(deadline):
            return await content.readany()
    except (TimeoutError, aiohttp.ClientError):
        return b""


async def _drain(content: aiohttp.StreamReader) -> None:
    """Reads what follows `[DONE]`, normally just the end, so that the connection can be used again."""
    if content.at_eof():
        return
    try:
        async with asyncio.timeout(_TAIL_SECONDS):
            while await content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError):
        return


async def _refusal_body(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await read_body(response, _MAX_REFUSAL) or b""
    except (aiohttp.ClientError, TimeoutError):
        return b""
    finally:
        _close(response)


def _cause(error: Exception) -> str:
    """Why a connection failed, without the address: callers need not know it, and the log has it."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ": its name is not known"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f": {os.strerror(number).lower()}" if number else ""
    return ""


def _close(response: aiohttp.ClientResponse) -> None:
    """Gives the connection back if the answer was read to its end, else closes it and so stops the server's work."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
