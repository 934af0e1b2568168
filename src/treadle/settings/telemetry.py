"""The `telemetry` section, and what the standard `OTEL_…` variables say where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from treadle.settings.tree import Branch, Fault, Origin, Value, get, put

Doc = msgspec.Meta

EXTRA = "pip install 'treadle[otel]'"
_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", _ENDPOINT)
_APART = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
"""Whole addresses, one for each kind of data. The exporter finds them by itself."""
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Telemetry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Traces and metrics for an OpenTelemetry collector."""

    enabled: Annotated[
        bool,
        Doc(
            description="Send traces and metrics to a collector. Without a word here, OTEL_EXPORTER_OTLP_ENDPOINT in "
            "the environment switches it on."
        ),
    ] = False
    endpoint: Annotated[
        str,
        Doc(
            description="Base address of the collector, which speaks OTLP over HTTP. Empty: as the OTEL_ variables "
            "say, else http://localhost:4318."
        ),
    ] = ""
    headers: Annotated[
        dict[str, str], Doc(description="Headers to send to the collector, such as a key.", extra={"secret": True})
    ] = {}
    service_name: Annotated[
        str, Doc(description="Name of this server in traces. Empty: as OTEL_SERVICE_NAME says, else `treadle`.")
    ] = ""
    metrics: Annotated[bool, Doc(description="Send metrics too, not only traces.")] = True
    prometheus: Annotated[
        bool, Doc(description="Answer GET /metrics with metrics for Prometheus; needs no collector.")
    ] = False


def complete_telemetry(tree: Branch, environ: Mapping[str, str]) -> list[str]:
    """Switches telemetry on where the environment asks for it and the configuration says nothing. What keeps it off in
    spite of that is returned, in words: such variables are often set for all programs of a machine."""
    section = tree.get("telemetry")
    if isinstance(section, Value) and section.data is not None:
        return []  # the type check names the fault
    if environ.get("OTEL_METRICS_EXPORTER", "").strip().lower() == "none" and not _given(tree, "metrics"):
        _say(tree, "metrics", False, "OTEL_METRICS_EXPORTER")
    if not _given(tree, "endpoint") and _sound(environ.get(_ENDPOINT, "")) and not any(map(environ.get, _APART)):
        _say(tree, "endpoint", environ[_ENDPOINT], _ENDPOINT)
    asked = next((name for name in _ENDPOINTS if environ.get(name)), "")
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").lower()
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or (exporters and "otlp" not in exporters)
    if not asked or off or _given(tree, "enabled"):
        return []
    if protocol := _foreign_protocol(environ):
        return [f"{asked} is set, but {protocol}: no traces are sent. They need a collector's address for HTTP."]
    if not installed():
        return [f"{asked} is set, but what it needs is not installed: no traces are sent. {EXTRA}"]
    _say(tree, "enabled", True, asked)
    return []


def telemetry_faults(given: Telemetry, environ: Mapping[str, str], origins: Mapping[str, Origin]) -> list[Fault]:
    """Why telemetry cannot work although it is wanted."""
    origin = origins.get("telemetry.endpoint", Origin("default"))
    if given.endpoint and not _sound(given.endpoint):
        if "@" in given.endpoint:
            return [Fault("telemetry.endpoint", "must not contain a user or password; use `telemetry.headers`", origin)]
        return [Fault("telemetry.endpoint", "must be an address starting with http:// or https://", origin)]
    if not given.enabled:
        return []
    enabled = origins.get("telemetry.enabled", Origin("default"))
    if not installed():
        return [Fault("telemetry.enabled", f"needs what an extra installs: {EXTRA}", enabled)]
    if not given.endpoint and (protocol := _foreign_protocol(environ)):
        message = f"{protocol}; give the collector's address for OTLP over HTTP as `telemetry.endpoint`"
        return [Fault("telemetry.enabled", message, enabled)]
    return []


def installed() -> bool:
    """The SDK and the exporter are there. They are not imported for that."""
    try:
        return all(find_spec(module) is not None for module in _MODULES)
    except ModuleNotFoundError:
        return False


def _foreign_protocol(environ: Mapping[str, str]) -> str:
    """The variable that demands another protocol than ours, with its value."""
    name = next((name for name in _PROTOCOLS if environ.get(name)), "")
    return f"{name} is `{environ[name]}`" if name and not environ[name].startswith("http/") else ""


def _sound(url: str) -> bool:
    """An address of ours to use: over HTTP, and without a password that would be shown."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def _given(tree: Branch, key: str) -> bool:
    node = get(tree, "telemetry", key)
    return node is not None and not (isinstance(node, Value) and node.data in (None, ""))


def _say(tree: Branch, key: str, value: bool | str, variable: str) -> None:
    put(tree, ["telemetry", key], Value(value, Origin("environment", variable)))
