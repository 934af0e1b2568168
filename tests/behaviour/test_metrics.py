"""`/metrics`: what Prometheus reads, and what it must not find there."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.behaviour.background_kit import begin
from tests.behaviour.conftest import Driver
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, serving
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.upstream import Call, Reply, ScriptedUpstream, Tokens

ON = "telemetry: {prometheus: true}"
Samples = dict[str, dict[frozenset[tuple[str, str]], float]]
SDK = ("otel_scope_name", "otel_scope_version", "otel_scope_schema_url")


def samples(api: Driver) -> Samples:
    reply = api.http.get(f"{api.server.root}/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    found: Samples = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if name not in SDK)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@behaviour("metrics")
def test_what_is_used_is_counted(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look", {})], usage=Tokens(20, 7)), Reply(text="Done.", usage=Tokens(30, 3)))
    model.default = Reply(text="Hi.")
    with serving(tmp_path, model, ON, tool=Lookup("secret words")) as api:
        api.create(input="A private question", tools=[LOOKUP, FUNCTION, FUNCTION | {"name": "b"}], temperature=0.5)
        api.create(input="Plain")
        assert api.post(input="Bad", temperature=9).status_code == 400
        found = samples(api)
        text = api.http.get(f"{api.server.root}/metrics").text
    used = {dict(labels)["treadle_parameter"]: n for labels, n in found["treadle_responses_parameters_total"].items()}
    assert used == {"tools": 1, "temperature": 1}
    types = {dict(labels)["treadle_tool_type"]: n for labels, n in found["treadle_responses_tool_types_total"].items()}
    assert types == {"lookup": 1, "function": 1}
    assert found["treadle_responses_agentic_total"] == {frozenset(): 1}
    tokens = {dict(labels)["gen_ai_token_type"]: n for labels, n in found["gen_ai_client_token_usage_sum"].items()}
    assert (tokens["input"] >= 50, tokens["output"] >= 10) == (True, True)
    routes = {
        (dict(labels)["http_route"], dict(labels)["http_response_status_code"]): n
        for labels, n in found["http_server_request_duration_seconds_count"].items()
    }
    assert routes == {("/v1/responses", "200"): 2, ("/v1/responses", "400"): 1}
    assert sum(found["gen_ai_execute_tool_duration_seconds_count"].values()) == 1
    for word in ("private", "secret words", "Plain"):
        assert word not in text


@behaviour("metrics")
def test_what_stands_how_high_is_told(tmp_path: Path, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.default = Reply(text="Hi there.", held={1: gate})
    with serving(tmp_path, model, ON, "background: {workers: 1}") as api:
        assert samples(api)["treadle_responses_running"] == {frozenset(): 0}
        for _ in range(2):
            begin(api, input="Hi")
        model.received_blocking(1)
        found = samples(api)
        gate.set()
        assert found["treadle_responses_running"] == {frozenset(): 1}
        assert found["treadle_mcp_sessions"] == {frozenset(): 0}


@behaviour("metrics")
def test_without_the_setting_there_is_no_such_page(api: Driver) -> None:
    assert api.http.get(f"{api.server.root}/metrics").status_code == 404


@behaviour("metrics")
def test_pages_of_others_cannot_read_it(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model, ON) as api:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            assert api.http.get(f"{api.server.root}/metrics", headers=headers).status_code == 403
