"""Running the server: ports, the banner, and stopping it."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.cli import serving
from treadle.cli.main import main
from treadle.cli.serve import first_model
from treadle.settings import Local, Provider, Settings

SCRIPT = """
import sys
from treadle.cli import serving
from treadle.settings import Server, Settings

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})

settings = Settings(server=Server(port=0))
sockets = serving.listen("127.0.0.1", 0, "serve")
sys.exit(serving.serve_app(app, settings, sockets, serving.try_it("local/x")))
"""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_busy_port_gives_one_plain_line(bare: Path, taken: int) -> None:
    command = [sys.executable, "-m", "treadle", "serve", "--port", str(taken)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=bare, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: port {taken} on 127.0.0.1 is in use")
    assert f"treadle serve --port {taken + 1}" in done.stderr


def test_a_host_that_is_not_ours_gives_a_plain_line(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 192.0.2.0/24 is reserved for documentation: no machine has it.
    assert main(["serve", "--insecure", "--host", "192.0.2.1", "--port", "0"]) == 1
    assert capsys.readouterr().err == "error: `192.0.2.1` is not an address of this machine\n"


def test_a_name_with_several_addresses_listens_on_one_port_of_each() -> None:
    sockets = serving.listen("localhost", 0, "serve")
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 1
    finally:
        for one in sockets:
            one.close()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_server_announces_itself_answers_and_stops_without_a_traceback(sent: signal.Signals) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert server.stdout is not None
        shown = [server.stdout.readline() for _ in range(5)]
        first = shown[0]
        assert first.startswith("Treadle ")
        url = first.split(" is ready at ")[1].split("/v1")[0]
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.read() == b"hi"
        server.send_signal(sent)
        _, err = server.communicate(timeout=15)
    finally:
        server.kill()
        server.wait(10)
    assert err == ""
    assert f"curl -s {url}/v1/responses" in shown[3]
    assert server.returncode == (130 if sent is signal.SIGINT else -signal.SIGTERM)


def test_the_banner_names_models_and_data(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=str(tmp_path), models={"mine": Provider(url="http://h/v1")}, local=Local(enabled=False)
    )
    text = serving.banner(settings, "http://127.0.0.1:1", serving.try_it("mine/a"))
    assert "http://127.0.0.1:1/v1" in text
    assert "mine (http://h/v1)" in text
    assert str(tmp_path) in text
    assert "curl -s http://127.0.0.1:1/v1/responses" in text
    assert '"model": "mine/a"' in text


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:5"),
        ("0.0.0.0", "http://127.0.0.1:5"),
        ("::", "http://[::1]:5"),
        ("::1", "http://[::1]:5"),
        ("box", "http://box:5"),
    ],
)
def test_the_address_shown_is_one_that_works_here(host: str, url: str) -> None:
    assert serving.base_url(host, 5) == url


def test_the_model_to_try_is_one_that_the_settings_name() -> None:
    mine = {"mine": Provider(models=["a"])}
    assert first_model(Settings(default_model="x/y", models=mine)) == "x/y"
    assert first_model(Settings(aliases={"fast": "mine/a"}, models=mine)) == "fast"
    assert first_model(Settings(models=mine)) == "mine/a"
    assert first_model(Settings(models={"mine": Provider()})) == "mine/<model>"
    assert first_model(Settings()) == "local/smollm2-135m-instruct"
