"""The HTTP under the SDK: credentials, permitted addresses, bounds, and faults that reach the call that had them.

The SDK sees a URL without query, headers without credentials, and no network errors: whatever goes wrong with a
request becomes its own JSON-RPC error. Left to itself, the SDK lets a failed request end the whole session with an
exception group, forgets the status, and logs addresses with everything in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import httpcore2
import httpx2
import msgspec
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError

from treadle.errors import ServerError
from treadle.ports import AddressGuard
from treadle.tools.mcp.address import Address, Guarded, joined, same_origin, tls, unreachable
from treadle.tools.mcp.faults import Attempt, Fault, attempt, of_status

_NOTICE_SECONDS = 5.0
"""How long a message that expects no answer may take: the SDK sends nothing else meanwhile."""
_GOODBYE_SECONDS = 2.0
_KEPT_SECONDS = 4.0
"""Idle connections are given up just before common servers do (5 s), so that none dies under a request."""
_CONNECTIONS = 256
_REDIRECTS = 5
_LONGEST_REFUSAL = 64 * 1024
"""Bytes of an error's body that are read to see whether it is a JSON-RPC error."""


class _Envelope(msgspec.Struct):
    """What tells requests, answers and notifications apart."""

    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()

    @property
    def expects_answer(self) -> bool:
        return self.method is not None and self.id is not None

    @property
    def is_answer(self) -> bool:
        return self.method is None and bool(self.result or self.error)


_envelopes = msgspec.json.Decoder(_Envelope)


class Exchange(httpx2.AsyncBaseTransport):
    """The transport of one session's HTTP client. With `answers_apart` (SSE) a request is answered on another
    stream and its sender waits here, so faults are raised."""

    def __init__(
        self,
        address: Address,
        *,
        guard: AddressGuard | None,
        connect_seconds: float,
        max_body: int,
        answers_apart: bool = False,
    ) -> None:
        self._address = address
        self._base = httpx2.URL(address.url)
        self._connect_seconds = connect_seconds
        self._max_body = max_body
        self._apart = answers_apart
        self._notices: set[asyncio.Task[None]] = set()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls() if self._base.scheme == "https" else None,
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=None if guard is None else Guarded(guard),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            return await self._goodbye(request)
        if request.method == "GET":
            return await self._listen(request)
        body = await request.aread()
        envelope = _envelopes.decode(body)
        if not envelope.expects_answer:
            return await self._notice(request, body, envelope)
        current = attempt.get() or Attempt()
        current.fault = None
        try:
            return await self._ask(request, body, envelope, current)
        except Fault as fault:
            current.fault = fault
            if self._apart:
                raise
            error = ErrorData(code=INTERNAL_ERROR, message=fault.cause)
            said = JSONRPCError(jsonrpc="2.0", id=envelope.id, error=error)
            return _json(said.model_dump_json(exclude_unset=True).encode())

    async def aclose(self) -> None:
        for task in self._notices:
            task.cancel()
        await asyncio.gather(*self._notices, return_exceptions=True)
        await self._pool.aclose()

    async def _ask(
        self, request: httpx2.Request, body: bytes, envelope: _Envelope, current: Attempt
    ) -> httpx2.Response:
        response: httpcore2.Response | None = await self._send(request, body, current)
        assert response is not None
        try:
            if response.status >= 300:
                return await self._refused(request, response)
            if self._apart:
                await _read(response, _LONGEST_REFUSAL)
                return httpx2.Response(202)
            kind = _kind(response)
            if kind == "text/event-stream":
                stream = _Bounded(response, self._max_body, current)
                response = None
                return httpx2.Response(stream.status, headers=[("content-type", kind), *stream.kept], stream=stream)
            if kind != "application/json":
                return self._foreign(response, kind)
            whole = await _read(response, self._max_body)
            said = _envelope(whole)
            if said is None or not said.is_answer:
                raise Fault("answered with JSON that is no JSON-RPC answer", kind="protocol", number=-32700)
            if said.id is not None and str(said.id) != str(envelope.id):
                # The SDK would wait for the right one, which can come no more.
                raise Fault("answered another request than the one it was sent", kind="protocol")
            return _json(whole, _kept(response))
        finally:
            if response is not None:
                await response.aclose()

    def _foreign(self, response: httpcore2.Response, kind: str) -> httpx2.Response:
        if response.status == 202:
            return httpx2.Response(202)
        what = f"a web page ({kind})" if "html" in kind else f"content of type {kind or 'unknown'}"
        raise Fault(f"answered with {what} where MCP was expected: is its URL right?", number=response.status)

    async def _refused(self, request: httpx2.Request, response: httpcore2.Response) -> httpx2.Response:
        """A status that says no: its JSON-RPC error if it has one, otherwise the fault it means."""
        status = response.status
        if 300 <= status < 400:
            target = joined(self._base, _header(response, b"location"))
            place = f"{target.scheme}://{target.netloc.decode('ascii', 'replace')}"
            raise Fault(f"redirects to {place}, which is not followed: use that address", number=status, unrun=True)
        fault = of_status(status, had_credentials=self._address.had_credentials)
        if status in (401, 403):
            raise fault
        try:
            body = await _read(response, _LONGEST_REFUSAL)
        except Fault:
            raise fault from None
        said = _envelope(body)
        unread = said is None or said.id is None
        had_session = "mcp-session-id" in request.headers or self._apart
        if had_session and unread and (status == 404 or (status == 400 and b"session" in body.lower())):
            raise Fault("does not know its session any more", number=status, unrun=True, lost=True)
        if said is None or not said.error or self._apart:
            raise fault
        return httpx2.Response(status, headers={"content-type": "application/json"}, content=body)

    async def _notice(self, request: httpx2.Request, body: bytes, envelope: _Envelope) -> httpx2.Response:
        """Sends what expects no answer; that it could not be delivered shows at the next request."""
        sending = self._deliver(request, body, _NOTICE_SECONDS)
        if envelope.method == "notifications/cancelled":
            # A server that hangs must not hold up the others' requests for the sake of a courtesy.
            task = asyncio.create_task(sending)
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)
        else:
            await sending
        return httpx2.Response(202)

    async def _goodbye(self, request: httpx2.Request) -> httpx2.Response:
        await self._deliver(request, b"", _GOODBYE_SECONDS)
        return httpx2.Response(204)

    async def _deliver(self, request: httpx2.Request, body: bytes, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                response = await self._send(request, body, Attempt())
                try:
                    await _read(response, _LONGEST_REFUSAL)
                finally:
                    await response.aclose()
        except (Fault, TimeoutError):
            return

    async def _listen(self, request: httpx2.Request) -> httpx2.Response:
        """A stream of events that stays open. For SSE it is the session; otherwise it only brings news."""
        try:
            response = await self._send(request, b"", Attempt())
            kind = _kind(response)
            if response.status != 200 or kind != "text/event-stream":
                await response.aclose()
                if response.status != 200:
                    raise of_status(response.status, had_credentials=self._address.had_credentials)
                raise Fault(f"answered with {kind or 'nothing'} instead of a stream of events", number=200)
        except Fault as fault:
            if self._apart:
                raise
            return httpx2.Response(fault.number if fault.number >= 400 else 502)
        stream = _Bounded(response, None, Attempt())
        return httpx2.Response(200, headers=[("content-type", kind), *stream.kept], stream=stream)

    async def _send(self, request: httpx2.Request, body: bytes, current: Attempt) -> httpcore2.Response:
        """The answer to a request, after redirects within the origin. Credentials go nowhere else."""
        url = request.url
        query: bytes = request.extensions.get("query") or (self._address.query.encode() if url == self._base else b"")
        if query:
            url = url.copy_with(query=query)
        for _ in range(_REDIRECTS):
            response = await self._once(request, url, body, current)
            location = _header(response, b"location")
            if response.status not in (307, 308) or not location:
                return response
            target = joined(url, location)
            if not same_origin(self._base, target) or target.userinfo:
                return response
            await response.aclose()
            url = target
        raise Fault("redirects without end", number=308, unrun=True)

    async def _once(
        self, request: httpx2.Request, url: httpx2.URL, body: bytes, current: Attempt
    ) -> httpcore2.Response:
        ours = {name.lower() for name, _ in self._address.headers} | {b"accept-encoding"}
        headers = [(name, value) for name, value in request.headers.raw if name.lower() not in ours]
        # Compressed answers would have to be bounded twice.
        headers += [*self._address.headers, (b"accept-encoding", b"identity")]
        wait = self._connect_seconds
        raw = httpcore2.Request(
            request.method,
            httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=headers,
            content=body,
            extensions={
                "timeout": {"connect": wait, "write": wait, "read": None, "pool": None},
                "trace": _departure(current),
            },
        )
        try:
            response = await self._pool.handle_async_request(raw)
        except ServerError as refused:
            raise Fault(refused.message, unrun=True, error=refused) from refused
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.UnsupportedProtocol) as failed:
            raise Fault(unreachable(failed, wait), unrun=True, lost=True) from failed
        except httpcore2.LocalProtocolError as invalid:
            raise Fault("cannot be sent the headers it was configured with", unrun=True) from invalid
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as broken:
            raise Fault("broke off the connection without an answer", lost=True, unrun=not current.sent) from broken
        if _header(response, b"content-encoding").lower() not in ("", "identity"):
            await response.aclose()
            raise Fault("compresses its answer although asked not to", kind="protocol")
        return response


def _departure(current: Attempt) -> Callable[[str, dict[str, object]], Awaitable[None]]:
    """Marks the attempt as sent from the moment its bytes may leave."""

    async def trace(event: str, _info: dict[str, object]) -> None:
        if event == "http11.send_request_headers.started":
            current.sent = True

    return trace


class _Bounded(httpx2.AsyncByteStream):
    """An answer's bytes as they come, up to a limit."""

    def __init__(self, response: httpcore2.Response, limit: int | None, current: Attempt) -> None:
        self.status = response.status
        self.kept = _kept(response)
        self._response = response
        self._limit = limit
        self._current = current

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in _parts(self._response, self._limit):
                yield part
        except Fault as fault:
            self._current.fault = fault
            raise httpx2.StreamError(fault.cause) from fault

    async def aclose(self) -> None:
        await self._response.aclose()


async def _parts(response: httpcore2.Response, limit: int | None) -> AsyncIterator[bytes]:
    size = 0
    try:
        async for part in response.aiter_stream():
            size += len(part)
            if limit is not None and size > limit:
                raise Fault(f"answered with more than {_size(limit)}", kind="protocol")
            yield part
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as broken:
        raise Fault("broke off the connection in the middle of its answer", lost=True) from broken


async def _read(response: httpcore2.Response, limit: int) -> bytes:
    return b"".join([part async for part in _parts(response, limit)])


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"


def _header(response: httpcore2.Response, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), "")


def _kind(response: httpcore2.Response) -> str:
    return _header(response, b"content-type").partition(";")[0].strip().lower()


def _kept(response: httpcore2.Response) -> list[tuple[str, str]]:
    session = _header(response, b"mcp-session-id")
    return [("mcp-session-id", session)] if session else []


def _json(body: bytes, headers: Iterable[tuple[str, str]] = ()) -> httpx2.Response:
    return httpx2.Response(200, headers=[("content-type", "application/json"), *headers], content=body)


def _envelope(body: bytes) -> _Envelope | None:
    try:
        return _envelopes.decode(body)
    except msgspec.DecodeError:
        return None
