"""A model server that plays by rules, so that a judge's outcome depends on Treadle and on nothing else.

    Reply with exactly: X      X
    a message of a tool        a sentence with what the tool said
    tools and a forced choice  a call of the chosen tool
    exec_command, "run"        one call of it, whose output cannot be guessed without running it
    a tool named ...echo       with "echo": one call of it
    tools, "weather"           a call of the first tool, its arguments shaped by its schema
    a JSON schema              a value of that shape
    anything else              a sentence with the prompt

`python conformance/scripted_backend.py` runs it alone and prints its address; `with_server.py` puts Treadle in front.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.testing import Call, Received, Reply, ScriptedUpstream

MODEL = "scripted"
COMMAND = "echo treadle-$((6 * 7))"
PROOF = "treadle-42"
"""What only running `COMMAND` prints."""

_EXACTLY = re.compile(r"reply with exactly:?\s*(.+)", re.IGNORECASE | re.DOTALL)
_WEATHER = re.compile(r"weather|temperature|forecast", re.IGNORECASE)
_RUN = re.compile(r"\brun\b", re.IGNORECASE)
_ECHO = re.compile(r"\becho\b", re.IGNORECASE)

Json = Mapping[str, Any]


def answer(request: Received) -> Reply:
    """The turn for one model request."""
    body = request.body
    if "messages" not in body:
        return Reply(text=f" and so on from {str(body.get('prompt', ''))[:80]!r}.")
    messages: Sequence[Json] = body["messages"]
    functions = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or () if "function" in tool}
    prompt = _last_prompt(messages)
    if messages[-1]["role"] == "tool":
        return Reply(text=f"The tool said: {_text(messages[-1])[:400]}")
    if found := _EXACTLY.search(prompt):
        return Reply(text=found.group(1).strip())
    if functions and (call := _call(functions, body.get("tool_choice"), prompt)):
        return Reply(calls=[call])
    wanted = (body.get("response_format") or {}).get("json_schema")
    if wanted is not None:
        return Reply(text=json.dumps(sample(wanted["schema"])))
    return Reply(text=f"You said: {prompt[:200]}")


def sample(schema: Json) -> Any:
    """A value that `schema` allows, as far as simple schemas go."""
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return sample(schema[key][0])
    match schema.get("type"):
        case "object":
            properties = schema.get("properties") or {}
            wanted = schema.get("required", list(properties))
            return {name: sample(properties.get(name, {})) for name in wanted}
        case "array":
            return [sample(schema.get("items") or {})]
        case "integer":
            return 3
        case "number":
            return 1.5
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "San Francisco, CA"


def _call(functions: Mapping[str, Json], choice: Any, prompt: str) -> Call | None:
    if choice == "none":
        return None
    if isinstance(choice, dict):
        name = choice["function"]["name"]
    elif "exec_command" in functions and _RUN.search(prompt):
        return Call("exec_command", {"cmd": COMMAND})
    elif _ECHO.search(prompt) and (echo := next((name for name in functions if name.endswith("echo")), None)):
        return Call(echo, {"text": PROOF})
    elif choice == "required" or _WEATHER.search(prompt):
        name = next(iter(functions))
    else:
        return None
    return Call(name, sample(functions[name].get("parameters") or {"type": "object"}))


def _last_prompt(messages: Sequence[Json]) -> str:
    return next((_text(message) for message in reversed(messages) if message["role"] == "user"), "")


def _text(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""


def main() -> None:
    with ScriptedUpstream(default=answer, models=[MODEL]) as upstream:
        print(upstream.url, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.exit(0)


if __name__ == "__main__":
    main()
