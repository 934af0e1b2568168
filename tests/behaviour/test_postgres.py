"""Several servers on one Postgres: each finds at once what the others stored, and the end of one is noticed by all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, httpx2, sent, text_of
from tests.behaviour.kit import types
from tests.behaviour.manifest import behaviour
from tests.behaviour.test_crash import free_port
from tests.postgres_kit import Cluster
from treadle.store import postgres_link
from treadle.testing.gates import Gate
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import Reply, ScriptedUpstream

PATIENCE = 20
LEASE = "SELECT lease FROM treadle.responses"
SHORT_LEASE = """
import sys
from treadle.api import responses

responses.LEASE_SECONDS = 4
from treadle.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


def lines(url: str, visible_after: float) -> tuple[str, ...]:
    """What every process of one deployment says."""
    visible = f"responses: {{visible_after_seconds: {visible_after}}}"
    return f"store: {{url: '{url}'}}", "secret_key: the same for all", visible


@contextmanager
def driver(folder: Path, model: ScriptedUpstream, url: str) -> Iterator[Driver]:
    folder.mkdir()
    with (
        # Late, so that nothing but the end of a turn decides between servers.
        RunningServer(settings_for(folder, model.url, *lines(url, 60))) as running,
        httpx2.Client(timeout=PATIENCE) as http,
    ):
        yield Driver(running, http)


@pytest.fixture
def both(tmp_path: Path, model: ScriptedUpstream, postgres_url: str) -> Iterator[list[Driver]]:
    """Two servers that share the database and nothing else."""
    with ExitStack() as stack:
        yield [stack.enter_context(driver(tmp_path / name, model, postgres_url)) for name in "ab"]


@behaviour("bug-40")
def test_a_chain_goes_on_at_the_other_server(both: list[Driver], model: ScriptedUpstream) -> None:
    one, other = both
    model.script(*(Reply(text=f"answer {n}") for n in range(4)))
    previous: dict[str, Any] = {}
    for n in range(4):
        last = both[n % 2].create(input=f"question {n}", **previous)
        previous = {"previous_response_id": last["id"]}
        assert both[(n + 1) % 2].get(f"/responses/{last['id']}").json() == last
    said = [text for n in range(4) for text in (f"question {n}", f"answer {n}")][:-1]
    assert [message["content"] for message in sent(model, 4)] == said
    assert other.delete(f"/responses/{last['id']}").status_code == 200
    assert one.get(f"/responses/{last['id']}").status_code == 404
    refused = one.post(input="on", **previous)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")


@behaviour("bug-40")
def test_a_conversation_goes_on_at_the_other_server(both: list[Driver], model: ScriptedUpstream) -> None:
    one, other = both
    model.script(Reply(text="Hello."), Reply(text="Bye."))
    conversation = one.post("/conversations", metadata={"a": "b"}).json()
    assert other.get(f"/conversations/{conversation['id']}").json() == conversation
    other.create(input="Hi", conversation=conversation["id"])
    one.create(input="Leave", conversation=conversation["id"])
    assert [message["content"] for message in sent(model, 2)] == ["Hi", "Hello.", "Leave"]
    listed = [server.get(f"/conversations/{conversation['id']}/items?order=asc").json() for server in both]
    assert listed[0] == listed[1]
    assert [item["content"][0]["text"] for item in listed[0]["data"]] == ["Hi", "Hello.", "Leave", "Bye."]


@behaviour("bug-40")
def test_reasoning_sealed_by_one_server_is_opened_by_the_other(both: list[Driver], model: ScriptedUpstream) -> None:
    one, other = both
    model.script(Reply(text="42", reasoning="Hm."), Reply(text="Sure."))
    request: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
    first = one.create(input="6 x 7?", **request)
    given = [{"role": "user", "content": "6 x 7?"}, *first["output"], {"role": "user", "content": "Sure?"}]
    assert text_of(other.create(input=given, **request)) == "Sure."


@behaviour("bug-38")
def test_of_turns_at_once_in_one_conversation_on_two_servers_one_wins(
    both: list[Driver], model: ScriptedUpstream
) -> None:
    """Locks are in the processes; between them the store decides."""
    gate = Gate()
    model.script(*[Reply(text="Won.", before=gate)] * 2, Reply(text="Next."))
    conversation = both[0].post("/conversations").json()["id"]
    with ThreadPoolExecutor(2) as pool:
        turns = [pool.submit(server.post, input="Me!", conversation=conversation) for server in both]
        model.received_blocking(2)
        gate.set()
        replies = [turn.result(PATIENCE) for turn in turns]
    assert sorted(reply.status_code for reply in replies) == [200, 409]
    (refused,) = [reply for reply in replies if reply.status_code == 409]
    assert refused.json()["error"]["code"] == "conversation_locked"
    items = both[1].get(f"/conversations/{conversation}/items?order=asc").json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["Me!", "Won."]
    both[0].create(input="On", conversation=conversation)


def test_two_hundred_turns_at_once_are_all_stored(both: list[Driver], model: ScriptedUpstream) -> None:
    model.default = Reply(text="Stored.")

    async def ask(http: Any, number: int) -> str:
        url = both[number % 2].server.url
        reply = await http.post(f"{url}/responses", json={"model": MODEL, "input": f"{number}"})
        assert reply.status_code == 200, reply.text
        found: str = reply.json()["id"]
        return found

    async def ask_all() -> list[str]:
        limits = httpx2.Limits(max_connections=200)
        async with httpx2.AsyncClient(timeout=60, limits=limits) as http:
            return await asyncio.gather(*(ask(http, number) for number in range(200)))

    asked = asyncio.run(ask_all())
    found: list[str] = []
    while len(found) < 200:
        page = both[1].get(f"/responses?limit=100&order=asc&after={found[-1] if found else ''}").json()
        found += [response["id"] for response in page["data"]]
        assert page["data"], "some are missing"
    assert sorted(found) == sorted(asked)


@contextmanager
def process(folder: Path, model: ScriptedUpstream, url: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server in a process of its own, whose leases are short."""
    folder.mkdir()
    settings_for(folder, model.url, *lines(url, 0.05))
    port = free_port()
    command = [sys.executable, "-c", SHORT_LEASE, "serve", "--config", str(folder / "treadle.yaml")]
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, env=dict(os.environ))
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                assert httpx2.get(f"http://127.0.0.1:{port}/v1/health").status_code == 200
                break
            except httpx2.TransportError:
                assert running.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, "the server did not start"
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/v1", running
    finally:
        running.kill()
        running.wait(PATIENCE)


@behaviour("kill-other")
def test_what_a_killed_server_was_doing_reads_as_failed_on_the_other(
    tmp_path: Path, model: ScriptedUpstream, cluster: Cluster, postgres_url: str
) -> None:
    never = Gate()
    model.script(Reply(text="This never ends.", held={2: never}), Reply(text="Fine."))
    with driver(tmp_path / "other", model, postgres_url) as other:
        conversation = other.post("/conversations").json()["id"]
        with process(tmp_path / "one", model, postgres_url) as (url, running), ThreadPoolExecutor(1) as pool:
            body = {"model": MODEL, "input": "Hi", "conversation": conversation}
            asked = pool.submit(httpx2.post, f"{url}/responses", json=body, timeout=PATIENCE)
            model.received_blocking(1)
            seen = until(other, lambda listed: len(listed) == 1)
            assert seen[0]["status"] == "in_progress"
            lease = cluster.run(LEASE, cluster.shared)
            until(
                other, lambda _: cluster.run(LEASE, cluster.shared) != lease
            )  # it is renewed as long as the server lives
            running.send_signal(signal.SIGKILL)
            with pytest.raises(httpx2.TransportError):
                asked.result(PATIENCE)
        never.set()
        (lost,) = until(other, lambda listed: listed[0]["status"] == "failed")
        assert lost["error"]["code"] == "server_error"
        refused = other.post(input="on", previous_response_id=lost["id"])
        assert refused.status_code == 400
        assert text_of(other.create(input="On", conversation=conversation)) == "Fine.", "no lock outlives its server"


def until(server: Driver, condition: Any) -> list[dict[str, Any]]:
    """The listed responses, once `condition` holds for them."""
    end = time.monotonic() + PATIENCE
    while True:
        listed: list[dict[str, Any]] = server.get("/responses").json()["data"]
        if condition(listed):
            return listed
        assert time.monotonic() < end, listed
        time.sleep(0.05)


@behaviour("database-away")
def test_while_the_database_is_away_requests_fail_in_order_and_afterwards_all_goes_on(
    tmp_path: Path, model: ScriptedUpstream, cluster: Cluster, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "RECONNECT_SECONDS", 0.2)
    gate = Gate()
    model.script(Reply(text="Kept."), Reply(text="Lost, alas.", held={1: gate}), Reply(text="Still here."))
    with driver(tmp_path / "a", model, postgres_url) as api:
        kept = api.create(input="Hi")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(api.stream, input="Hi")
            model.received_blocking(2)
            cluster.stop()
            try:
                gate.set()
                events = running.result(PATIENCE)
                for reply in (
                    api.get(f"/responses/{kept['id']}"),
                    api.post(input="x", previous_response_id=kept["id"]),
                    api.post("/conversations"),
                    api.delete(f"/responses/{kept['id']}"),
                ):
                    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "storage_error")
                    assert "SELECT" not in reply.text
            finally:
                cluster.start()
        assert types(events)[-2:] == ["error", "failed"]
        assert events[-2]["code"] == "storage_error"
        assert text_of(api.create(input="And now?", previous_response_id=kept["id"])) == "Still here."
        assert api.get(f"/responses/{kept['id']}").json() == kept


@behaviour("bug-42")
def test_a_nul_character_in_a_name_harms_nothing(both: list[Driver], model: ScriptedUpstream) -> None:
    """Postgres takes none in what is not kept as bytes."""
    one, other = both
    model.script(Reply(text="a\0b"))
    first = one.create(input=[{"type": "message", "role": "user", "content": "x\0y", "id": "msg_1"}], user="u\0")
    assert other.get(f"/responses/{first['id']}").json() == first
    upload = {"file": ("na\0me.txt", b"text"), "purpose": (None, "user_data")}
    assert one.http.post(f"{one.server.url}/files", files=upload).status_code < 500
    odd = [{"type": "message", "role": "user", "content": "x", "id": "msg_\0"}]
    for path, body in (
        ("/responses", {"input": odd, "model": MODEL}),
        ("/responses", {"input": "x", "model": "\0"}),
        ("/responses", {"input": "x", "previous_response_id": "resp_\0"}),
        ("/conversations", {"items": odd}),
        ("/vector_stores", {"name": "na\0me", "description": "\0"}),
        ("/prompts", {"prompt": "\0"}),
    ):
        model.default = Reply(text="Fine.")
        assert one.post(path, **body).status_code < 500, path
    for path in ("/responses?model=%00", "/responses/%00", "/files?purpose=%00", "/files?after=%00"):
        assert one.get(path).status_code < 500, path
