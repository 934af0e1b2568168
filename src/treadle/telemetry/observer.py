"""The Observer port: begins spans in the place of the trace where they belong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle import __version__
from treadle.telemetry import names
from treadle.telemetry.metrics import Instruments
from treadle.telemetry.watches import Request, Response, Search, plain

_PROPAGATOR = TraceContextTextMapPropagator()
_MOST_SOURCES = 16


class OpenTelemetry:
    """Watches for the given providers, and for those alone: the process's global ones stay as they are, so that no
    library underneath writes spans of its own, with texts that we do not know, into our traces."""

    def __init__(self, tracers: TracerProvider, meters: MeterProvider | None = None) -> None:
        self._tracer = tracers.get_tracer("treadle", __version__)
        self._instruments = Instruments(meters or NoOpMeterProvider())

    def request(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Request:
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in headers if name in (b"traceparent", b"tracestate")
        }
        parent = _PROPAGATOR.extract(carrier) if carrier else get_current()
        method = method if method in names.METHODS else "_OTHER"
        attributes = {names.HTTP_METHOD: method}
        name = "HTTP" if method == "_OTHER" else method
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, attributes=attributes)
        return Request(span, method, parent, self._instruments)

    def response(self, response_id: str, *, model: str, provider: str, conversation: str | None) -> Response:
        provider = plain(names.PROVIDERS.get(provider, provider))
        attributes = {
            names.OPERATION: "invoke_agent",
            names.PROVIDER: provider,
            names.REQUEST_MODEL: plain(model),
            names.RESPONSE_ID: response_id,
        }
        if conversation is not None:
            attributes[names.CONVERSATION] = plain(conversation)
        parent = get_current()
        span = self._tracer.start_span("invoke_agent", parent, attributes=attributes)
        return Response(self._tracer, span, parent, provider, self._instruments)

    def search(self, stores: Sequence[str]) -> Search:
        attributes = {
            names.OPERATION: "retrieval",
            names.DATA_SOURCE: ",".join(plain(store) for store in stores[:_MOST_SOURCES]),
        }
        return Search(self._tracer.start_span("retrieval", kind=trace.SpanKind.CLIENT, attributes=attributes))

    def asked(self, parameters: Sequence[str], tools: Sequence[str]) -> None:
        self._instruments.asked(parameters, {plain(kind) for kind in tools})

    def level(self, name: str, what: str, read: Callable[[], Mapping[str, int]]) -> None:
        self._instruments.level(name, what, read)
