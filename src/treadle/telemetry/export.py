"""Where spans and metrics go: a collector that speaks OTLP over HTTP, by threads of the SDK's own.

What the settings leave open is the SDK's to find in the standard `OTEL_…` variables: sampling, batching, resource
attributes, certificates, compression.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracerProvider

from treadle import __version__
from treadle.telemetry.observer import OpenTelemetry
from treadle.telemetry.page import MetricsPage

CLOSING_SECONDS = 5.0
"""How long the last spans may take to be sent when the server stops."""


class Export:
    """Providers of this server's own, and the observer that writes to them. Begins at once; `close` it.

    `sent`: to a collector, with the base address `endpoint`, empty for the variables' or http://localhost:4318. One
    that cannot be reached is retried and logged by the SDK; what it misses is lost, and nothing waits for it. `page`
    has metrics that are asked for instead. `service` names this server, empty for the variables' or `treadle`.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        headers: Mapping[str, str],
        service: str,
        metrics: bool,
        sent: bool = True,
        page: MetricsPage | None = None,
    ) -> None:
        base, given = endpoint.rstrip("/"), dict(headers) or None
        resource = _resource(service)
        readers: list[MetricReader] = [page.reader] if page is not None else []
        if sent and metrics:
            exporter = OTLPMetricExporter(f"{base}/v1/metrics" if base else None, headers=given)
            readers.append(PeriodicExportingMetricReader(exporter))
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False) if readers else None
        self._tracers: TracerProvider | None = None
        if not sent:
            self.observer = OpenTelemetry(NoOpTracerProvider(), self._meters)
            return
        # Not at exit: its own way to end could hold the process up for half a minute.
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces" if base else None, headers=given))
        )
        self.observer = OpenTelemetry(self._tracers, self._meters)

    async def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Sends what is left, as far as that is done within `seconds`."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def end() -> None:
            try:
                if self._tracers is not None:
                    self._tracers.shutdown()
                if self._meters is not None:
                    self._meters.shutdown()
            finally:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(ended.set)

        # A daemon, unlike the loop's own threads: a collector that hangs must not keep the process.
        threading.Thread(target=end, name="telemetry-end", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            pass


def _resource(service: str) -> Resource:
    found = Resource.create({"service.version": __version__})
    unnamed = str(found.attributes.get("service.name", "")).startswith("unknown_service")
    name = service or ("treadle" if unnamed else "")
    return found.merge(Resource({"service.name": name})) if name else found
