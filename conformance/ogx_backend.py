"""A model server that answers as the recordings in OGX's source archive do, and by the rules where there is none.

The recordings are requests to real models with what those said. A request need not be the same to the letter to find
its answer: whitespace, case, ids and long decimals do not count, and where the history differs in form (servers show
the results of tools in their own ways) the last message decides, then what the user said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scripted_backend

from treadle.testing import Call, Received, Refuse, Reply

MODELS = ["gpt-4o", "gpt-4o-mini", "o4-mini", "text-embedding-3-small"]
DIMENSIONS = 1536

Json = Mapping[str, Any]

_ONLY_OURS = ("open_page", "find_in_page")
_ID = re.compile(r"(file-|vs_|call_|resp_|msg_)[0-9a-z-]{8,}", re.IGNORECASE)
_DECIMAL = re.compile(r"\d+\.\d{3,}")
_PARTS = re.compile(r"^\[\{'type': 'text', 'text': '(.*)'\}\]$", re.DOTALL)


class Recordings:
    """Answers by request; `hits` and `misses` say how often one was found."""

    def __init__(self, archive: Path) -> None:
        self._answers: dict[str, Reply] = {}
        self.hits = self.misses = 0
        found = [one for name in ("responses", "agents") for one in _recorded(archive, name)]
        for recorded in sorted(found, key=lambda one: one.rank):
            for key in _keys(recorded.request):
                self._answers.setdefault(key, recorded.answer)

    def __len__(self) -> int:
        return len(self._answers)

    def __call__(self, request: Received) -> Reply | Refuse:
        """The recorded turn for one model request, else what the rules say."""
        if (model := request.body.get("model")) not in MODELS:
            return Refuse(404, {"error": {"message": f"There is no model {model}.", "code": "model_not_found"}})
        if "messages" in request.body:
            for key in _keys(request.body):
                if key in self._answers:
                    self.hits += 1
                    return self._answers[key]
        self.misses += 1
        return scripted_backend.answer(request)


@dataclass(frozen=True)
class _Recorded:
    rank: tuple[int, int, str]
    """The model that is played first, then the service that was asked, then the file, so that the order is fixed."""
    request: Json
    answer: Reply


def _recorded(archive: Path, suite: str) -> Iterator[_Recorded]:
    for file in (archive / "tests" / "integration" / suite / "recordings").rglob("*.json"):
        whole = json.loads(file.read_text(encoding="utf-8"))
        request = whole.get("request") or {}
        body = whole["response"].get("body")
        if request.get("endpoint") != "/v1/chat/completions" or not body:
            continue
        chunks = body if isinstance(body, list) else [body]
        if all("__data__" in one for one in chunks):
            other = request["body"].get("model") != MODELS[0]
            rank = (int(other), int("api.openai.com" not in request["url"]), file.name)
            yield _Recorded(rank, request["body"], _reply([one["__data__"] for one in chunks]))


def _reply(chunks: Iterable[Json]) -> Reply:
    """What the chunks of a stream, or one completion, add up to."""
    text = reasoning = refusal = ""
    finish = "stop"
    calls: dict[int, dict[str, str]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.get("choices") or ()):
        delta = choice.get("delta") or choice.get("message") or {}
        text += delta.get("content") or ""
        refusal += delta.get("refusal") or ""
        reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        finish = choice.get("finish_reason") or finish
        for position, part in enumerate(delta.get("tool_calls") or ()):
            call = calls.setdefault(part.get("index") or position, {"id": "", "name": "", "arguments": ""})
            call["id"] = part.get("id") or call["id"]
            for name in ("name", "arguments"):
                call[name] += (part.get("function") or {}).get(name) or ""
    made = [Call(call["name"], call["arguments"], call["id"]) for _, call in sorted(calls.items())]
    shown: Any = finish
    return Reply(text=text, reasoning=reasoning, refusal=refusal, calls=made, finish=shown)


def _keys(request: Json) -> list[str]:
    """What to look for, the most like the request first.

    Tools that only this server offers do not count, nor does whether calls of one turn stand in one message or in
    several. Whether calls may run together and the form of the answer always do.
    """
    messages = [_normal(message) for message in request.get("messages") or ()]
    names = (tool["function"]["name"] for tool in request.get("tools") or () if "function" in tool)
    tools = sorted(name for name in names if name not in _ONLY_OURS)
    rules = [tools, request.get("parallel_tool_calls") is False, (request.get("response_format") or {}).get("type")]
    roles = [role for role, text, _ in messages if role != "assistant" or text]
    users = [text for role, text, _ in messages if role == "user"]
    seen: Sequence[tuple[str, Any]] = (
        ("all", messages),
        ("last", [roles, users, messages[-1:]]),
        ("users", [roles, users]),
    )
    return [json.dumps([kind, what, rules]) for kind, what in seen]


def _normal(message: Json) -> tuple[str, str, list[Any]]:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = " ".join(part.get("text", part.get("type", "")) for part in content)
    if found := _PARTS.match(content):
        content = found.group(1)
    content = _DECIMAL.sub("N", _ID.sub(r"\1X", content))
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
    return str(message.get("role")), " ".join(content.split()).lower(), calls
