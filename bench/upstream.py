"""A fixed, cheap model server for measurements: `!n=COUNT` in the last user message is answered with COUNT tokens.

python bench/upstream.py --port 9001
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DEFAULT_TOKENS = 20


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
    else:
        await _json(send, {"error": {"message": "no such path"}}, 404)


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
