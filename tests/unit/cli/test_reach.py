"""How commands reach a server, and what they say of one that refuses them or is something else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import ModelServer
from treadle.cli.main import main
from treadle.cli.reach import CannotWork, checked_url

Servers = Callable[..., ModelServer]


@pytest.mark.parametrize(
    "given", ["http://host:1", "http://host:1/", "http://host:1/v1", " http://host:1/v1/ ", "http://host:1//"]
)
def test_an_address_may_end_in_v1(given: str) -> None:
    assert checked_url(given, "--url") == "http://host:1"


def test_an_address_may_have_a_path_before_it() -> None:
    assert checked_url("https://host/agents/v1", "--url") == "https://host/agents"


@pytest.mark.parametrize("given", ["host", "host:1", "file:///x", "http://h:x", "http://h?a", "http://h#a", "http://"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(CannotWork, match="--url: expected the address"):
        checked_url(given, "--url")


def search(*more: str) -> int:
    return main(["search", "manuals", "heron", *more])


def test_the_key_is_sent_and_a_server_that_wants_another_is_understood(
    model_server: Servers, bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = model_server(b'{"error": {"message": "Who are you?", "code": "invalid_api_key"}}', 401)
    monkeypatch.setenv("TREADLE_URL", server.url)
    assert search() == 1
    monkeypatch.setenv("TREADLE_API_KEY", " of-environment\n")
    assert search() == 1
    assert search("--api-key", "of-flag") == 1
    sent = [headers.get("authorization") for _, headers in server.asked]
    assert sent == [None, "Bearer of-environment", "Bearer of-flag"]
    said = capsys.readouterr().err.splitlines()
    assert said == ["error: Who are you? (give a key with --api-key or TREADLE_API_KEY)"] * 3


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\x00"])
def test_a_key_that_no_header_can_hold_is_refused(bare: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert search("--url", "http://127.0.0.1:1", "--api-key", key) == 1
    assert capsys.readouterr().err == "error: --api-key: no key has such characters\n"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"<html>hello</html>", 200, "the answer to GET /v1/vector_stores is not what this API answers"),
        (b'{"data": [{"name": "no id"}]}', 200, "the answer to GET /v1/vector_stores is not what this API answers"),
        (b"\xff", 500, "it answers HTTP 500 to GET /v1/vector_stores"),
        (b'{"detail": "other"}', 404, "it answers HTTP 404 to GET /v1/vector_stores"),
        (b"", 302, "it answers GET /v1/vector_stores with a redirect to somewhere else"),
    ],
)
def test_a_server_of_another_kind_is_told(
    model_server: Servers, bare: Path, capsys: pytest.CaptureFixture[str], body: bytes, status: int, said: str
) -> None:
    assert search("--url", model_server(body, status).url) == 1
    assert capsys.readouterr().err == f"error: {said}\n"


def test_stores_of_a_server_that_says_less_are_read(
    model_server: Servers, bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = model_server(
        b'{"object": "list", "data": [{"id": "vs_1", "name": null}, {"id": "vs_2", "name": "birds"}]}'
    )
    assert search("--url", server.url) == 1
    assert capsys.readouterr().err == "error: no vector store is called manuals; there are birds, vs_1\n"


@pytest.mark.parametrize(
    "url", ["http://ho st", "http://a..b", "http://xn--\xff", f"http://{'a' * 70}.example", "http://*"]
)
def test_hosts_that_cannot_be_are_no_traceback(bare: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert search("--url", url) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_variables_of_a_client_are_no_settings(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TREADLE_API_KEY", "of-mine")
    assert main(["config", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "TREADLE_URL is set" not in shown
    assert "of-mine" not in shown
