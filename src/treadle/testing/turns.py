"""Scripted turns of a model server, and how each is written in the chat-completions dialect."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from treadle.testing.gates import Waitable

Finish = Literal["stop", "length", "tool_calls", "content_filter"]
_call_numbers = count(1)


@dataclass(frozen=True)
class Call:
    """A tool call of the model; `arguments` that are not a string are written as JSON."""

    name: str
    arguments: str | Mapping[str, Any] = "{}"
    id: str = field(default_factory=lambda: f"call_scripted_{next(_call_numbers)}")

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Tokens:
    """Usage that the model server reports for one call."""

    input: int = 10
    output: int = 5
    cached: int = 0
    reasoning: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.input,
            "completion_tokens": self.output,
            "total_tokens": self.input + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass(frozen=True)
class Reply:
    """A well-formed answer. It streams when the request asks for it, one chunk per TCP write.

    `chunks`: into how many deltas text, reasoning and refusal are cut each; by default at words.
    `finish`: `tool_calls` when there are calls, else `stop`, unless said otherwise; None leaves it out.
    `usage`: streamed in a last chunk if the request has `stream_options.include_usage`; None never reports any.
    `before`: waited for before the first byte. `held`: what is waited for before chunk n is written.
    `burst`: all chunks in a single write.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    calls: Sequence[Call] = ()
    refusal: str = ""
    finish: Finish | Literal["auto"] | None = "auto"
    usage: Tokens | None = field(default_factory=Tokens)
    chunks: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Waitable | None = None
    held: Mapping[int, Waitable] = field(default_factory=dict)
    burst: bool = False

    @property
    def finish_reason(self) -> str | None:
        if self.finish != "auto":
            return self.finish
        return "tool_calls" if self.calls else "stop"


@dataclass(frozen=True)
class Raw:
    """Exact body bytes: each entry is a TCP write of its own, or something to wait for before the next one.

    The body is sent chunked and properly ended; `Drop` is for one that breaks off.
    """

    writes: Sequence[bytes | Waitable]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})


@dataclass(frozen=True)
class Refuse:
    """An answer of another status; a `body` that is not bytes or text is written as JSON."""

    status: int
    body: bytes | str | Mapping[str, Any] = field(
        default_factory=lambda: {"error": {"message": "Scripted refusal.", "type": "server_error", "code": None}}
    )
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Waitable | None = None


@dataclass(frozen=True)
class Drop:
    """The connection breaks after `after` chunks of `reply` (0: before any byte of an answer)."""

    after: int = 0
    reply: Reply = field(default_factory=lambda: Reply(text="This answer will never be whole, it breaks off."))


Turn = Reply | Raw | Refuse | Drop


def sse(*chunks: Mapping[str, Any], done: bool = True) -> bytes:
    """Chat-completions frames for `chunks`, ended with `[DONE]` unless `done` is false."""
    frames = [b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks]
    return b"".join(frames) + (b"data: [DONE]\n\n" if done else b"")


def chunk(
    delta: Mapping[str, Any] | None = None,
    *,
    finish: str | None = None,
    usage: Mapping[str, Any] | None = None,
    model: str = "scripted",
    **choice: Any,
) -> dict[str, Any]:
    """One `chat.completion.chunk`; without a delta its `choices` are empty. `choice` adds keys to the choice."""
    choices = [] if delta is None else [{"index": 0, "delta": dict(delta), "finish_reason": finish, **choice}]
    made: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
        "choices": choices,
    }
    if usage is not None:
        made["usage"] = dict(usage)
    return made


def pieces(text: str, parts: int | None) -> list[str]:
    """`text` cut at words, or into `parts` of nearly equal length; joined they are the text again."""
    if not text:
        return []
    if parts is None:
        return re.findall(r"\s*\S+\s*", text) or [text]
    size = math.ceil(len(text) / max(1, parts))
    return [text[start : start + size] for start in range(0, len(text), size)]


def logprobs(text: str, alternatives: int) -> dict[str, Any]:
    """Made-up but well-formed log probabilities of one token."""

    def token(value: str, logprob: float) -> dict[str, Any]:
        return {"token": value, "logprob": logprob, "bytes": list(value.encode())}

    others = [token(f"{text}{n}", -1.5 - n) for n in range(alternatives)]
    return {"content": [{**token(text, -0.25), "top_logprobs": others}]}


def stream_chunks(reply: Reply, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chunks that `reply` streams for `request`."""
    model = str(request.get("model", "scripted"))
    alternatives = int(request.get("top_logprobs") or 0)
    deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
    deltas += [{"delta": {reply.reasoning_field: piece}} for piece in pieces(reply.reasoning, reply.chunks)]
    for piece in pieces(reply.text, reply.chunks):
        extra = {"logprobs": logprobs(piece, alternatives)} if request.get("logprobs") else {}
        deltas.append({"delta": {"content": piece}, **extra})
    deltas += [{"delta": {"refusal": piece}} for piece in pieces(reply.refusal, reply.chunks)]
    for index, call in enumerate(reply.calls):
        opening = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        deltas.append({"delta": {"tool_calls": [opening]}})
        for piece in pieces(call.arguments_text, 3):
            deltas.append({"delta": {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}})
    chunks = [chunk(model=model, **delta) for delta in deltas]
    if reply.finish_reason is not None:
        chunks.append(chunk({}, finish=reply.finish_reason, model=model))
    if reply.usage is not None and (request.get("stream_options") or {}).get("include_usage"):
        chunks.append(chunk(usage=reply.usage.as_dict(), model=model))
    return chunks


def completion(reply: Reply, request: Mapping[str, Any]) -> dict[str, Any]:
    """The `chat.completion` that `reply` is for a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message[reply.reasoning_field] = reply.reasoning
    if reply.refusal:
        message["refusal"] = reply.refusal
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}
            for call in reply.calls
        ]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    if request.get("logprobs"):
        choice["logprobs"] = logprobs(reply.text, int(request.get("top_logprobs") or 0))
    made = {**chunk(model=str(request.get("model", "scripted"))), "object": "chat.completion", "choices": [choice]}
    return made if reply.usage is None else {**made, "usage": reply.usage.as_dict()}


def text_completions(reply: Reply, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `reply` is on `/completions`: its chunks if the request streams, else the one object."""
    frame = {**chunk(model=str(request.get("model", "scripted"))), "id": "cmpl-scripted", "object": "text_completion"}
    parts = pieces(reply.text, reply.chunks) if request.get("stream") else [reply.text]
    made = [
        {**frame, "choices": [{"index": 0, "text": part, "finish_reason": None, "logprobs": None}]} for part in parts
    ]
    if made:
        made[-1]["choices"][0]["finish_reason"] = reply.finish_reason
    if reply.usage is not None and made:
        made[-1]["usage"] = reply.usage.as_dict()
    return made


def bag_of_words(text: str, dimensions: int) -> list[float]:
    """A unit vector that depends on the words of `text` only, so texts that share words are near each other."""
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()) or [text]:
        digest = int.from_bytes(
            hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
        )
        vector[digest % dimensions] += 1.0
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def embeddings(request: Mapping[str, Any], dimensions: int) -> dict[str, Any]:
    """The answer of `/embeddings`, as floats or as base64 of little-endian 32-bit ones."""
    given = request.get("input", "")
    single = isinstance(given, str) or (isinstance(given, list) and bool(given) and isinstance(given[0], int))
    texts = [str(text) for text in ([given] if single else given)]
    width = int(request.get("dimensions") or dimensions)
    data = []
    for index, text in enumerate(texts):
        vector = bag_of_words(text, width)
        encoded: str | list[float] = vector
        if request.get("encoding_format") == "base64":
            encoded = base64.b64encode(struct.pack(f"<{width}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": encoded})
    tokens = sum(len(text.split()) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": request.get("model", "scripted"), "data": data, "usage": usage}


def ranks(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of `/rerank`: the share of the query's words that a text holds, best first."""
    words = set(re.findall(r"\w+", str(request.get("query", "")).lower()))
    found = []
    for index, text in enumerate(request.get("documents", ())):
        held = words & set(re.findall(r"\w+", str(text).lower()))
        found.append({"index": index, "relevance_score": len(held) / max(1, len(words))})
    found.sort(key=lambda entry: -float(entry["relevance_score"]))
    return {"model": request.get("model", "scripted"), "results": found}
