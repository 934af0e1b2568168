"""What the telemetry tests share: spans in memory to look through, and a collector that keeps what it is sent."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.behaviour.conftest import LOOPBACK, Driver
from treadle.ports import ServerTool
from treadle.telemetry.observer import OpenTelemetry
from treadle.testing.gates import PATIENCE
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import ScriptedUpstream


class Spans(InMemorySpanExporter):
    """The SDK's exporter into memory; a span can be waited for, as a request's ends a little after its answer."""

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Condition()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self))
        self.metrics = InMemoryMetricReader()
        self.observer = OpenTelemetry(
            self.provider, MeterProvider(metric_readers=[self.metrics], shutdown_on_exit=False)
        )

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        given = super().export(spans)
        with self._news:
            self._news.notify_all()
        return given

    def named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """The spans of that name, `count` of them at least, in the order in which they began."""
        until = monotonic() + PATIENCE
        with self._news:
            while len(found := [span for span in self.get_finished_spans() if span.name == name]) < count:
                names = [span.name for span in self.get_finished_spans()]
                assert self._news.wait(until - monotonic()), f"no {count} of {name!r} in {names}"
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    def below(self, parent: ReadableSpan) -> list[str]:
        """The names of the span's children, in the order in which they began."""
        children = [span for span in self.get_finished_spans() if is_child(span, parent)]
        return [span.name for span in sorted(children, key=lambda span: span.start_time or 0)]

    def points(self, metric: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """The points of a metric, by their attributes, sorted."""
        data = self.metrics.get_metrics_data()
        assert data is not None
        return {
            tuple(sorted(point.attributes.items())): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        }


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.context.span_id


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def failed(span: ReadableSpan) -> str | None:
    """The error type of a span that failed; a span says so in both places or in neither."""
    error = told(span).get("error.type")
    assert (error is not None) == (span.status.status_code.name == "ERROR")
    assert span.status.description is None
    assert span.events == ()
    return None if error is None else str(error)


@contextmanager
def watched(
    data: Path, model: ScriptedUpstream, *extra: str, tools: Mapping[str, ServerTool] | None = None
) -> Iterator[tuple[Driver, Spans]]:
    """A driver for a server that is watched, and the spans so far."""
    spans = Spans()
    settings = settings_for(data, model.url, LOOPBACK, *extra)
    with (
        RunningServer(settings, server_tools=tools, observer=spans.observer) as running,
        httpx2.Client(timeout=20) as http,
    ):
        yield Driver(running, http), spans


@dataclass
class Collector:
    """What arrived at a collector of traces and metrics."""

    port: int = 0
    bodies: dict[str, list[bytes]] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a loopback port, speaking OTLP over HTTP as far as an exporter can tell."""
    found = Collector()

    class Taking(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.bodies.setdefault(self.path, []).append(body)
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        found.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(PATIENCE)
