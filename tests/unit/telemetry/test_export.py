"""What is sent to a collector, and that one which cannot be had is no trouble."""

from __future__ import annotations

import socket
from time import monotonic

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.behaviour.telemetry_kit import Collector, collecting
from treadle.ports import ModelUsage
from treadle.telemetry.export import Export


def export(endpoint: str, service: str = "") -> Export:
    return Export(endpoint=endpoint, headers={}, service=service, metrics=False)


def resource(collector: Collector) -> dict[str, str]:
    (body,) = collector.bodies["/v1/traces"]
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    return {entry.key: entry.value.string_value for entry in sent.resource.attributes}


def watch_something(given: Export, model: str = "m") -> None:
    watch = given.observer.response("resp_1", model=model, provider="p", conversation=None)
    watch.ended("completed", ModelUsage(), None)


@pytest.mark.parametrize(
    ("service", "environ", "expected"),
    [
        ("", {}, "treadle"),
        ("mine", {"OTEL_SERVICE_NAME": "theirs"}, "mine"),
        ("", {"OTEL_SERVICE_NAME": "theirs"}, "theirs"),
        ("", {"OTEL_RESOURCE_ATTRIBUTES": "service.name=listed,a=b"}, "listed"),
    ],
)
async def test_the_server_goes_by_the_name_it_is_given(
    service: str, environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with collecting() as collector:
        given = export(collector.url + "/", service)
        watch_something(given)
        await given.close()
    assert resource(collector)["service.name"] == expected


async def test_without_an_endpoint_the_standard_variables_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=theirs")
        given = export("")
        watch_something(given)
        await given.close()
    assert list(collector.bodies) == ["/v1/traces"]
    assert collector.headers[0]["x-key"] == "theirs"


async def test_a_name_that_cannot_be_written_takes_no_other_span_with_it() -> None:
    with collecting() as collector:
        given = export(collector.url)
        watch_something(given, "half \ud800 " + "x" * 1000)
        await given.close()
    (body,) = collector.bodies["/v1/traces"]
    assert b"half ? xxx" in body
    assert b"x" * 300 not in body


async def test_a_collector_that_never_answers_holds_nobody_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        given = export(f"http://127.0.0.1:{silent.getsockname()[1]}")
        watch_something(given)
        began = monotonic()
        await given.close(0.2)
        assert monotonic() - began < 5


async def test_a_collector_that_is_not_there_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        given = export(f"http://127.0.0.1:{taken.getsockname()[1]}")
        watch_something(given)
        began = monotonic()
        await given.close(0.2)
        assert monotonic() - began < 5
