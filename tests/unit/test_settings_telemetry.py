"""When telemetry is on: the configuration's word first, then the standard variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.settings import Loaded, load, telemetry

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


def loaded(environ: dict[str, str] | None = None, **section: Any) -> Loaded:
    return load(environ=environ or {}, overrides={"telemetry": section} if section else None)


def test_nothing_is_sent_unless_somebody_asks_for_it() -> None:
    assert not loaded().require().telemetry.enabled
    assert loaded().notes == []


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (ENDPOINT | {"TREADLE_TELEMETRY__ENABLED": "false"}, False),
        ({"TREADLE_TELEMETRY__ENABLED": "true"}, True),
    ],
)
def test_the_standard_variables_switch_it_on_where_nothing_else_is_said(environ: dict[str, str], on: bool) -> None:
    found = loaded(environ)
    assert (found.require().telemetry.enabled, found.notes) == (on, [])


def test_the_variable_is_named_as_the_origin() -> None:
    assert str(loaded(ENDPOINT).origins["telemetry.enabled"]) == "environment OTEL_EXPORTER_OTLP_ENDPOINT"


def test_the_configuration_has_the_last_word() -> None:
    assert not loaded(ENDPOINT, enabled=False).require().telemetry.enabled


def test_metrics_can_be_left_out_by_the_standard_variable() -> None:
    none = {"OTEL_METRICS_EXPORTER": "none"}
    assert not loaded(none).require().telemetry.metrics
    assert loaded(none, metrics=True).require().telemetry.metrics


def test_variables_for_another_protocol_are_a_warning_and_a_wish_for_it_a_fault() -> None:
    found = loaded(ENDPOINT | GRPC)
    assert not found.require().telemetry.enabled
    (note,) = found.notes
    assert note.startswith("OTEL_EXPORTER_OTLP_ENDPOINT is set, but OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`: no traces")
    (fault,) = loaded(GRPC, enabled=True).faults
    assert fault.path == "telemetry.enabled"
    assert loaded(GRPC, enabled=True, endpoint="http://c:4318").faults == []


def test_what_is_not_installed_is_a_warning_and_a_wish_for_it_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_MODULES", ("treadle_without.sdk",))
    found = loaded(ENDPOINT)
    assert not found.require().telemetry.enabled
    assert "pip install 'treadle[otel]'" in found.notes[0]
    (fault,) = loaded(enabled=True).faults
    assert str(fault) == "telemetry.enabled: needs what an extra installs: pip install 'treadle[otel]' (argument)"


@pytest.mark.parametrize("url", ["collector:4318", "http://", "http://me:s3cret@collector:4318"])
def test_an_endpoint_that_is_none_is_a_fault_that_shows_no_password(url: str) -> None:
    (fault,) = loaded(endpoint=url).faults
    assert fault.path == "telemetry.endpoint"
    assert "s3cret" not in str(fault)


def test_a_section_that_is_none_is_the_usual_fault(tmp_path: Path) -> None:
    file = tmp_path / "treadle.yaml"
    file.write_text("telemetry: on\n")
    (fault,) = load(file, environ=ENDPOINT).faults
    assert fault.path == "telemetry"
    file.write_text("telemetry:\n")
    assert load(file, environ=ENDPOINT).require().telemetry.enabled


def test_where_the_collector_is_according_to_the_variables_is_shown_and_used() -> None:
    found = loaded(ENDPOINT)
    assert found.require().telemetry.endpoint == "http://collector:4318"
    assert str(found.origins["telemetry.endpoint"]) == "environment OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    "environ",
    [
        ENDPOINT | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:s3cret@collector:4318"},
    ],
)
def test_what_the_exporter_has_to_find_by_itself_is_left_to_it(environ: dict[str, str]) -> None:
    found = loaded(environ).require().telemetry
    assert (found.enabled, found.endpoint) == (True, "")
