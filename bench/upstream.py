"""A fixed, cheap model server for measurements.

    python bench/upstream.py --port 9001

`!n=COUNT` in the last user message is answered with COUNT tokens. Embeddings are a text's words, hashed: texts that
share rare words are near each other, on every machine and in every server that asks.
"""

from __future__ import annotations

import argparse
import array
import base64
import hashlib
import json
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DEFAULT_TOKENS = 20
DIMENSIONS = 384

_SHORT = 3
"""Words of up to this many letters say little about a text and are left out of its embedding."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"].endswith("/models"):
        await _json(
            send, {"object": "list", "data": [{"id": "bench", "object": "model", "created": 0, "owned_by": "b"}]}
        )
    elif scope["path"].endswith("/chat/completions"):
        await _chat(send, json.loads(body))
    elif scope["path"].endswith("/embeddings"):
        await _json(send, _embeddings(json.loads(body)))
    else:
        await _json(send, {"error": {"message": "no such path"}}, 404)


def embedding(text: str) -> list[float]:
    """A unit vector: each different word of the text adds 1 or -1 in eight places that its hash names."""
    vector = [0.0] * DIMENSIONS
    words = {word for word in re.findall(r"\w+", text.lower()) if len(word) > _SHORT}
    for word in words or {text}:
        hashed = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=16).digest(), "little")
        for _ in range(8):
            hashed, place = divmod(hashed, 2 * DIMENSIONS)
            vector[place >> 1] += 1.0 if place & 1 else -1.0
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]


def _embeddings(request: dict[str, Any]) -> dict[str, Any]:
    given = request["input"]
    data = []
    for index, text in enumerate([given] if isinstance(given, str) else given):
        vector = embedding(text)
        packed = base64.b64encode(array.array("f", vector).tobytes()).decode()
        shown = packed if request.get("encoding_format") == "base64" else vector
        data.append({"object": "embedding", "index": index, "embedding": shown})
    return {"object": "list", "model": "bench", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}


async def _chat(send: Send, request: dict[str, Any]) -> None:
    text = next((m["content"] for m in reversed(request["messages"]) if m["role"] == "user"), "")
    found = re.search(r"!n=(\d+)", text if isinstance(text, str) else json.dumps(text))
    count = int(found.group(1)) if found else DEFAULT_TOKENS
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for index in range(count):
        await _event(send, [{"index": 0, "delta": {"content": f"tok{index} "}, "finish_reason": None}])
    await _event(send, [{"index": 0, "delta": {}, "finish_reason": "stop"}])
    await _event(send, [], {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _event(send: Send, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> None:
    """One chunk, encoded and sent on its own, as model servers do."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": choices}
    if usage is not None:
        chunk["usage"] = usage
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _json(send: Send, value: object, status: int = 200) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=9001)
    uvicorn.run(app, port=options.parse_args().port, log_level="critical", access_log=False, lifespan="off")
