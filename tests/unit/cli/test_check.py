"""`treadle check`: one line for each thing it tried, and a fault named by its path."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import ModelServer
from treadle.cli.main import main

Start = Callable[..., ModelServer]
TWO = b'{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"}]}'


def check(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    file = folder / "c.yaml"
    file.write_text(text)
    code = main(["check", "--config", str(file)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_sound_configuration_gives_an_ok_line_for_each_thing(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start
) -> None:
    server = model_server(TWO)
    code, out, err = check(bare, f"models: {{mine: {{url: '{server.url}', key: sk, headers: {{X-A: b}}}}}}\n", capsys)
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "ok     configuration",
        "ok     data_dir",
        "ok     store",
        "ok     models.mine",
    ]
    assert "offers 2 models" in out
    path, headers = server.asked[0]
    assert path == "/v1/models"
    assert (headers["authorization"], headers["x-a"]) == ("Bearer sk", "b")
    assert (bare / "data").is_dir()


def test_the_azure_key_goes_into_its_own_header(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start
) -> None:
    server = model_server(TWO)
    text = f"models: {{azure: {{url: '{server.url}', key: sk, api_version: 2024-10-21}}}}\n"
    assert check(bare, text, capsys)[0] == 0
    path, headers = server.asked[0]
    assert path == "/v1/models?api-version=2024-10-21"
    assert headers["api-key"] == "sk"
    assert "authorization" not in headers


def test_faults_are_listed_one_a_line_and_nothing_is_asked(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start
) -> None:
    server = model_server(TWO)
    text = f"server: {{prot: 1}}\nmodels:\n  mine: {{url: '{server.url}', retries: -1}}\n"
    code, out, err = check(bare, text, capsys)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "error: server.prot: is not a known setting; did you mean `port`? (file c.yaml:1)",
        "error: models.mine.retries: must be a whole number of at least 0, not `-1` (file c.yaml:3)",
    ]
    assert server.asked == []


@pytest.mark.parametrize(
    ("status", "body", "path", "says"),
    [
        (401, b"{}", "models.mine.key", "refuses the key (HTTP 401)"),
        (500, b"oops", "models.mine.url", "answers HTTP 500"),
        (404, b"{}", "models.mine.url", "answers HTTP 404"),
        (200, b"<html>", "models.mine.url", "not with a list of models"),
        (200, b'{"data":[{"name":"x"}]}', "models.mine.url", "not with a list of models"),
        (200, b"\xff", "models.mine.url", "not with a list of models"),
    ],
)
def test_a_server_that_does_not_give_its_models_is_a_fault(
    bare: Path,
    capsys: pytest.CaptureFixture[str],
    model_server: Start,
    status: int,
    body: bytes,
    path: str,
    says: str,
) -> None:
    server = model_server(body, status)
    code, _, err = check(bare, f"models: {{mine: {{url: '{server.url}', key: sk-hush}}}}\n", capsys)
    assert code == 1
    assert err.startswith(f"error: {path}: {server.url} ")
    assert says in err
    assert err.endswith("(file c.yaml:1)\n")
    assert "hush" not in err


def test_a_server_that_is_not_there_is_a_fault_and_the_others_are_still_tried(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"
        text = f"models: {{gone: {{url: '{gone}'}}, here: {{url: '{model_server(TWO).url}'}}}}\n"
        code, out, err = check(bare, text, capsys)
    assert code == 1
    assert "ok     models.here" in out
    assert err.splitlines() == [f"error: models.gone.url: {gone} cannot be reached: Connection refused (file c.yaml:1)"]


@pytest.mark.parametrize(
    ("body", "status", "models", "says"),
    [
        (b"{}", 404, "[a]", "lists no models, 1 are configured"),
        (TWO, 200, "[a, c]", "does not list c"),
        (b'{"object":"list","data":null}', 200, "[]", "offers no models yet"),
        (b'[{"id":"a"}]', 200, "[]", "offers 1 model"),
    ],
)
def test_lists_of_every_shape_are_understood(
    bare: Path,
    capsys: pytest.CaptureFixture[str],
    model_server: Start,
    body: bytes,
    status: int,
    models: str,
    says: str,
) -> None:
    server = model_server(body, status)
    code, out, err = check(bare, f"models: {{mine: {{url: '{server.url}', models: {models}}}}}\n", capsys)
    assert (code, err) == (0, "")
    assert says in out


def test_a_data_folder_that_cannot_be_made_is_a_fault(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "file").write_text("")
    monkeypatch.setenv("TREADLE_DATA_DIR", str(bare / "file" / "below"))
    code, _, err = check(bare, "models: {}\n", capsys)
    assert code == 1
    assert err.startswith("error: data_dir: ")
    assert err.endswith("(environment TREADLE_DATA_DIR)\n")


def test_a_database_that_is_not_there_is_a_fault(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        code, _, err = check(bare, f"store: {{url: 'postgresql://me:hush@127.0.0.1:{port}/x'}}\n", capsys)
    assert code == 1
    assert err.startswith("error: store.url: the database cannot be reached")
    assert "hush" not in err


def test_a_database_of_another_kind_is_a_fault(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "error: store.url: must be empty" in check(bare, "store: {url: 'mysql://h/x'}\n", capsys)[2]
