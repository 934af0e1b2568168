"""The instruments: tokens and durations, by model, tool and route."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
from opentelemetry.util.types import Attributes

from treadle import __version__
from treadle.ports import ModelUsage
from treadle.telemetry import names

_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_HTTP_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
_TOKENS = [4**power for power in range(14)]


class Instruments:
    """Histograms of a meter provider, with the bounds that the conventions ask for. Durations are in seconds."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("treadle", __version__)

        def seconds(name: str, what: str, bounds: list[float] = _SECONDS) -> Histogram:
            return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=bounds)

        self.request = seconds("http.server.request.duration", "Duration of HTTP requests.", _HTTP_SECONDS)
        self.model = seconds("gen_ai.client.operation.duration", "Duration of model calls.")
        self.first = seconds(
            "gen_ai.client.operation.time_to_first_chunk", "Time until a model's answer began to arrive."
        )
        self.tool = seconds("gen_ai.execute_tool.duration", "Duration of tool calls.")
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens of model calls.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )

        self._meter = meter
        self._parameters = meter.create_counter(
            "treadle.responses.parameters", "{request}", "Requests for responses, by the parameters that they give."
        )
        self._tools = meter.create_counter(
            "treadle.responses.tool_types", "{request}", "Requests for responses, by the types of tools that they give."
        )
        self._agentic = meter.create_counter(
            "treadle.responses.agentic", "{request}", "Requests for responses that give tools."
        )

    def asked(self, parameters: Iterable[str], tools: Collection[str]) -> None:
        for name in parameters:
            self._parameters.add(1, {names.OPERATION: "invoke_agent", names.PARAMETER: name})
        for kind in tools:
            self._tools.add(1, {names.DECLARED_TOOL: kind})
        if tools:
            self._agentic.add(1)

    def level(self, name: str, what: str, read: Callable[[], Mapping[str, int]]) -> None:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(height, {names.KIND: kind} if kind else None) for kind, height in read().items()]

        self._meter.create_observable_gauge(name, [observe], "{item}", what)

    def tokens(self, usage: ModelUsage, attributes: dict[str, str]) -> None:
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            told: Attributes = {**attributes, names.TOKEN_TYPE: kind}
            self._tokens.record(count, told)
