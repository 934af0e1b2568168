"""Metrics for whoever asks for them: the text that Prometheus reads."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


class MetricsPage:
    """A reader of its own, with nothing in it that other libraries in the process register."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reader = PrometheusMetricReader(registry=self._registry)

    def text(self) -> bytes:
        """Takes some milliseconds; from any thread."""
        return generate_latest(self._registry)
