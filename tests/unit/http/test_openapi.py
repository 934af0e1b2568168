"""The OpenAPI document: complete, valid, and true to what the server says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from starlette.requests import Request

from treadle.app import create_app
from treadle.http.endpoints import Endpoint
from treadle.http.openapi import OpenApiRoutes
from treadle.http.schemas import Components
from treadle.http.server import Server
from treadle.testing.frames import parse_sse
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Call, Reply, ScriptedUpstream

httpx2 = pytest.importorskip("httpx2", reason="httpx2 comes with the openai client of the test extra")


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedUpstream]:
    tool = Reply("Looking.", reasoning="Hm.", calls=[Call("look", {"at": "it"})])
    with ScriptedUpstream(default=tool) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def http(model: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("openapi")
    with (
        RunningServer(settings_for(folder, model.url)) as server,
        httpx2.Client(base_url=server.root, timeout=20) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def document(http: Any) -> dict[str, Any]:
    answer = http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = answer.json()
    return found


def check(document: dict[str, Any], name: str, value: Any) -> None:
    """The value fits the component `name`."""
    root = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator(root).validate(value)


def paths(app: Any) -> set[str]:
    """The paths of all routes, whatever wraps the server."""
    while not isinstance(app, Server):
        app = getattr(app, "_app", None) or app.app
    return {re.sub(r":\w+}", "}", route.path) for route in app._router.routes}


def test_every_path_is_in_the_document_and_no_other(document: dict[str, Any], tmp_path: Path) -> None:
    assert set(document["paths"]) == paths(create_app(settings_for(tmp_path, "http://127.0.0.1:1/v1")))


def test_every_method_of_a_path_is_in_the_document_and_no_other(document: dict[str, Any], http: Any) -> None:
    for path, methods in document["paths"].items():
        refused = http.request("TRACE", re.sub(r"{\w+}", "x", path))
        assert refused.status_code == 405
        check(document, "ErrorEnvelope", refused.json())
        allowed = set(refused.headers["allow"].split(", ")) - {"HEAD"}
        assert allowed == {method.upper() for method in methods}, path


def test_operations_are_named_once(document: dict[str, Any]) -> None:
    names = [told["operationId"] for methods in document["paths"].values() for told in methods.values()]
    assert len(names) == len(set(names))


def test_every_path_parameter_is_described(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for told in methods.values():
            named = {one["name"] for one in told["parameters"] if one.get("in") == "path"}
            assert named == set(re.findall(r"{(\w+)}", path)), path


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="openapi-spec-validator is not installed")
    validator.validate(document)


def test_every_schema_is_valid_and_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema, f"{name} says nothing"
    references = set(re.findall(r'"#/components/(\w+)/([^"]+)"', json.dumps(document)))
    assert len(references) > 50
    missing = [f"{kind}/{name}" for kind, name in references if name not in document["components"][kind]]
    assert missing == []


def test_every_answer_names_its_request_and_every_error_is_the_envelope(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for told in methods.values():
            for status, given in told["responses"].items():
                answer = document["components"]["responses"][status] if "$ref" in given else given
                assert "x-request-id" in answer["headers"], path
                if status not in ("200", "204"):
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorEnvelope"}


def test_a_streamed_response_is_as_documented(document: dict[str, Any], http: Any) -> None:
    tools = [{"type": "function", "name": "look"}, {"type": "custom", "name": "write"}, {"type": "web_search"}]
    body = {"model": "scripted/scripted", "input": "Look.", "tools": tools, "stream": True}
    check(document, "CreateResponse", body)
    events = parse_sse(http.post("/v1/responses", json=body).content)
    assert len(events) > 10
    for event in events:
        check(document, "ResponseStreamEvent", event)
    response = events[-1]["response"]
    check(document, "Response", response)
    check(document, "ItemList", http.get(f"/v1/responses/{response['id']}/input_items").json())
    check(document, "ResponseList", http.get("/v1/responses").json())
    for name in response:
        with pytest.raises(jsonschema.ValidationError):  # every field of an answer is promised
            check(document, "Response", {key: value for key, value in response.items() if key != name})


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
    ],
)
def test_items_of_all_kinds_may_be_sent(document: dict[str, Any], item: dict[str, Any]) -> None:
    check(document, "InputItem", item)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("InputItem", {"type": "function_call", "name": "f", "arguments": "{}"}),
        ("InputItem", {"type": "message", "role": "robot", "content": "Hi"}),
        ("InputItem", {"content": "Hi"}),
        ("Item", {"type": "item_reference", "id": "msg_1"}),
        ("Item", {"type": "web_search_call"}),
        ("Tool", {"type": "function"}),
        ("Tool", {"name": "f"}),
        ("ToolChoice", "sometimes"),
        ("ToolChoice", {"type": "function"}),
        ("ToolChoice", {"type": "allowed_tools", "tools": []}),
        ("CreateResponse", {"temperature": 3}),
    ],
)
def test_what_the_server_refuses_does_not_fit(document: dict[str, Any], name: str, wrong: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(document, name, wrong)


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "f"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search"},
    ],
)
def test_tools_may_be_chosen_in_all_ways(document: dict[str, Any], choice: Any) -> None:
    check(document, "ToolChoice", choice)


async def nothing(request: Any) -> Any:
    raise AssertionError("never called")


async def test_the_document_is_made_when_it_is_asked_for_and_not_before() -> None:
    class Odd(msgspec.Struct):
        value: tuple[int, int]  # has no schema here

    odd = Endpoint(method="POST", path="/odd", name="odd", summary="Odd.", action=nothing, body=Odd)
    made = OpenApiRoutes([odd])
    with pytest.raises(TypeError, match="no schema"):
        await made.document(Request({"type": "http"}))


def test_starting_the_server_does_not_load_what_makes_the_document() -> None:
    code = "import sys, treadle.app; print('treadle.http.document' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_two_types_of_one_name_are_noticed() -> None:
    def twin() -> Any:
        class Twin(msgspec.Struct):
            value: int

        return Twin

    components = Components({}, [])
    components.schema(twin())
    with pytest.raises(ValueError, match="Two wire types are called Twin"):
        components.schema(twin())


def test_a_request_may_leave_out_what_an_answer_always_has() -> None:
    class Sent(msgspec.Struct):
        must: int
        may: int = 1

    class Shown(msgspec.Struct):
        always: int = 1
        sometimes: int | msgspec.UnsetType = msgspec.UNSET

    components = Components({}, [Sent])
    components.schema(Sent)
    components.schema(Shown)
    assert components.schemas["Sent"]["required"] == ["must"]
    assert components.schemas["Shown"]["required"] == ["always"]
