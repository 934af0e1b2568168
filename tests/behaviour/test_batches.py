"""Batches over HTTP: through the strict official client, with files, faults, cancelling and a server that dies."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.behaviour.conftest import MODEL, Driver
from tests.behaviour.kit import serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.test_crash import process
from treadle.app import create_app
from treadle.errors import InvalidRequest
from treadle.testing.gates import Gate
from treadle.testing.server import settings_for
from treadle.testing.turns import Refuse, Reply, Tokens
from treadle.testing.upstream import Received, ScriptedUpstream
from treadle.testing.web import FakeWeb

ENDED = ("completed", "failed", "expired", "cancelled")


def line(number: int, /, endpoint: str = "/v1/responses", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": endpoint,
        "body": {"model": MODEL, "input": f"Question {number}", **body},
    }


def upload(client: Any, lines: list[dict[str, Any]] | bytes) -> str:
    content = lines if isinstance(lines, bytes) else "\n".join(map(json.dumps, lines)).encode()
    return str(client.files.create(file=("input.jsonl", content), purpose="batch").id)


def begun(client: Any, lines: list[dict[str, Any]] | bytes, endpoint: str = "/v1/responses", **more: Any) -> Any:
    return client.batches.create(
        input_file_id=upload(client, lines), endpoint=endpoint, completion_window="24h", **more
    )


def until(client: Any, batch_id: str, wanted: Callable[[Any], bool]) -> Any:
    """Asks until it is so, for 20 seconds at most."""
    end = time.monotonic() + 20
    while True:
        batch = client.batches.retrieve(batch_id)
        if wanted(batch):
            return batch
        assert time.monotonic() < end, batch
        time.sleep(0.05)


def ended(client: Any, batch_id: str) -> Any:
    return until(client, batch_id, lambda batch: batch.status in ENDED)


def results(client: Any, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(one) for one in client.files.content(file_id).text.splitlines()]


@behaviour("batches-run")
def test_a_batch_of_responses_is_answered(client: Any, model: ScriptedUpstream) -> None:
    model.default = lambda request: Reply(f"To {request.body['messages'][-1]['content']}.", usage=Tokens(7, 3))
    batch = begun(client, [line(1), line(2), line(3)], metadata={"case": "first"})
    assert (batch.status, batch.metadata, batch.endpoint) == ("validating", {"case": "first"}, "/v1/responses")
    batch = ended(client, batch.id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 3, 0)
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (21, 9, 30)
    assert batch.model == MODEL
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.error_file_id is None
    found = results(client, batch.output_file_id)
    assert [one["custom_id"] for one in found] == ["line-1", "line-2", "line-3"]
    for number, one in enumerate(found, 1):
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        made = client.responses.retrieve(one["response"]["body"]["id"])
        assert made.output_text == f"To Question {number}."
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"


@behaviour("batches-run")
@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_a_batch_of_another_endpoint_is_answered(client: Any, model: ScriptedUpstream, endpoint: str) -> None:
    model.default = lambda _: Reply("Yes.")
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Is it?"}]}
    if endpoint != "/v1/chat/completions":
        body = {"prompt": "Is it?"} if endpoint == "/v1/completions" else {"input": "Is it?"}
    lines = [{**line(1, endpoint), "body": {"model": MODEL, **body}}]
    batch = ended(client, begun(client, lines, endpoint).id)
    assert batch.status == "completed", batch
    (found,) = results(client, batch.output_file_id)
    answer = found["response"]["body"]
    assert ("data" if endpoint == "/v1/embeddings" else "choices") in answer


@behaviour("batches-faults")
def test_refused_lines_are_in_the_error_file(client: Any, model: ScriptedUpstream) -> None:
    def answer(request: Any) -> Reply | Refuse:
        if "Question 2" in request.body["messages"][-1]["content"]:
            return Refuse(400, {"error": {"message": "No such question.", "code": "bad_question"}})
        return Reply("Yes.")

    model.default = answer
    batch = ended(client, begun(client, [line(1), line(2), line(3, temperature=5)]).id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 2)
    assert [one["custom_id"] for one in results(client, batch.output_file_id)] == ["line-1"]
    second, third = results(client, batch.error_file_id)
    assert (second["custom_id"], second["response"]["status_code"]) == ("line-2", 400)
    assert "No such question." in second["error"]["message"]
    assert third["response"]["body"]["error"]["param"] == "temperature"


@behaviour("batches-faults")
def test_every_faulty_line_of_an_input_file_is_named(client: Any) -> None:
    lines = [
        b"{broken",
        json.dumps(line(1)).encode(),
        json.dumps(line(1)).encode(),
        b"",
        json.dumps(line(2, stream=True)).encode(),
        json.dumps({**line(3), "url": "/v1/embeddings"}).encode(),
        json.dumps(line(4, model="local/none")).encode(),
        json.dumps(line(5, model=None)).encode(),
    ]
    batch = ended(client, begun(client, b"\n".join(lines)).id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert [(error.line, error.code, error.param) for error in batch.errors.data] == [
        (1, "invalid_json_line", None),
        (3, "duplicate_custom_id", "custom_id"),
        (5, "streaming_unsupported", "body.stream"),
        (6, "invalid_url", "url"),
        (7, "model_not_found", "body.model"),
        (8, "invalid_request", "body.model"),
    ]
    assert batch.output_file_id is None


@behaviour("batches-faults")
def test_an_input_file_that_is_empty_or_not_there_fails_the_batch(client: Any) -> None:
    batch = ended(client, begun(client, b"\n\n").id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "empty_file")
    made = client.batches.create(input_file_id="file-none", endpoint="/v1/responses", completion_window="24h")
    batch = ended(client, made.id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "invalid_request")
    assert "Cannot find file 'file-none'." in batch.errors.data[0].message


@behaviour("batches-faults")
@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"idempotency_key": ""}, "idempotency_key"),
    ],
)
def test_what_makes_no_batch_is_refused(api: Driver, changes: dict[str, Any], param: str) -> None:
    body = {"input_file_id": "file-none", "endpoint": "/v1/responses", "completion_window": "24h", **changes}
    found = api.http.post(f"{api.server.url}/batches", json=body)
    assert (found.status_code, found.json()["error"]["param"]) == (400, param), found.text


@behaviour("batches-cancel")
def test_a_cancelled_batch_stops_and_keeps_what_was_answered(client: Any, model: ScriptedUpstream) -> None:
    held = Gate()
    model.default = lambda request: (
        Reply("First.") if "Question 1" in str(request.body["messages"]) else Reply("Never.", before=held)
    )
    batch = begun(client, [line(1), line(2)])
    until(client, batch.id, lambda one: one.request_counts.completed == 1)
    cancelling = client.batches.cancel(batch.id)
    assert (cancelling.status, cancelling.cancelling_at is None) == ("cancelling", False)
    batch = ended(client, batch.id)
    held.set()
    assert (batch.status, batch.cancelled_at is None) == ("cancelled", False)
    assert [one["custom_id"] for one in results(client, batch.output_file_id)] == ["line-1"]
    assert client.batches.cancel(batch.id).status == "cancelled"


@behaviour("batches-cancel")
def test_a_batch_that_is_done_cannot_be_cancelled(client: Any, api: Driver, model: ScriptedUpstream) -> None:
    model.default = lambda _: Reply("Yes.")
    batch = ended(client, begun(client, [line(1)]).id)
    found = api.http.post(f"{api.server.url}/batches/{batch.id}/cancel")
    assert (found.status_code, found.json()["error"]["message"].startswith("Cannot cancel")) == (409, True)
    assert api.http.post(f"{api.server.url}/batches/batch_none/cancel").status_code == 404
    assert api.http.get(f"{api.server.url}/batches/batch_none").status_code == 404


@behaviour("batches-run")
def test_batches_are_listed_newest_first_in_pages(client: Any) -> None:
    made = [begun(client, b"\n").id for _ in range(3)]
    for one in made:
        ended(client, one)
    page = client.batches.list(limit=2)
    assert ([one.id for one in page.data], page.has_more) == (made[:0:-1], True)
    assert [one.id for one in client.batches.list(limit=2)] == made[::-1]


@behaviour("batches-run")
def test_the_same_key_is_the_same_batch(client: Any, api: Driver) -> None:
    wanted = {"input_file_id": "file-none", "endpoint": "/v1/responses", "completion_window": "24h"}
    first = client.batches.create(**wanted, metadata={"a": "1", "b": "2"}, extra_body={"idempotency_key": "k"})
    again = client.batches.create(**wanted, metadata={"b": "2", "a": "1"}, extra_body={"idempotency_key": "k"})
    assert first.id == again.id
    found = api.http.post(f"{api.server.url}/batches", json={**wanted, "idempotency_key": "k"})
    assert (found.status_code, found.json()["error"]["code"]) == (409, "idempotency_conflict")


@behaviour("batches-crash")
def test_a_batch_goes_on_after_kill_9(tmp_path: Path) -> None:
    """The server is killed when some lines are answered and one is running; no answered line is asked again."""
    asked: list[str] = []
    held = Gate()

    def answer(request: Received) -> Reply:
        question = request.body["messages"][-1]["content"]
        asked.append(question)
        return Reply(f"To {question}.", before=held if question == "Question 5" and len(asked) <= 5 else None)

    with ScriptedUpstream(default=answer) as model:
        settings = f"data_dir: data\nmodels: {{scripted: {{kind: openai_chat, url: '{model.url}'}}}}\n"
        (tmp_path / "treadle.yaml").write_text(f"{settings}batches: {{concurrency: 1}}\n", encoding="utf-8")
        with process(tmp_path) as (url, running):
            client = OpenAI(base_url=url, api_key="none", max_retries=0)
            batch_id = begun(client, [line(number) for number in range(1, 9)]).id
            until(client, batch_id, lambda batch: batch.request_counts.completed == 4)
            running.kill()
        held.set()
        with process(tmp_path) as (url, _):
            client = OpenAI(base_url=url, api_key="none", max_retries=0)
            batch = ended(client, batch_id)
            found = results(client, batch.output_file_id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 8)
    assert [one["custom_id"] for one in found] == [f"line-{number}" for number in range(1, 9)]
    assert Counter(asked) == {**{f"Question {number}": 1 for number in range(1, 9)}, "Question 5": 2}


@behaviour("webhooks")
def test_the_end_of_a_batch_is_told_until_it_is_heard(tmp_path: Path, model: ScriptedUpstream) -> None:
    secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
    with FakeWeb() as web:
        url = web.page("/hook", "not now", status=503)
        with serving(tmp_path, model, f"webhooks: {{url: '{url}', secret: '{secret}'}}") as api:
            client = OpenAI(base_url=api.server.url, api_key="none", max_retries=0, webhook_secret=secret)
            batch = ended(client, begun(client, b"\n").id)
            assert batch.status == "failed"
            wait_for(lambda: len(web.requests) == 1)
            web.page("/hook", "thanks")
            wait_for(lambda: len(web.requests) == 2)
        first, second = web.requests
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        event = client.webhooks.unwrap(second.body, second.headers)
        assert (event.type, event.data.id) == ("batch.failed", batch.id)
        assert json.loads(second.body).keys() == {"id", "object", "created_at", "type", "data"}


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


@behaviour("webhooks")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("{url: 'ftp://a.example/x', secret: s}", "webhooks.url"),
        ("{url: 'https://a.example/x'}", "webhooks.secret"),
        ("{url: 'https://a.example/x', secret: 'whsec_!'}", "webhooks.secret"),
    ],
)
def test_settings_that_cannot_be_followed_are_named(
    tmp_path: Path, model: ScriptedUpstream, given: str, named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        create_app(settings_for(tmp_path, model.url, f"webhooks: {given}"))
