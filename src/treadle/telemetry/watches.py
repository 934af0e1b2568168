"""One watch for each kind of thing that is under way: a span, and what is said of it when it ends.

A span gets names, numbers and outcomes from the closed list in `names`, each of bounded length; an exception leaves
its type's code there and never its text, which may quote what was said.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import Token
from types import TracebackType
from typing import Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode, Tracer

from treadle.errors import ServerError
from treadle.ports import Answer, ModelRequest, ModelUsage
from treadle.telemetry import names
from treadle.telemetry.metrics import Instruments

_LONGEST = 256
_FAILED_TOOL = "tool_error"


class Timed:
    """A span as long as a block. With `attach`, what the block begins becomes its children."""

    def __init__(self, span: Span, *, attach: Context | None = None) -> None:
        self.span = span
        self._begun = time.perf_counter()
        self._attach = attach
        self._token: Token[Context] | None = None
        self.error = ""
        """What is said of the outcome as `error.type`; empty: it went well, or it was cancelled."""

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun

    def __enter__(self) -> Self:
        if self._attach is not None:
            self._token = contexts.attach(self._attach)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._token is not None:
            contexts.detach(self._token)
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.span.set_attribute(names.CANCELLED, True)
        elif error is not None:
            self.error = error_type(error)
        self.closing()
        if self.error:
            self.span.set_attribute(names.ERROR, self.error)
            self.span.set_status(StatusCode.ERROR)
        self.span.end()

    def closing(self) -> None:
        """What a kind of watch has to say at the end, before the span is closed."""


class Request(Timed):
    """An HTTP request."""

    def __init__(self, span: Span, method: str, parent: Context, instruments: Instruments) -> None:
        super().__init__(span, attach=trace.set_span_in_context(span, parent))
        self._method = method
        self._instruments = instruments
        self._told: dict[str, str | int] = {names.HTTP_METHOD: method}

    def answered(self, route: str, status: int | None, *, complete: bool) -> None:
        if route:
            self.span.update_name(f"{self._method if self._method != '_OTHER' else 'HTTP'} {route}")
            self._told[names.HTTP_ROUTE] = route
        if status is not None:
            self._told[names.HTTP_STATUS] = status
            if status >= 500:
                self.error = str(status)
        if not complete:
            self.span.set_attribute(names.CANCELLED, True)

    def closing(self) -> None:
        if self.error:
            self._told[names.ERROR] = self.error
        self.span.set_attributes(self._told)
        self._instruments.request.record(self.seconds, self._told)


class Round(Timed):
    """A model call."""

    def __init__(self, span: Span, answer: Answer, told: dict[str, str], instruments: Instruments) -> None:
        super().__init__(span)
        self._answer = answer
        self._told = told
        self._instruments = instruments

    def heard(self) -> None:
        taken = self.seconds
        self.span.set_attribute(names.FIRST_CHUNK, taken)
        self._instruments.first.record(taken, self._told)

    def closing(self) -> None:
        reason, usage = self._answer.finish_reason, self._answer.usage
        if reason is not None:
            self.span.set_attribute(names.FINISH_REASONS, [reason])
        if usage is not None:
            self.span.set_attributes(usage_attributes(usage))
            self._instruments.tokens(usage, self._told)
        told = {**self._told, names.ERROR: self.error} if self.error else self._told
        self._instruments.model.record(self.seconds, told)


class Tool(Timed):
    """A tool call."""

    def __init__(self, span: Span, name: str, parent: Context, instruments: Instruments) -> None:
        super().__init__(span, attach=trace.set_span_in_context(span, parent))
        self._told = {names.TOOL_NAME: name}
        self._instruments = instruments

    def answered(self, *, failed: bool) -> None:
        if failed:
            self.error = _FAILED_TOOL

    def closing(self) -> None:
        told = {**self._told, names.ERROR: self.error} if self.error else self._told
        self._instruments.tool.record(self.seconds, told)


class Search(Timed):
    """A search of vector stores."""

    def found(self, count: int, *, broken: int) -> None:
        self.span.set_attribute(names.FOUND, count)
        if broken:
            self.span.set_attribute(names.BROKEN_STORES, broken)


class Response:
    """A response. Not a block: it is made by a generator, whose steps may run in different contexts."""

    def __init__(self, tracer: Tracer, span: Span, parent: Context, provider: str, instruments: Instruments) -> None:
        self._tracer = tracer
        self._span = span
        self._within = trace.set_span_in_context(span, parent)
        self._provider = provider
        self._instruments = instruments

    def round(self, request: ModelRequest, answer: Answer) -> Round:
        model = plain(request.model)
        told = {names.OPERATION: "chat", names.PROVIDER: self._provider, names.REQUEST_MODEL: model}
        options = {
            names.REQUEST_MAX_TOKENS: request.max_output_tokens,
            names.REQUEST_TEMPERATURE: request.temperature,
            names.REQUEST_TOP_P: request.top_p,
            names.REQUEST_FREQUENCY_PENALTY: request.frequency_penalty,
            names.REQUEST_PRESENCE_PENALTY: request.presence_penalty,
        }
        given = {name: value for name, value in options.items() if value is not None}
        span = self._tracer.start_span(
            f"chat {model}", self._within, trace.SpanKind.CLIENT, attributes={**told, **given}
        )
        return Round(span, answer, told, self._instruments)

    def listing(self, label: str) -> Timed:
        attributes = {names.MCP_METHOD: "tools/list", names.SERVER_LABEL: plain(label)}
        span = self._tracer.start_span("tools/list", self._within, trace.SpanKind.CLIENT, attributes=attributes)
        return Timed(span, attach=trace.set_span_in_context(span, self._within))

    def tool(self, name: str, call_id: str, *, kind: str, label: str) -> Tool:
        name = plain(name)
        attributes = {
            names.OPERATION: "execute_tool",
            names.TOOL_NAME: name,
            names.TOOL_TYPE: names.TOOL_TYPES.get(kind, "function"),
            names.TOOL_CALL: plain(call_id),
        }
        if label:
            attributes |= {names.MCP_METHOD: "tools/call", names.SERVER_LABEL: plain(label)}
        span = self._tracer.start_span(f"execute_tool {name}", self._within, attributes=attributes)
        return Tool(span, name, self._within, self._instruments)

    def settling(self) -> Timed:
        return Timed(self._tracer.start_span("store response", self._within))

    def ended(self, status: str, usage: ModelUsage, fault: ServerError | None) -> None:
        self._span.set_attributes({names.STATUS: status, **usage_attributes(usage)})
        if status == "cancelled":
            self._span.set_attribute(names.CANCELLED, True)
        if fault is not None:
            self._span.set_attribute(names.ERROR, error_type(fault))
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def plain(text: str) -> str:
    """A text of somebody else's as an attribute: of bounded length, and such that it can be sent. One that cannot
    would take its whole batch of spans with it."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()


def error_type(error: BaseException) -> str:
    """A word out of few. Not the code of the single fault: a model server may write into that what it likes."""
    if isinstance(error, ServerError):
        return type(error).code or type(error).__name__
    return "timeout" if isinstance(error, TimeoutError) else type(error).__qualname__


def usage_attributes(usage: ModelUsage) -> dict[str, int]:
    """Both sums, and of the details those that there are."""
    found = {names.INPUT_TOKENS: usage.input_tokens, names.OUTPUT_TOKENS: usage.output_tokens}
    details = {
        names.CACHE_READ_TOKENS: usage.cached_tokens,
        names.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        names.REASONING_TOKENS: usage.reasoning_tokens,
    }
    return found | {name: count for name, count in details.items() if count}
