"""`treadle check`: one line for each thing it tried, and a fault named by its path."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.behaviour.telemetry_kit import collecting
from tests.unit.cli.conftest import ModelServer
from treadle.cli.hints import look_around
from treadle.cli.main import main
from treadle.settings import load

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


@pytest.mark.parametrize("url", ["postgresql+psycopg://me:hush@127.0.0.1/x", "mysql://h/x", "sqlite://x", "sqlite:///"])
@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_database_that_is_not_supported_is_refused_in_one_line(
    bare: Path, capsys: pytest.CaptureFixture[str], url: str, command: str
) -> None:
    (bare / "c.yaml").write_text(f"store: {{url: '{url}'}}\n")
    assert main([command, "--config", str(bare / "c.yaml")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: store.url: `{url.partition('//')[0]}//` is not supported; give the path")
    assert err.count("\n") == 1
    assert "hush" not in err


@pytest.mark.parametrize("url", ["db/t.sqlite3", "sqlite:///db/t.sqlite3"])
def test_a_database_elsewhere_is_tried_where_it_is(bare: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, _ = check(bare, f"store: {{url: '{url}'}}\n", capsys)
    assert code == 0
    assert "ok     store: SQLite works in db\n" in out
    (bare / "file").write_text("")
    code, _, err = check(bare, f"store: {{url: '{url.replace('db/', 'file/')}'}}\n", capsys)
    assert code == 1
    assert err.startswith("error: store.url: SQLite does not work in file")


def names(server: ModelServer, *lines: str) -> str:
    """A provider with a closed list of `a` and `b`, one with an open list, and further lines."""
    return "\n".join([f"models: {{vllm: {{url: '{server.url}'}}, box: {{url: '{server.url}'}}}}", *lines, ""])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "aliases: {fast: bxo/a}",
            "aliases.fast: `bxo/a` leads nowhere: there is no section `bxo` under `models`; did",
        ),
        ("default_model: nowhere/a", "default_model: `nowhere/a` leads nowhere"),
        ("default_model: vllm/aa", "default_model: `vllm` has no model `aa`; did you mean `a`? (file c.yaml:2)"),
        ("default_model: vllm", "default_model: `vllm` is a section of `models`; a model of it is `vllm/<model>`"),
        ("embeddings: {default: vllm/c}", "embeddings.default: `vllm` has no model `c`"),
        ("aliases: {fast: vllm/c}\ndefault_model: fast", "aliases.fast: `vllm` has no model `c`"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_fault(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start, line: str, says: str
) -> None:
    code, _, err = check(bare, names(model_server(TWO), line), capsys)
    assert code == 1
    assert err.startswith(f"error: {says}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    ["default_model: vllm/a", "default_model: a", "default_model: box/unlisted", "aliases: {a: b}\ndefault_model: a"],
)
def test_a_name_that_may_work_is_none(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start, line: str
) -> None:
    assert check(bare, names(model_server(TWO), line), capsys)[::2] == (0, "")


def test_of_a_server_that_does_not_answer_nothing_is_said_but_that(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start
) -> None:
    text = f"models: {{vllm: {{url: '{model_server(b'no', 500).url}'}}}}\ndefault_model: vllm/a\naliases: {{b: c}}\n"
    code, _, err = check(bare, text, capsys)
    assert code == 1
    assert err.count("\n") == 1
    assert err.startswith("error: models.vllm.url: ")


def test_the_server_warns_of_the_same_names_and_offers_a_model_that_works(
    bare: Path, model_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "treadle.yaml").write_text(names(model_server(TWO), "default_model: vllm/c"))
    hints = asyncio.run(look_around(load().settings))
    assert hints.warnings == ["warning: default_model: `vllm` has no model `c`"]
    assert '"model": "vllm/a"' in "".join(hints.first_request)


def test_the_collector_of_traces_is_asked_with_its_headers(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with collecting() as collector:
        text = f"telemetry: {{enabled: true, endpoint: '{collector.url}', headers: {{x-key: k}}}}\n"
        code, out, err = check(bare, text, capsys)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"ok     telemetry: {collector.url} takes traces"
    assert list(collector.bodies) == ["/v1/traces"]
    assert collector.headers[0]["x-key"] == "k"


def test_a_collector_that_is_not_there_is_a_fault(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        text = f"telemetry: {{enabled: true, endpoint: 'http://127.0.0.1:{taken.getsockname()[1]}'}}\n"
        code, _, err = check(bare, text, capsys)
    assert code == 1
    assert err.startswith("error: telemetry.endpoint: http://127.0.0.1:")
