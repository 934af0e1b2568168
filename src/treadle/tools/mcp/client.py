"""The seam to the official MCP SDK (mcp 2.x): open a session, list, call. Importing this costs more than a second.

A session is entered and left in one task, the one that runs `open_link`; requests may come from any task. Every
failure leaves here as a `Fault`, whatever the SDK raised, exception groups and cancellations inside them included.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio
import httpx2
import mcp_types as types
import msgspec
from anyio.streams.memory import MemoryObjectSendStream
from mcp.client import Client, IncomingMessage, InputRequiredRoundsExceededError, Transport
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from treadle import __version__
from treadle.ports import RemoteResult, RemoteTool
from treadle.tools.mcp.address import Address
from treadle.tools.mcp.exchange import Exchange
from treadle.tools.mcp.faults import Attempt, Fault, attempt
from treadle.tools.mcp.results import result_of, tool_of
from treadle.tools.mcp.sse import events_and_posts
from treadle.tools.mcp.target import Kind, Limits, Target

if TYPE_CHECKING:
    # The SDK's public Transport is written in these terms, but does not export them.
    from mcp.client._transport import ReadStream, TransportStreams

T = TypeVar("T")

_MOST_PAGES = 1000
_LONGEST_PAUSE = 60.0
_CALL_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class Link:
    """An open session. Its methods may be called from any task, at the same time; cancelling one cancels the
    request on the server and leaves the session as it was."""

    def __init__(self, client: Client, limits: Limits) -> None:
        self._client = client
        self._limits = limits

    @property
    def modern(self) -> bool:
        """The protocol of 2026: no handshake and no session on the server."""
        return self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def list_tools(self) -> list[RemoteTool]:
        """All pages. Fault."""
        return await self._bounded(self._all_pages(), self._limits.listing)

    async def call(self, name: str, arguments: str) -> RemoteResult:
        """Runs a tool. A result that says the tool failed is a result. Fault."""
        given = msgspec.json.decode(arguments or "{}", type=dict[str, object])
        return await self._bounded(self._call(name, given), self._limits.call)

    async def _all_pages(self) -> list[RemoteTool]:
        tools: list[RemoteTool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
            page = await self._client.session.list_tools(params=params)
            tools += [tool_of(tool) for tool in page.tools]
            if not page.next_cursor or page.next_cursor == cursor:
                return tools
            cursor = page.next_cursor
        raise Fault("lists its tools on pages without end", kind="protocol")

    async def _call(self, name: str, arguments: dict[str, object]) -> RemoteResult:
        # Not `call_tool` of the SDK: it lists the tools again before the first call, and turns a result that
        # does not fit the server's own output schema into an exception, although the call has run.
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
        session = self._client.session
        try:
            given = await session.send_request(request, _CALL_RESULT)
        except MCPError as refused:
            if refused.code != types.HEADER_MISMATCH:
                raise
            # The protocol's own remedy: the server did not run it, because it needs to see arguments in headers
            # that only the list tells about.
            await self._all_pages()
            given = await session.send_request(request, _CALL_RESULT)
        if isinstance(given, types.InputRequiredResult):
            raise Fault("asks for input that only a person could give, which is not supported", kind="protocol")
        return result_of(given)

    async def _bounded(self, work: Awaitable[T], seconds: float) -> T:
        current = Attempt()
        token = attempt.set(current)
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise Fault(f"did not answer within {seconds:g} s", number=408, lost=True) from None
        except Fault:
            raise
        except Exception as failed:
            raise fault_of(failed, current) from failed
        finally:
            attempt.reset(token)


def fault_of(failed: BaseException, current: Attempt) -> Fault:
    """The fault that an exception of the SDK stands for; what really happened on the wire goes first."""
    if current.fault is not None:
        return current.fault
    for one in _leaves(failed):
        match one:
            case Fault():
                return one
            case MCPError() if one.code == types.CONNECTION_CLOSED:
                return Fault("closed the connection before it answered", lost=True, unrun=not current.sent)
            case MCPError():
                return Fault(f"answered with the error {one.code}: {one.message}", kind="protocol", number=one.code)
            case ValidationError() | InputRequiredRoundsExceededError():
                return Fault("answered with something that the protocol does not allow", kind="protocol")
            case TimeoutError():
                return Fault("did not answer in time", number=408, lost=True)
            case OSError():
                return Fault(f"cannot be started: {one.strerror or type(one).__name__}", unrun=True, lost=True)
            case _:
                continue
    return Fault("broke off the session", kind="protocol", lost=True, unrun=not current.sent)


def _leaves(failed: BaseException) -> list[BaseException]:
    if isinstance(failed, BaseExceptionGroup):
        return [leaf for one in failed.exceptions for leaf in _leaves(one)]
    return [failed]


@asynccontextmanager
async def open_link(
    target: Target, kind: Kind, limits: Limits, *, on_end: Callable[[], None], on_change: Callable[[], None]
) -> AsyncGenerator[Link, None]:
    """A session with `target`, for the time of the context. `on_end` is called when it breaks off, `on_change` when
    the server says that its tools are others now. Fault if it cannot be had."""
    current = Attempt()
    attempt.set(current)

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    async with AsyncExitStack() as stack:
        client = Client(
            _transport(target, kind, limits, on_end),
            mode="auto" if kind in ("http", "stdio") else "legacy",
            message_handler=hear,
            client_info=types.Implementation(name="treadle", version=__version__),
            cache=None,
        )
        try:
            async with asyncio.timeout(limits.connect):
                await stack.enter_async_context(client)
        except TimeoutError:
            raise Fault(f"did not answer within {limits.connect:g} s", number=408, lost=True, unrun=True) from None
        except (Exception, BaseExceptionGroup) as failed:
            # A group that holds a cancellation is no Exception.
            raise fault_of(failed, current) from failed
        link = Link(client, limits)
        if link.modern and (tools := client.server_capabilities.tools) and tools.list_changed:
            watching = asyncio.create_task(_watch(client, on_change))
            stack.push_async_callback(_stop, watching)
        yield link


async def _watch(client: Client, on_change: Callable[[], None]) -> None:
    """The 2026 protocol tells of changes only to those who ask. Where it does not answer, lists simply age."""
    known, pause = False, 1.0
    while True:
        try:
            async with client.listen(tools_list_changed=True) as changes:
                known, pause = True, 1.0
                async for _ in changes:
                    on_change()
        except (Exception, BaseExceptionGroup):  # noqa: BLE001 - news are a courtesy; their loss is no fault
            if not known:
                return
        if pause == 1.0:
            # What changed since the stream ended, nobody will tell us.
            on_change()
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _transport(target: Target, kind: Kind, limits: Limits, on_end: Callable[[], None]) -> Transport:
    if kind == "stdio":
        command, *arguments = target.command
        parameters = StdioServerParameters(command=command, args=arguments, env=dict(target.env))
        return _watched(stdio_client(parameters, sys.__stderr__ or sys.stderr), on_end)
    address = Address.of(target.url, target.headers)
    exchange = Exchange(
        address,
        guard=target.guard,
        connect_seconds=limits.connect,
        max_body=limits.max_body,
        answers_apart=kind == "sse",
    )
    # Its time limits are the exchange's, and it looks for proxies and passwords nowhere.
    client = httpx2.AsyncClient(
        transport=exchange, timeout=None, trust_env=False, headers={"user-agent": f"treadle/{__version__}"}
    )
    return _over_http(client, address.url, kind, limits, on_end)


@asynccontextmanager
async def _over_http(
    client: httpx2.AsyncClient, url: str, kind: Kind, limits: Limits, on_end: Callable[[], None]
) -> AsyncGenerator[TransportStreams, None]:
    async with client:
        if kind == "sse":
            async with events_and_posts(client, url, max_event=limits.max_body, on_end=on_end) as streams:
                yield streams
        else:
            official = streamable_http_client(url, http_client=client, max_sse_event_size=limits.max_body)
            async with _watched(official, on_end) as streams:
                yield streams


@asynccontextmanager
async def _watched(official: Transport, on_end: Callable[[], None]) -> AsyncGenerator[TransportStreams, None]:
    """The SDK's transport with its messages passed on by us: it tells nobody when they end."""
    async with official as (messages, sender):
        into, out = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        async with into, out, anyio.create_task_group() as group:
            group.start_soon(_pass_on, messages, into, on_end)
            yield out, sender
            group.cancel_scope.cancel()


async def _pass_on(
    messages: ReadStream[SessionMessage | Exception],
    into: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], None],
) -> None:
    async with into:
        try:
            async for message in messages:
                await into.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
    on_end()
