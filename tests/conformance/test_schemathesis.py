"""Schemathesis makes requests from our own document and holds every answer against it.

Requests are steered past what a schema cannot say: that a model exists, that ids are known, that some fields exclude
each other. So most valid ones reach the model and come back with 200, and the answers are checked in depth.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle.testing.server import PROVIDER, RunningServer, settings_for
from treadle.testing.upstream import Call, Received, Reply, ScriptedUpstream

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis comes with the test extra")

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402 - only once schemathesis is there
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.core.failures import FailureGroup  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

MODEL = f"{PROVIDER}/scripted"
EXAMPLES = 8
KNOWLEDGE = ("embeddings: {default: scripted/words}", "knowledge: {wait_seconds: 20}")
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance, content_type_conformance]
TAKE_A_MODEL = ("/v1/responses", "/v1/chat", "/v1/completions", "/v1/embeddings")
# Valid by the schema, and refused all the same.
IMPOSSIBLE = ("background", "previous_response_id", "conversation", "tool_choice", "guardrails", "moderation")


@dataclass
class World:
    """A server with something in it, and the document it serves."""

    document: Any
    ids: dict[str, str]


def answer(request: Received) -> Reply:
    """Reasons, speaks, and calls the first function if there is one; chat completions pass odd tools on."""
    functions = [tool.get("function") for tool in request.body.get("tools") or [] if isinstance(tool, dict)]
    names = [f["name"] for f in functions if isinstance(f, dict) and isinstance(f.get("name"), str)]
    calls = [Call(names[0], {"x": 1})] if names else []
    return Reply("Some words.", reasoning="Let me see.", calls=calls)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    import httpx2

    folder: Path = tmp_path_factory.mktemp("schemathesis")
    with (
        ScriptedUpstream(default=answer) as upstream,
        RunningServer(settings_for(folder, upstream.url, *KNOWLEDGE)) as server,
        httpx2.Client(base_url=server.url, timeout=20) as http,
    ):
        response = http.post("/responses", json={"model": MODEL, "input": "Hello"}).json()
        items = [{"role": "user", "content": "Hello"}]
        conversation = http.post("/conversations", json={"items": items}).json()
        item = http.get(f"/conversations/{conversation['id']}/items").json()["data"][0]
        ids = {
            "response_id": response["id"],
            "conversation_id": conversation["id"],
            "item_id": item["id"],
            "model_id": MODEL,
            "provider_id": PROVIDER,
            "prompt_id": http.post("/prompts", json={"prompt": "Be kind."}).json()["id"],
            **library(http),
        }
        yield World(schemathesis.openapi.from_url(f"{server.root}/openapi.json"), ids)
        assert upstream.faults == []


def library(http: Any) -> dict[str, str]:
    """A vector store with a file in it that came in a batch."""
    form = {"purpose": "assistants"}
    file = http.post("/files", files={"file": ("a.txt", b"An apple pie.")}, data=form).json()["id"]
    store = http.post("/vector_stores", json={"file_ids": [file]}).json()
    assert store["file_counts"]["completed"] == 1
    batch = http.post(f"/vector_stores/{store['id']}/file_batches", json={"file_ids": [file]}).json()["id"]
    return {"file_id": file, "vector_store_id": store["id"], "batch_id": batch}


def steer(case: Any, ids: dict[str, str]) -> None:
    """Fills in what no schema knows."""
    if case.operation.method.upper() != "DELETE":  # deletes keep their made-up ids, so that the known ones live
        for name in set(case.path_parameters or ()) & set(ids):
            case.path_parameters[name] = ids[name]
    body = case.body
    if not isinstance(body, dict):
        return
    if case.operation.path.startswith(TAKE_A_MODEL):
        body["model"] = MODEL
    if case.operation.path.startswith(("/v1/vector_stores", "/v1/vector-io")):
        steer_search(body, ids)
    if not case.operation.path.startswith("/v1/responses"):
        return
    for name in IMPOSSIBLE:
        body.pop(name, None)
    body["input"] = body.get("input") or "Hello"
    if body.get("prompt"):
        body["prompt"] = {"id": ids["prompt_id"]}
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("type") not in ("function", "custom", "namespace"):
            tool["type"] = "web_search"


def steer_search(body: dict[str, Any], ids: dict[str, str]) -> None:
    """What exists is named, and what only some models can do is left out."""
    for name in ("embedding_model", "embedding_dimension", "rewrite_query", "ranking_options", "chunking_strategy"):
        body.pop(name, None)
    for name in set(body) & {"file_id", "vector_store_id"}:
        body[name] = ids[name]


def exercise(operation: Any, mode: GenerationMode, ids: dict[str, str]) -> Counter[int]:
    """The statuses of some requests to an operation. Raises when an answer is not as documented."""
    statuses: Counter[int] = Counter()

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        steer(case, ids)
        response = case.call(timeout=20)
        statuses[response.status_code] += 1
        # The document allows any 4xx where a model server's refusal may come back; this one never refuses.
        assert str(response.status_code) in operation.definition.raw["responses"], response.text
        case.validate_response(response, checks=CHECKS)

    ask()
    return statuses


def run(world: World, mode: GenerationMode) -> dict[str, Counter[int]]:
    """The statuses of each operation; fails with all that is wrong, not with the first."""
    found: dict[str, Counter[int]] = {}
    faults = []
    for result in world.document.get_all_operations():
        operation = result.ok()
        try:
            found[operation.label] = exercise(operation, mode, world.ids)
        except (Exception, FailureGroup) as fault:
            told = fault.exceptions if isinstance(fault, FailureGroup) else [fault]
            faults += [f"{operation.label}: {one}" for one in told]
    assert not faults, "\n\n".join(faults)
    return found


def test_valid_requests_get_what_the_document_says(world: World) -> None:
    found = run(world, GenerationMode.POSITIVE)
    assert len(found) >= 20
    search = "POST /v1/vector_stores/{vector_store_id}/search"
    for label in (
        "POST /v1/responses",
        "POST /v1/chat/completions",
        "POST /v1/conversations",
        "GET /v1/models",
        search,
    ):
        assert found[label][200] >= EXAMPLES // 2, f"{label} is hardly ever reached: {found[label]}"


def test_invalid_requests_are_refused_as_the_document_says(world: World) -> None:
    found = run(world, GenerationMode.NEGATIVE)
    for label in ("POST /v1/responses", "POST /v1/conversations/{conversation_id}/items"):
        assert found[label][400] >= 1, f"{label} took everything: {found[label]}"


def test_a_stream_that_is_not_as_documented_is_noticed(world: World) -> None:
    """The judge can say no: with one event taken out of the document, a stream does not fit it any more."""
    document = json.loads(json.dumps(world.document.raw_schema))
    del document["components"]["schemas"]["ResponseStreamEvent"]["discriminator"]
    events = document["components"]["schemas"]["ResponseStreamEvent"]["anyOf"]
    events[:] = [event for event in events if not event["$ref"].endswith("/OutputTextDelta")]
    changed = schemathesis.openapi.from_dict(document)
    operation = changed["/v1/responses"]["POST"]
    base_url = world.document.get_base_url()
    case = operation.Case(body={"model": MODEL, "input": "Hello", "stream": True}, media_type="application/json")
    response = case.call(base_url=base_url, timeout=20)
    assert response.status_code == 200
    with pytest.raises(FailureGroup) as noticed:
        case.validate_response(response, checks=CHECKS)
    assert "SSE event violates schema" in noticed.value.exceptions[0].title
