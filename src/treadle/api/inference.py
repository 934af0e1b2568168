"""Chat and text completions: passed to the model server as they are, but for the model's name.

Not the engine: nothing is read that need not be, and what the client sent is what the server gets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from treadle.errors import Forbidden, InvalidRequest, ServerError, UpstreamBadStream
from treadle.ports import RawReply, Router
from treadle.wire.base import decode, encode
from treadle.wire.chat import CreateChatCompletion, CreateCompletion

_chat = msgspec.json.Decoder(CreateChatCompletion)
_text = msgspec.json.Decoder(CreateCompletion)
_fields = msgspec.json.Decoder(dict[str, Raw])
_MAX_LINE = 16_777_216
"""Bytes of a line of a stream that are kept while its end is awaited."""


@dataclass(slots=True)
class Completion:
    """The model server's answer: a whole body, or a stream of reads."""

    reply: RawReply
    stream: bool
    upstream: str
    requested: str

    async def body(self) -> bytes:
        """The answer, naming the model as the client did."""
        try:
            data = await self.reply.read()
            fields = _fields.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise UpstreamBadStream("The model server's answer is not JSON.") from None
        finally:
            await self.reply.close()
        fields["model"] = Raw(encode(self.requested))
        return encode(fields)

    async def reads(self) -> AsyncGenerator[bytes, None]:
        """The event stream, line by line complete. A break is told to the client as an error event, never as an end."""
        rest: list[bytes] = []
        size = 0
        try:
            async with aclosing(self.reply.reads()) as reads:
                async for read in reads:
                    lines, newline, begun = read.rpartition(b"\n")
                    if newline:
                        yield self._renamed(b"".join((*rest, lines, newline)))
                        rest, size = [], 0
                    rest.append(begun)
                    size += len(begun)
                    if size > _MAX_LINE:
                        raise UpstreamBadStream("The model server sent a line that does not end.")
            if size:
                yield self._renamed(b"".join(rest))
        except ServerError as fault:
            yield b"data: " + encode(fault.envelope()) + b"\n\n"
        finally:
            await self.reply.close()

    def _renamed(self, lines: bytes) -> bytes:
        if self.upstream == self.requested:
            return lines
        old, new = encode(self.upstream), encode(self.requested)
        for colon in (b":", b": "):
            lines = lines.replace(b'"model"' + colon + old, b'"model"' + colon + new)
        return lines


class InferenceService:
    """The use cases of `/v1/chat/completions` and `/v1/completions`."""

    def __init__(self, router: Router, default_model: str = "", *, guarded: bool = False) -> None:
        """`guarded`: the server has guardrails that hold for everyone. What is only passed on is not judged, so it is
        refused then."""
        self._router = router
        self._default = default_model
        self._guarded = guarded

    async def chat(self, body: bytes) -> Completion:
        return await self._forward("/chat/completions", body, decode(_chat, self._named(body)))

    async def complete(self, body: bytes) -> Completion:
        return await self._forward("/completions", body, decode(_text, self._named(body)))

    def _named(self, body: bytes) -> bytes:
        """The body with the default model where it names none."""
        fields = decode(_fields, body)
        if self._default and bytes(fields.get("model", Raw(b"null"))) == b"null":
            return encode(fields | {"model": Raw(encode(self._default))})
        return body

    async def _forward(self, path: str, body: bytes, request: CreateChatCompletion | CreateCompletion) -> Completion:
        if self._guarded:
            raise Forbidden(
                "This server's guardrails do not cover chat and text completions, so it does not pass them on: use "
                "/v1/responses."
            )
        route = await self._router.raw(request.model)
        if route.server is None:
            raise InvalidRequest(f"The model '{request.model}' does not generate text.", param="model")
        fields = _fields.decode(body)
        fields["model"] = Raw(encode(route.upstream))
        reply = await route.server.forward(path, encode(fields), route.upstream)
        return Completion(reply, bool(request.stream), route.upstream, request.model)
