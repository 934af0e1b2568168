"""Before the first round: lists the tools of the declared MCP servers, and runs the calls that were approved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import msgspec

from treadle.engine.calls import RemoteCall, announce, conclude
from treadle.engine.dispatch import outcome_of
from treadle.engine.sources import ApprovedCall, RemoteSource
from treadle.engine.toolset import Binding
from treadle.engine.turn import Turn
from treadle.errors import InvalidRequest, RemoteFault, ServerError
from treadle.ids import new_id
from treadle.ports import ImagePart, Json, ModelPart, RemoteResult, RemoteTool, RemoteTools, TextPart, ToolOutcome
from treadle.scope import Scope
from treadle.wire.base import decode, encode
from treadle.wire.events import (
    Event,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
)
from treadle.wire.items import McpListTools, McpTool

log = logging.getLogger("treadle.mcp")

_object = msgspec.json.Decoder(dict[str, Json])


class RemoteRunner:
    """Runs the calls to one server."""

    exclusive = False

    def __init__(self, remote: RemoteTools, source: RemoteSource) -> None:
        self._remote = remote
        self._source = source

    async def run(self, name: str, arguments: str, scope: Scope) -> ToolOutcome:
        try:
            result = await self._remote.call(self._source.server, name, arguments)
        except RemoteFault as fault:
            kind = "http_error" if fault.kind == "http" else "mcp_protocol_error"
            error = {"type": kind, "code": fault.number, "message": fault.message}
            return ToolOutcome(
                fault.message, failed=True, error={key: Json(encode(value)) for key, value in error.items()}
            )
        return _outcome(result, untrusted=self._source.untrusted)


async def discover(turn: Turn, remote: RemoteTools, *, fatal: bool) -> AsyncGenerator[list[Event], None]:
    """The events of listing; the turn's tools are complete afterwards. All servers are asked together.

    A server that cannot be listed is an item with an error, and the others go on; `fatal` raises its RemoteFault.
    InvalidRequest if `tool_choice` then names a tool that is not there.
    """
    tools = turn.plan.tools
    fresh = [source for source in turn.plan.remote if source.listed is None]
    out: list[Event] = []
    items: list[tuple[McpListTools, int]] = []
    for source in turn.plan.remote:
        if source.listed is not None:
            _bind(turn, remote, source, source.listed)
    for source in fresh:
        item = McpListTools(id=new_id("mcpl") + source.list_digest, server_label=source.label, tools=[])
        index = announce(turn, item, out)
        out.append(
            McpListToolsInProgress(sequence_number=turn.next_sequence(), item_id=item.id or "", output_index=index)
        )
        items.append((item, index))
    if out:
        yield out
    answers = await asyncio.gather(*(_list(turn, remote, source) for source in fresh))
    out = []
    first_fault: RemoteFault | None = None
    for source, (item, index), answer in zip(fresh, items, answers, strict=True):
        item_id = item.id or ""
        ended: type[McpListToolsCompleted | McpListToolsFailed] = McpListToolsCompleted
        if isinstance(answer, RemoteFault):
            item.error, ended = answer.message, McpListToolsFailed
            first_fault = first_fault or answer
        else:
            item.tools = answer
            _bind(turn, remote, source, answer)
        out.append(ended(sequence_number=turn.next_sequence(), item_id=item_id, output_index=index))
        conclude(turn, item, index, out)
    if out:
        yield out
    if fatal and first_fault is not None:
        raise first_fault
    tools.settle_choice()


async def settle_denials(turn: Turn) -> None:
    """A denied call cannot be approved afterwards. To deny it again changes nothing."""
    for request_id in turn.plan.denied:
        if turn.plan.claim is not None:
            await turn.plan.claim(request_id)


async def run_approved(turn: Turn, remote: RemoteTools) -> AsyncGenerator[list[Event], None]:
    """Runs exactly the stored calls, each once, in the order in which they were approved."""
    for approved in turn.plan.approved:
        request, label = approved.request, approved.source.label
        if turn.plan.tools.remote_binding(label, request.name) is None:
            # The filter may have become narrower since, and a replayed request may name anything.
            raise InvalidRequest(
                f"The approved tool '{request.name[:64]}' is not among those of the MCP server '{label}'.",
                param="tools",
            )
        if turn.plan.claim is None or not await turn.plan.claim(approved.request.id or ""):
            raise InvalidRequest(f"Approval request '{approved.request.id}' has been answered already.", param="input")
        call = _approved_call(turn, remote, approved)
        out: list[Event] = []
        call.open(out)
        call.grow(approved.request.arguments, out)
        call.close("completed", out)
        yield out
        out = []
        turn.server_calls += 1
        call.settle(await outcome_of(turn, call), out)
        yield out


def _approved_call(turn: Turn, remote: RemoteTools, approved: ApprovedCall) -> RemoteCall:
    request, source = approved.request, approved.source
    binding = Binding(
        request.name,
        "server",
        request.name,
        kind="mcp",
        tool=RemoteRunner(remote, source),
        label=source.label,
        untrusted=source.untrusted,
    )
    return RemoteCall(turn, binding, new_id("call"), approval=request.id)


async def _list(turn: Turn, remote: RemoteTools, source: RemoteSource) -> list[McpTool] | RemoteFault:
    try:
        with turn.watch.listing(source.label):
            listed = await remote.list_tools(source.server)
    except RemoteFault as fault:
        return fault
    except ServerError as fault:
        return RemoteFault(fault.message, kind="http")
    return [_shown(tool) for tool in listed if source.allows(tool.name, tool.read_only)]


def _shown(tool: RemoteTool) -> McpTool:
    annotations = decode(_object, tool.annotations) if tool.annotations is not None else None
    return McpTool(
        name=tool.name,
        input_schema=decode(_object, tool.input_schema),
        description=tool.description,
        annotations=annotations,
    )


def _bind(turn: Turn, remote: RemoteTools, source: RemoteSource, tools: list[McpTool]) -> None:
    """Offers the tools; the filter holds here too, whatever list was carried over (architecture §8)."""
    runner = RemoteRunner(remote, source)
    for tool in tools:
        hint = (tool.annotations or {}).get("readOnlyHint")
        read_only = hint is not None and bytes(hint) == b"true"
        if source.allows(tool.name, read_only):
            turn.plan.tools.add_remote(
                tool,
                label=source.label,
                runner=runner,
                asks=source.asks(tool.name, read_only),
                digest=source.server_digest,
                untrusted=source.untrusted,
            )


def _outcome(result: RemoteResult, *, untrusted: bool) -> ToolOutcome:
    texts: list[str] = []
    images: list[ImagePart] = []
    for part in result.parts:
        match part:
            case TextPart(text):
                texts.append(text)
            case ImagePart():
                texts.append("[image]")
                images.append(part)
            case _:
                texts.append(_described(part))
    text = "\n".join(texts)
    if not text and result.structured is not None:
        text = bytes(result.structured).decode()
    return ToolOutcome(text or "(no content)", failed=result.failed, images=images, untrusted=untrusted)


def _described(part: ModelPart) -> str:
    return f"[{type(part).__name__.removesuffix('Part').lower()}]"
