"""The transport of protocols before 2025: one stream of events for all answers, a POST for each request.

Not the SDK's own `sse_client`: it cannot take events above 1 MiB, and a POST that fails ends it without waking
whoever waits for the answer. Here a request is sent by its caller, so what goes wrong is raised to the caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from treadle.tools.mcp.address import joined, same_origin
from treadle.tools.mcp.faults import Fault

Messages = MemoryObjectReceiveStream[SessionMessage | Exception]


class _Posts:
    """The SDK's way to send a message: posts it from the task that has something to say."""

    def __init__(self, client: httpx2.AsyncClient, endpoint: httpx2.URL) -> None:
        self._client = client
        # The session's id stands in the query. Only the exchange sees it: the HTTP client logs every address.
        self._endpoint = endpoint.copy_with(query=None)
        self._more = {"query": endpoint.query}

    async def send(self, item: SessionMessage, /) -> None:
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        headers = {"content-type": "application/json"}
        await self._client.post(self._endpoint, content=body, headers=headers, extensions=self._more)

    async def aclose(self) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        return


@asynccontextmanager
async def events_and_posts(
    client: httpx2.AsyncClient, url: str, *, max_event: int, on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Messages, _Posts], None]:
    """The streams of one session. Fault if the server offers none; `on_end` is called when its stream ends."""
    into, out = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with (
        into,
        out,
        client.stream("GET", url, headers={"accept": "text/event-stream", "cache-control": "no-store"}) as response,
        anyio.create_task_group() as group,
    ):
        endpoint = await group.start(_read, response, max_event, into, on_end)
        yield out, _Posts(client, endpoint)
        group.cancel_scope.cancel()


async def _read(
    response: httpx2.Response,
    max_event: int,
    into: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], None],
    *,
    task_status: anyio.abc.TaskStatus[httpx2.URL],
) -> None:
    started = False
    async with into:
        try:
            async for event in httpx2.EventSource(response, max_event_size=max_event):
                if event.event == "endpoint" and not started:
                    task_status.started(_endpoint(response.request.url, event.data))
                    started = True
                elif event.event == "message" and event.data:
                    await into.send(_message(event.data))
        except (httpx2.SSEError, httpx2.StreamError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The session ends here; who still waits for an answer is told so by the SDK.
            pass
    on_end()
    if not started:
        raise Fault("ended its stream of events before the session began", lost=True, unrun=True)


def _message(data: str) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(data, by_name=False))
    except ValidationError as invalid:
        return invalid


def _endpoint(base: httpx2.URL, said: str) -> httpx2.URL:
    target = joined(base, said)
    if not same_origin(base, target):
        raise Fault("wants its requests sent to another origin than the configured one", kind="protocol", unrun=True)
    return target
