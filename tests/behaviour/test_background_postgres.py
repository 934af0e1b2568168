"""Background responses on one Postgres: asked of one process, made by another, followed and cancelled from any."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.behaviour.background_kit import begin, cancel, checked, frames, outcome, resumed
from tests.behaviour.conftest import MODEL, Driver, text_of
from tests.behaviour.kit import error
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.turns import Reply
from treadle.testing.upstream import ScriptedUpstream

PATIENCE = 30
QUICK = """
import sys
from treadle.jobs import pgqueuer, workers

workers.LEASE_SECONDS = 3
pgqueuer.PgQueue.__init__.__defaults__ = (workers.Pace(poll=0.5, watch=0.5),)
from treadle.cli.main import main

sys.exit(main(sys.argv[1:]))
"""
"""A worker whose claims end soon after it."""


def lines(url: str, workers: int) -> tuple[str, ...]:
    return f"store: {{url: '{url}'}}", "secret_key: the same for all", f"background: {{workers: {workers}}}"


@contextmanager
def server(folder: Path, model: ScriptedUpstream, url: str, workers: int) -> Iterator[Driver]:
    folder.mkdir()
    with (
        RunningServer(settings_for(folder, model.url, *lines(url, workers))) as running,
        httpx2.Client(timeout=PATIENCE) as http,
    ):
        yield Driver(running, http)


@pytest.fixture
def both(tmp_path: Path, model: ScriptedUpstream, postgres_url: str) -> Iterator[list[Driver]]:
    """Two servers that share a database: the first takes requests, the second makes responses too."""
    with ExitStack() as stack:
        yield [stack.enter_context(server(tmp_path / f"{n}", model, postgres_url, n)) for n in (0, 3)]


Worker = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def worker(tmp_path: Path, model: ScriptedUpstream, postgres_url: str) -> Iterator[Worker]:
    """Starts `treadle worker` processes."""
    settings_for(tmp_path, model.url, *lines(postgres_url, 2))
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", QUICK, "worker", "--config", str(tmp_path / "treadle.yaml")]
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=tmp_path, env=dict(os.environ))
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), (tmp_path / "log").read_text()
        return process

    yield start
    for process in running:
        process.kill()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


@behaviour("bug-40", "bug-71")
def test_what_one_takes_the_other_makes_and_both_tell(both: list[Driver], model: ScriptedUpstream) -> None:
    taker, maker = both
    gate = Gate()
    model.script(Reply("One two three four.", held={3: gate}), Reply("Silent."))
    body = {"model": MODEL, "input": "x", "background": True, "stream": True}
    live = taker.http.stream("POST", f"{taker.server.url}/responses", json=body)
    content = b""
    with live as reply:
        for data in reply.iter_bytes():
            content += data
            if b"One " in content and not gate.is_set():
                (listed,) = maker.get("/responses").json()["data"]
                assert listed["status"] == "in_progress"
                gate.set()
    checked(content)
    for driver in both:
        assert resumed(driver, listed["id"]) == content
        assert resumed(driver, listed["id"], 3) == b"".join(frames(content)[4:]) + b"data: [DONE]\n\n"
    done = outcome(maker, begin(taker, input="y")["id"])
    assert text_of(done) == "Silent."
    assert outcome(taker, done["id"]) == done


@behaviour("background-cancel")
def test_a_cancel_reaches_whoever_works(both: list[Driver], model: ScriptedUpstream) -> None:
    taker, maker = both
    never = Gate()
    model.script(Reply("One two three.", held={2: never}))
    response_id = begin(taker, input="x")["id"]
    model.received_blocking(1)
    cancelled = cancel(taker, response_id)
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    model.received_blocking(1).disconnected.wait_blocking()
    assert outcome(maker, response_id) == cancelled.json()
    assert cancel(maker, response_id).json() == cancelled.json()
    never.set()


@behaviour("bug-38")
def test_a_conversation_has_one_turn_at_a_time_in_all_processes(both: list[Driver], model: ScriptedUpstream) -> None:
    taker, maker = both
    gate = Gate()
    model.script(Reply("One.", before=gate), Reply("Two."))
    conversation = taker.http.post(f"{taker.server.url}/conversations", json={}).json()["id"]
    held = begin(taker, input="x", conversation=conversation)["id"]
    for driver in both:
        for background in (True, False):
            refused = driver.post(input="y", conversation=conversation, background=background)
            assert error(refused, 409)["code"] == "conversation_locked"
    gate.set()
    assert outcome(maker, held)["status"] == "completed"
    assert text_of(taker.create(input="y", conversation=conversation)) == "Two."


@behaviour("bug-69")
def test_workers_share_the_work_and_take_up_what_a_killed_one_had(
    tmp_path: Path, model: ScriptedUpstream, postgres_url: str, worker: Worker
) -> None:
    gates = [Gate(), Gate()]
    model.script(*[Reply("Held.", before=gate) for gate in (gates[0], gates[0], gates[1], gates[1])])
    model.default = Reply("Done.")
    with server(tmp_path / "server", model, postgres_url, 0) as api:
        first = worker()
        ids = [begin(api, input=f"{n}")["id"] for n in range(2)]
        model.received_blocking(2)
        second = worker()
        more = [begin(api, input=f"{n}")["id"] for n in range(2)]
        model.received_blocking(4)  # the first has two already, which is all it takes
        first.kill()
        for request in model.requests[:2]:
            request.disconnected.wait_blocking()
        gates[1].set()
        assert [text_of(outcome(api, one, seconds=PATIENCE)) for one in more] == ["Held."] * 2
        assert [text_of(outcome(api, one, seconds=PATIENCE)) for one in ids] == ["Done."] * 2
        assert second.poll() is None
        begun = time.monotonic()
        second.terminate()
        assert second.wait(PATIENCE) == 0
        assert time.monotonic() - begun < 10
    gates[0].set()
