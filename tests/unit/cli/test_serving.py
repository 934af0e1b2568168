"""Running the server: ports, the banner, and stopping it."""

import asyncio
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
from treadle.cli.go import go
from treadle.cli.hints import first_model, look_around, try_it
from treadle.cli.main import build_parser, main
from treadle.cli.probe import Listing
from treadle.settings import Local, Provider, Server, Settings

SCRIPT = """
import sys
from treadle.cli import serving
from treadle.cli.hints import Hints, try_it
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

async def look():
    return Hints(["warning: something"], try_it("local/x"))

sys.exit(serving.serve_app(app, settings, sockets, look))
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
    assert done.stderr.endswith(f" -m treadle serve --port {taken + 1}\n")


def test_the_advice_after_make_serve_is_for_make(
    bare: Path, taken: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "g")
    assert go(build_parser().parse_args(["go", "--from-make", "--port", str(taken)]), places=[]) == 1
    assert f'another port: make serve SERVE_ARGS="--port {taken + 1}"\n' in capsys.readouterr().err


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
        assert server.stderr is not None
        assert server.stderr.readline() == "warning: something\n"
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
    text = serving.banner(settings, "http://127.0.0.1:1")
    assert "http://127.0.0.1:1/v1" in text
    assert "mine (http://h/v1)" in text
    assert str(tmp_path) in text
    assert "local" not in text, "the embedded model is switched off"
    assert "OPEN" not in text


def test_the_banner_does_not_offer_an_embedded_model_that_is_not_there(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), local=Local(model_path=str(tmp_path / "absent.gguf")))
    assert "models   none" in serving.banner(settings, "http://127.0.0.1:1")
    assert asyncio.run(look_around(settings)).first_request == try_it("")


@pytest.mark.parametrize(("host", "says"), [("0.0.0.0", "all interfaces"), ("::", "all interfaces"), ("box", "on box")])
def test_the_banner_says_that_anybody_may_come_in(tmp_path: Path, host: str, says: str) -> None:
    settings = Settings(data_dir=str(tmp_path), server=Server(host=host, allow_unauthenticated=True))
    last = serving.banner(settings, "http://127.0.0.1:1").splitlines()[-1]
    assert says in last
    assert "asks for no key" in last


def test_a_data_folder_that_cannot_be_made_gives_one_plain_line(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (bare / "file").write_text("")
    monkeypatch.setenv("TREADLE_DATA_DIR", str(bare / "file" / "below"))
    assert main(["serve", "--port", "0"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: data_dir: {bare}/file/below cannot be written to")
    assert err.count("\n") == 1


def test_a_start_that_fails_once_the_server_runs_gives_one_plain_line(bare: Path) -> None:
    (bare / "data").mkdir()
    (bare / "data" / "treadle.sqlite3").write_bytes(b"this is no database, but has the length of one" * 100)
    command = [sys.executable, "-m", "treadle", "serve", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=bare, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "database" in done.stderr


def test_a_damaged_key_file_gives_one_plain_line(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bare / "data").mkdir()
    (bare / "data" / "secret.key").write_bytes(b"short")
    assert main(["serve", "--port", "0"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.endswith("secret.key must hold exactly 32 bytes\n")


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


def first(settings: Settings, wrong: str = "", **listings: Listing) -> str:
    return first_model(settings, listings, {wrong})


def test_the_model_to_try_is_one_that_the_settings_name_or_a_server_lists() -> None:
    mine = {"mine": Provider(models=["a"])}
    assert first(Settings(default_model="x/y", models=mine)) == "x/y"
    assert first(Settings(default_model="x/y", models=mine), wrong="default_model") == "mine/a"
    assert first(Settings(aliases={"fast": "mine/a"}, models=mine)) == "fast"
    assert first(Settings(aliases={"fast": "mine/a", "f": "mine/a"}, default_model="f", models=mine)) == "f"
    assert first(Settings(aliases={"fast": "mine/b"}, models=mine), wrong="aliases.fast") == "mine/a"
    assert first(Settings(models=mine)) == "mine/a"
    two = Settings(models={"one": Provider(), "two": Provider()}, local=Local(enabled=False))
    gone, here = Listing(fault="does not answer"), Listing(("text-embed", "b"))
    assert first(two, one=gone, two=here) == "two/b"
    assert first(two, one=gone, two=gone) == ""


def test_a_line_to_copy_names_a_model_or_lists_them() -> None:
    assert '"model": "mine/a"' in "".join(try_it("mine/a"))
    assert "{url}/v1/models" in "".join(try_it(""))
