"""Turns without a server: a plan around a scripted model, and the events as clients would decode them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from treadle.engine.loop import run
from treadle.engine.toolset import build
from treadle.engine.turn import Plan, Turn
from treadle.ports import (
    ChatModel,
    ModelFunction,
    ModelMessage,
    ModelRequest,
    OutputFormat,
    ServerTool,
    ToolDeclaration,
    ToolOutcome,
)
from treadle.scope import LOCAL, Scope
from treadle.testing.sequence import SequenceError, check_sequence
from treadle.wire.base import encode
from treadle.wire.responses import Response, TextFormat, TextOptions


class Look:
    """A server tool with the function `look`."""

    exclusive = False

    def __init__(self, outcome: ToolOutcome | BaseException | None = None) -> None:
        self.outcome = outcome or ToolOutcome("seen")
        self.arguments: list[str] = []

    def declare(self, declaration: ToolDeclaration) -> list[ModelFunction]:
        return [ModelFunction(name="look")]

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        self.arguments.append(arguments)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


FUNCTIONS = [{"type": "function", "name": "act"}, {"type": "custom", "name": "patch"}]
"""Tools of the client."""


def plan_of(
    model: ChatModel,
    *,
    tools: Sequence[Mapping[str, Any]] = FUNCTIONS,
    server_tools: Mapping[str, ServerTool] | None = None,
    messages: Sequence[ModelMessage] = (ModelMessage("user", "Hi"),),
    output_format: OutputFormat | None = None,
    choice: object = "auto",
    max_infer_iters: int = 4,
    **response: Any,
) -> Plan:
    found = build([Raw(encode(tool)) for tool in tools], Raw(encode(choice)), server_tools or {})
    return Plan(
        scope=LOCAL,
        response=_response(found.echo, **response),
        model=model,
        capabilities=model.capabilities("scripted"),
        request=ModelRequest(model="scripted", messages=[]),
        messages=list(messages),
        tools=found,
        inputs=[],
        output_format=output_format,
        max_infer_iters=max_infer_iters,
    )


def _response(tools: list[Raw], **fields: Any) -> Response:
    response = Response(id="resp_1", created_at=1, model="scripted", text=TextOptions(format=TextFormat()), tools=tools)
    for name, value in fields.items():
        setattr(response, name, value)
    return response


async def _settle(turn: Turn) -> None:
    """Nothing is stored here."""


def events_of(plan: Plan) -> tuple[list[dict[str, Any]], Turn]:
    """The events of the plan's turn, checked for legal order, and the turn."""

    async def drain() -> list[dict[str, Any]]:
        return [json.loads(encode(event)) async for batch in run(turn, _settle) for event in batch]

    turn = Turn(plan, plan.response)
    events = asyncio.run(drain())
    try:
        check_sequence(events)
    except SequenceError as error:
        # A model that thinks after it has answered is shown as it is.
        if [one for one in error.violations if "reasoning item follows the message" not in one]:
            raise
    return events, turn
