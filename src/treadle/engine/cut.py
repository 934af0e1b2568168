"""Where a history may be cut: never between a call and its output (bug case 44)."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.engine.calls import round_of
from treadle.wire.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    Reasoning,
    TypedItem,
    WebSearchCall,
)


def cut_at(items: Sequence[TypedItem], lead: int, level: int) -> int:
    """The index before which `items` may be summarised: at level 0 all but the newest turn of the user, at 1 all but
    the newest step of the model, at 2 all. The first `lead` items always stay."""
    end = len(items)
    match level:
        case 0:
            at = max((index for index, item in enumerate(items) if _is_user(item)), default=end)
        case 1:
            at = _last_step(items)
        case _:
            at = end
    return max(lead, _whole(items, at))


def _last_step(items: Sequence[TypedItem]) -> int:
    """Where the newest calls begin with what the model said and thought before them."""
    at = len(items)
    while at and _is_answer(items[at - 1]):
        at -= 1
    return _step_start(items, at)


def _step_start(items: Sequence[TypedItem], at: int) -> int:
    """Back over what the model made in one answer; calls that hold their own outputs name the answer they are of."""
    made: str | None = None
    while at and _is_step(items[at - 1]):
        answer = round_of(items[at - 1].id)
        if made is not None and answer not in (None, made):
            break
        made = answer or made
        at -= 1
    return at


def _whole(items: Sequence[TypedItem], at: int) -> int:
    """`at`, or the start of the step whose outputs would be cut off from their calls."""
    while True:
        calls: dict[str, int] = {}
        for index in range(at):
            if (key := _key(items[index], _CALLS)) is not None:
                calls[key] = index
        answered = {_key(item, _OUTPUTS) for item in items[at:]} - {_key(item, _OUTPUTS) for item in items[:at]}
        # Ids may be used again for calls that stand behind the cut.
        answered -= {_key(item, _CALLS) for item in items[at:]}
        split = [index for key, index in calls.items() if key in answered]
        if not split:
            return at
        at = _step_start(items, min(split))


_CALLS = (FunctionCall, CustomToolCall, McpApprovalRequest)
_OUTPUTS = (FunctionCallOutput, CustomToolCallOutput, McpApprovalResponse)


def _key(item: TypedItem, kinds: tuple[type, ...]) -> str | None:
    if not isinstance(item, kinds):
        return None
    if isinstance(item, McpApprovalRequest):
        return item.id
    if isinstance(item, McpApprovalResponse):
        return item.approval_request_id
    assert isinstance(item, FunctionCall | CustomToolCall | FunctionCallOutput | CustomToolCallOutput)
    return item.call_id


def _is_user(item: TypedItem) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _is_answer(item: TypedItem) -> bool:
    return isinstance(item, _OUTPUTS)


def _is_step(item: TypedItem) -> bool:
    """Something that the model made, and a part of one step with what it made beside it."""
    return isinstance(
        item,
        FunctionCall | CustomToolCall | McpApprovalRequest | McpCall | WebSearchCall | FileSearchCall | Reasoning,
    ) or (isinstance(item, Message) and item.role == "assistant")
