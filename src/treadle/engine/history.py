"""What a model may see of the past: the only place that decides it.

Items come in as stored or as sent; out comes the list to render. Opaque items are hidden from models, sealed reasoning
and compactions are opened, and an output without its call is refused before any model is asked (bug cases 28, 32).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from treadle.engine.notes import opened
from treadle.errors import InvalidRequest
from treadle.wire.content import ReasoningText
from treadle.wire.items import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpListTools,
    OpaqueItem,
    Reasoning,
    TypedItem,
)

log = logging.getLogger("treadle.history")

Unseal = Callable[[str], str | None]
"""Opens `encrypted_content`: None when it is another server's, InvalidRequest when it is ours but damaged."""


def visible(items: Iterable[Item], unseal: Unseal) -> list[TypedItem]:
    """The items a model may see, in order."""
    items = list(items)
    answered = {item.call_id for item in items if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
    found: list[TypedItem] = []
    for item in items:
        if isinstance(item, McpListTools):
            continue  # the model is told of tools, not of lists
        if isinstance(item, OpaqueItem):
            log.info("an item of kind %.100r is not shown to the model", item.kind)  # a client's text: no line breaks
        elif isinstance(item, Compaction):
            if (notes := opened(item, unseal)) is not None:
                found = notes.replace(item.id, found)
        elif isinstance(item, Reasoning):
            found.append(_opened(item, unseal))
        elif (
            isinstance(item, FunctionCall | CustomToolCall)
            and item.status == "incomplete"
            and item.call_id not in answered
        ):
            continue  # cut off by a limit, never run
        else:
            found.append(item)
    return found


def check_outputs(history: Iterable[Item], inputs: list[tuple[Item, str]]) -> None:
    """InvalidRequest for a tool output among `inputs` whose call is neither in the history nor before it in the input.

    `inputs` are items with their paths in the request.
    """
    calls = {item.call_id for item in history if isinstance(item, FunctionCall | CustomToolCall)}
    calls |= {item.call_id for item, _ in inputs if isinstance(item, FunctionCall | CustomToolCall)}
    for item, at in inputs:
        if isinstance(item, FunctionCallOutput | CustomToolCallOutput) and item.call_id not in calls:
            raise InvalidRequest(f"No tool call found for call_id '{item.call_id}'.", param=f"{at}.call_id")


def check_sealed(inputs: Iterable[tuple[Item, str]], unseal: Unseal) -> None:
    """InvalidRequest (`invalid_encrypted_content`) for what we sealed, among `inputs`, and somebody changed."""
    for item, at in inputs:
        if isinstance(item, Reasoning | Compaction) and isinstance(item.encrypted_content, str):
            try:
                unseal(item.encrypted_content)
            except InvalidRequest as fault:
                fault.param = f"{at}.encrypted_content"
                raise


def _opened(item: Reasoning, unseal: Unseal) -> Reasoning:
    """The reasoning with its text, if we sealed it; the stored item itself stays as the client sent it."""
    if item.content or not isinstance(item.encrypted_content, str):
        return item
    try:
        text = unseal(item.encrypted_content)
    except InvalidRequest:
        text = None  # inputs were checked; what is stored must not block its thread when the key has changed since
    if text is None:
        log.info("reasoning sealed by another server or under another key is not shown to the model")
        return item
    return Reasoning(id=item.id, summary=item.summary, content=[ReasoningText(text)])
