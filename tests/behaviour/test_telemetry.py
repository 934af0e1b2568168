"""Spans: which there are, how they nest, what they say, and that they say nothing of what was said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.behaviour.conftest import LOOPBACK, MODEL
from tests.behaviour.kit import LOOKUP, Lookup, final, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import declared
from tests.behaviour.telemetry_kit import collecting, failed, is_child, told, watched
from treadle.errors import ToolFault
from treadle.testing.gates import Gate
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.mcp_tools import always, text
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream, Tokens
from treadle.testing.web import FakeWeb

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
POST = "POST /v1/responses"
CHAT = "chat scripted"


@behaviour("spans")
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_with_a_tool_call_is_one_tree_below_its_callers_span(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer, stream: bool
) -> None:
    model.script(
        Reply(calls=[Call("echo", {"text": "hi"}, id="call_1")], usage=Tokens(20, 7, cached=4)),
        Reply(text="Done.", usage=Tokens(30, 3, reasoning=1)),
    )
    with watched(tmp_path, model) as (api, spans):
        body = {"model": MODEL, "input": "Say hi.", "tools": [declared(mcp, "loud")], "temperature": 0.5}
        reply = api.http.post(f"{api.server.url}/responses", json={**body, "stream": stream}, headers=TRACEPARENT)
        assert reply.status_code == 200
        request = spans.one(POST)
        assert request.parent is not None
        assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, CALLER)
        assert spans.below(request) == ["invoke_agent"]
        response = spans.one("invoke_agent")
        assert spans.below(response) == ["tools/list", CHAT, "execute_tool echo", CHAT, "store response"]
        assert {span.context.trace_id for span in spans.get_finished_spans()} == {request.context.trace_id}
        assert [failed(span) for span in spans.get_finished_spans()] == [None] * 7
        assert "CANCELLED" not in str(spans.get_finished_spans()).upper()

        assert request.kind.name == "SERVER"
        assert told(request) == {
            "http.request.method": "POST",
            "http.route": "/v1/responses",
            "http.response.status_code": 200,
        }
        stored = api.get("/responses").json()["data"][0]
        assert told(response) == {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "scripted",
            "gen_ai.request.model": MODEL,
            "gen_ai.response.id": stored["id"],
            "gen_ai.usage.input_tokens": 50,
            "gen_ai.usage.output_tokens": 10,
            "gen_ai.usage.cache_read.input_tokens": 4,
            "gen_ai.usage.reasoning.output_tokens": 1,
            "treadle.response.status": "completed",
        }
        first, second = spans.named(CHAT)
        assert first.kind.name == "CLIENT"
        assert told(first).pop("gen_ai.response.time_to_first_chunk") > 0
        assert {name: value for name, value in told(first).items() if "time" not in name} == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "scripted",
            "gen_ai.request.model": "scripted",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.response.finish_reasons": ("tool_calls",),
            "gen_ai.usage.input_tokens": 20,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.usage.cache_read.input_tokens": 4,
        }
        assert told(second)["gen_ai.response.finish_reasons"] == ("stop",)
        assert told(spans.one("execute_tool echo")) == {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "echo",
            "gen_ai.tool.type": "extension",
            "gen_ai.tool.call.id": "call_1",
            "mcp.method.name": "tools/call",
            "treadle.mcp.server_label": "loud",
        }
        assert told(spans.one("tools/list")) == {
            "mcp.method.name": "tools/list",
            "treadle.mcp.server_label": "loud",
        }


@behaviour("spans")
def test_a_server_of_tools_is_told_which_call_it_serves_on_a_shared_session_too(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    with watched(tmp_path, model) as (api, spans):
        for _ in range(2):
            model.script(Reply(calls=[Call("echo", {"text": "hi"})]), Reply(text="Done."))
            api.create(input="Say hi.", tools=[declared(mcp)])
        calls = [
            request.body["params"]["_meta"]["traceparent"].split("-")
            for request in mcp.requests
            if request.rpc == "tools/call"
        ]
        expected = [
            [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]
            for span in spans.named("execute_tool echo", 2)
        ]
        assert [call[1:3] for call in calls] == expected
        assert expected[0][0] != expected[1][0]


@behaviour("spans")
def test_calls_of_one_round_are_siblings_that_overlap(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look"), Call("look")]), Reply(text="Done."))
    gate = Gate()
    tool = Lookup(gate=gate)
    with watched(tmp_path, model, tools={"lookup": tool}) as (api, spans):

        def opened(*_: object) -> None:
            if len(tool.arguments) == 2:
                gate.set()

        tool.arguments = _Told(opened)
        api.create(input="Look.", tools=[LOOKUP])
        first, second = spans.named("execute_tool look", 2)
        response = spans.one("invoke_agent")
        assert is_child(first, response)
        assert is_child(second, response)
        assert (second.start_time or 0) < (first.end_time or 0)
        assert told(first)["gen_ai.tool.type"] == "function"


class _Told(list[str]):
    """A list that says when it grows."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self._told = told

    def append(self, item: str) -> None:
        super().append(item)
        self._told()


@behaviour("spans")
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_whose_client_left_ends_as_cancelled_and_not_as_a_fault(
    tmp_path: Path, model: ScriptedUpstream, stream: bool
) -> None:
    never = Gate()
    model.script(Reply(calls=[Call("look")]), Reply(text="One two three.", held={3: never}))
    with watched(tmp_path, model, tools={"lookup": Lookup()}) as (api, spans):
        body = {"model": MODEL, "input": "Count.", "tools": [LOOKUP], "stream": stream}
        if stream:
            with httpx2.stream("POST", f"{api.server.url}/responses", json=body) as reply:
                for line in reply.iter_lines():
                    if "output_text.delta" in line:
                        break
        else:
            with pytest.raises(httpx2.ReadTimeout), httpx2.Client(timeout=1) as http:
                http.post(f"{api.server.url}/responses", json=body)
        request, response, (first, second) = spans.one(POST), spans.one("invoke_agent"), spans.named(CHAT, 2)
        assert told(response)["treadle.response.status"] == "cancelled"
        assert [told(span).get("treadle.cancelled") for span in (request, response, first, second)] == [
            True,
            True,
            None,
            True,
        ]
        assert told(request).get("http.response.status_code") == (200 if stream else None)
        assert [failed(span) for span in (request, response, first, second)] == [None] * 4
        assert told(response)["gen_ai.usage.input_tokens"] == 10
        never.set()


@behaviour("spans")
def test_a_call_whose_client_left_is_cancelled(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(Reply(calls=[Call("slow")]))
    with watched(tmp_path, model) as (api, spans):
        body = {"model": MODEL, "input": "Wait.", "tools": [declared(mcp)], "stream": True}
        with httpx2.stream("POST", f"{api.server.url}/responses", json=body) as reply:
            for line in reply.iter_lines():
                if "mcp_call_arguments.done" in line:
                    mcp.received_blocking("tools/call")
                    break
        tool = spans.one("execute_tool slow")
        assert told(tool)["treadle.cancelled"] is True
        assert failed(tool) is None
        assert is_child(tool, spans.one("invoke_agent"))


@behaviour("spans")
def test_faults_are_told_by_their_kind_alone(tmp_path: Path, model: ScriptedUpstream) -> None:
    tool = Lookup(ToolFault("CANARY one"), RuntimeError("CANARY two"))
    model.script(
        Reply(calls=[Call("look"), Call("look")]),
        Refuse(400, {"error": {"message": "CANARY three", "code": "CANARY_four", "type": "CANARY"}}),
        Drop(2, Reply(text="CANARY five six seven")),
    )
    with watched(tmp_path, model, tools={"lookup": tool}) as (api, spans):
        assert api.post(input="Look.", tools=[LOOKUP], parallel_tool_calls=False).status_code == 400
        api.post(input="Again.", stream=True)
        assert [failed(span) for span in spans.named("execute_tool look", 2)] == ["tool_error", "RuntimeError"]
        assert [failed(span) for span in spans.named(CHAT, 3)] == [None, "upstream_refused", "upstream_bad_stream"]
        assert [failed(span) for span in spans.named("invoke_agent", 2)] == ["upstream_refused", "upstream_bad_stream"]
        assert [told(span)["treadle.response.status"] for span in spans.named("invoke_agent")] == ["failed"] * 2
        # That a client's request is refused is no fault of this server, nor that a stream told of one.
        assert [failed(span) for span in spans.named(POST, 2)] == [None, None]
        assert "CANARY" not in "".join(span.to_json() for span in spans.get_finished_spans())


@behaviour("spans")
def test_a_tool_that_takes_too_long_or_fails_is_told_apart(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("slow"), Call("fail"), Call("crash")]), Reply(text="Done."))
    with watched(tmp_path, model, "responses: {tool_timeout_seconds: 0.5}") as (api, spans):
        api.create(input="Wait.", tools=[declared(mcp)])
        assert failed(spans.one("execute_tool slow")) in ("timeout", "tool_error")  # whose limit is first is a race
        assert [failed(spans.one(f"execute_tool {name}")) for name in ("fail", "crash")] == ["tool_error"] * 2
    never, model.default = Gate(), None
    model.script(Reply(calls=[Call("look")]), Reply(text="Done."))
    tools = {"lookup": Lookup(gate=never)}
    with watched(tmp_path, model, "responses: {tool_timeout_seconds: 0.2}", tools=tools) as (api, spans):
        api.create(input="Look.", tools=[LOOKUP])
        assert failed(spans.one("execute_tool look")) == "timeout"


@behaviour("spans")
def test_a_conversation_is_named_and_refusals_and_other_routes_are_requests(
    tmp_path: Path, model: ScriptedUpstream
) -> None:
    model.script(Reply(text="Hi."))
    with watched(tmp_path, model) as (api, spans):
        conversation = api.http.post(f"{api.server.url}/conversations", json={}).json()["id"]
        api.create(input="Hi.", conversation=conversation)
        assert told(spans.one("invoke_agent"))["gen_ai.conversation.id"] == conversation
        assert told(spans.one("POST /v1/conversations"))["http.response.status_code"] == 200
        api.post(input=7)
        assert told(spans.named(POST, 2)[1])["http.response.status_code"] == 400
        api.get("/responses/resp_x")
        assert told(spans.one("GET /v1/responses/{response_id}"))["http.response.status_code"] == 404
        api.get("/CANARY/http://u:p@host")
        api.http.request("PROPFIND", f"{api.server.url}/models")
        assert [told(span) for span in spans.named("GET")] == [
            {"http.request.method": "GET", "http.response.status_code": 404}
        ]
        assert told(spans.one("HTTP /v1/models"))["http.request.method"] == "_OTHER"
        api.get("/health")
        api.get("/version")
        spans.one("GET /v1/version")
        names = {span.name for span in spans.get_finished_spans()}
        assert not any("health" in name or "CANARY" in name for name in names)


@behaviour("spans")
@pytest.mark.parametrize("header", ["", "00-0-0-01", "garbage", f"00-{'0' * 32}-{CALLER}-01"])
def test_a_traceparent_that_is_none_begins_a_trace(tmp_path: Path, model: ScriptedUpstream, header: str) -> None:
    with watched(tmp_path, model) as (api, spans):
        api.http.get(
            f"{api.server.url}/version", headers={"traceparent": header, "tracestate": "=,=,", "baggage": "x=1"}
        )
        assert spans.one("GET /v1/version").parent is None


@behaviour("spans")
def test_a_caller_that_does_not_record_is_followed_in_that(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hi."))
    with watched(tmp_path, model) as (api, spans):
        header = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
        api.http.post(f"{api.server.url}/responses", json={"model": MODEL, "input": "Hi."}, headers=header)
        api.get("/version")
        spans.one("GET /v1/version")
        assert [span.name for span in spans.get_finished_spans()] == ["GET /v1/version"]


@behaviour("spans")
def test_tokens_and_durations_are_measured(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look")], usage=Tokens(20, 7)), Reply(text="Done.", usage=Tokens(30, 3)))
    with watched(tmp_path, model, tools={"lookup": Lookup()}) as (api, spans):
        api.create(input="Look.", tools=[LOOKUP])
        spans.one(POST)
        chat = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "scripted",
            "gen_ai.request.model": "scripted",
        }
        tokens = spans.points("gen_ai.client.token.usage")
        sums = {dict(key)["gen_ai.token.type"]: (point.count, point.sum) for key, point in tokens.items()}
        assert sums == {"input": (2, 50), "output": (2, 10)}
        assert [dict(key) for key in spans.points("gen_ai.client.operation.duration")] == [chat]
        assert [point.count for point in spans.points("gen_ai.client.operation.duration").values()] == [2]
        assert [point.count for point in spans.points("gen_ai.client.operation.time_to_first_chunk").values()] == [2]
        assert [dict(key) for key in spans.points("gen_ai.execute_tool.duration")] == [{"gen_ai.tool.name": "look"}]
        assert [dict(key) for key in spans.points("http.server.request.duration")] == [
            {"http.request.method": "POST", "http.route": "/v1/responses", "http.response.status_code": 200}
        ]


@behaviour("spans-silent")
def test_nothing_of_what_was_said_reaches_a_collector(tmp_path: Path, model: ScriptedUpstream) -> None:
    canary = "CANARY"
    said = always("say", text(f"{canary} result"))
    broken = always("burst", text(f"{canary} failed", failed=True))
    model.script(
        Reply(
            text=f"{canary} text",
            reasoning=f"{canary} thought",
            calls=[Call(name, {"x": f"{canary} argument"}) for name in ("say", "burst", "crash", "look", "ask_me")],
        ),
        Refuse(400, {"error": {"message": f"{canary} refusal"}}),
    )
    with collecting() as collector, FakeMcpServer(tools=[said, broken]) as mcp, FakeWeb() as web:
        picture = web.page(f"/{canary}", b"\x89PNG\r\n\x1a\n", "image/png") + f"?key={canary}"
        settings = [
            LOOPBACK,
            f"telemetry: {{enabled: true, endpoint: '{collector.url}', service_name: me, headers: {{x-collector: k}}}}",
        ]
        with serving(tmp_path, model, *settings, tool=Lookup(RuntimeError(f"{canary} trace"))) as api:
            host = mcp.url.removeprefix("http://")
            mcp_tool = declared(
                f"http://{host}?key={canary}-query",
                "label",
                authorization=f"{canary}-token",
                headers={"x-key": f"{canary}-header"},
                server_description=f"{canary} description",
            )
            api.http.post(
                f"{api.server.url}/responses?{canary}=1",
                json={
                    "model": MODEL,
                    "instructions": f"{canary} instructions",
                    "input": [
                        {"role": "user", "content": f"{canary} input"},
                        {
                            "type": "message",
                            "role": "user",
                            "content": [{"type": "input_image", "image_url": picture}],
                        },
                    ],
                    "tools": [mcp_tool, LOOKUP],
                    "metadata": {"a": canary},
                    "user": canary,
                    "safety_identifier": canary,
                    "prompt_cache_key": canary,
                    "max_infer_iters": 3,
                },
                headers={
                    **TRACEPARENT,
                    "authorization": f"Bearer {canary}",
                    "cookie": canary,
                    "baggage": f"a={canary}",
                },
            )
            api.get(f"/{canary}/x")
        assert any(canary in json.dumps(call[1]) for call in mcp.calls)
        # The server has stopped, so all has been sent.
        raw = b"".join(body for bodies in collector.bodies.values() for body in bodies)
        assert set(collector.bodies) == {"/v1/traces", "/v1/metrics"}
        assert canary.encode() not in raw
        for body in collector.bodies["/v1/traces"]:
            sent = ExportTraceServiceRequest.FromString(body)
            names = [span.name for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans]
            assert {"execute_tool say", "execute_tool burst", "execute_tool crash", "execute_tool look"} <= set(names)
            assert "execute_tool ask_me" not in names  # a name the model made up is never run
            assert any(
                (entry.key, entry.value.string_value) == ("service.name", "me")
                for one in sent.resource_spans
                for entry in one.resource.attributes
            )
        measured = ExportMetricsServiceRequest.FromString(collector.bodies["/v1/metrics"][-1])
        assert len(measured.resource_metrics[0].scope_metrics[0].metrics) == 10
        assert all(headers["x-collector"] == "k" for headers in collector.headers)


def test_a_server_that_is_not_watched_never_imports_what_watching_needs(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from treadle.app import create_app\n"
        "from treadle.settings import load\n"
        f"create_app(load(environ={{}}, overrides={{'data_dir': {str(tmp_path)!r}}}).require())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_final_response_has_no_trace_in_it(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hi."))
    with watched(tmp_path, model) as (api, _):
        assert TRACE not in json.dumps(final(api.stream(input="Hi.")))
