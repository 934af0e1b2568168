"""`treadle go`: what it finds and what it says about it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket

import pytest

from tests.unit.cli.conftest import ModelServer
from treadle.cli.embedded import MODEL_ID, why_not
from treadle.cli.go import USUAL_PLACES, Answered, Place, choose, describe, go, look
from treadle.cli.main import build_parser
from treadle.settings import Loaded, Local, Settings, load

Start = Callable[..., ModelServer]


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def found(*answered: Answered, **environ: str) -> Loaded:
    return load(environ=environ, found={one.place.vendor: one.place.url for one in answered})


def test_the_usual_ports_are_looked_at() -> None:
    assert {(place.vendor, place.url) for place in USUAL_PLACES} == {
        ("ollama", "http://127.0.0.1:11434/v1"),
        ("lmstudio", "http://127.0.0.1:1234/v1"),
        ("llamacpp", "http://127.0.0.1:8080/v1"),
        ("vllm", "http://127.0.0.1:8000/v1"),
    }


def test_only_what_answers_like_a_model_server_is_taken_for_one(model_server: Start, silent: str) -> None:
    ollama = Place("ollama", model_server(b'{"object":"list","data":[{"id":"llama3.2:latest"}]}').url)
    web_page = Place("llamacpp", model_server(b"<html>Jenkins</html>").url)
    refusing = Place("lmstudio", model_server(b"{}", 404).url)
    started = time.monotonic()
    answered = asyncio.run(look([ollama, web_page, refusing, Place("vllm", silent)], wait_seconds=0.3))
    assert answered == [Answered(ollama, ("llama3.2:latest",))]
    assert time.monotonic() - started < 5


def test_a_server_without_models_is_found_too(model_server: Start) -> None:
    place = Place("ollama", model_server(b'{"object":"list","data":null}').url)
    assert asyncio.run(look([place])) == [Answered(place, ())]


def test_each_thing_found_has_a_line_with_a_model_to_try(bare: Path) -> None:
    ollama = Answered(Place("ollama", "http://127.0.0.1:11434/v1"), ("nomic-embed-text", "llama3.2:latest"))
    empty = Answered(Place("lmstudio", "http://127.0.0.1:1234/v1"), ())
    loaded = found(ollama, empty, GROQ_API_KEY="g", VLLM_URL="http://gpu:8000")
    assert sorted(describe(loaded, [ollama, empty])) == [
        "Found Groq in GROQ_API_KEY: its models are called groq/<model>",
        "Found LM Studio at http://127.0.0.1:1234/v1: it has no models to chat with yet",
        "Found Ollama at http://127.0.0.1:11434/v1: 2 models; try ollama/llama3.2:latest",
        "Found vLLM in VLLM_URL, at http://gpu:8000/v1: its models are called vllm/<model>",
    ]
    assert choose(loaded, [ollama, empty]) == "ollama/llama3.2:latest"


def test_the_model_to_try_is_a_listed_one_or_the_embedded_one(bare: Path) -> None:
    assert choose(found(GROQ_API_KEY="g"), []) == "", "not known before it is asked"
    assert choose(found(GROQ_API_KEY="g", TREADLE_MODELS__GROQ__MODELS="a"), []) == "groq/a"
    assert choose(found(GROQ_API_KEY="g", TREADLE_DEFAULT_MODEL="groq/b"), []) == "", (
        "may be wrong before it is checked"
    )
    assert choose(found(), []) == MODEL_ID


def test_a_base_url_leads_to_a_server_of_which_only_the_address_is_known(bare: Path) -> None:
    loaded = found(OPENAI_API_KEY="k", OPENAI_BASE_URL="http://box:9/v1")
    (line,) = describe(loaded, [])
    assert line.startswith("Found a server that speaks chat completions in OPENAI_API_KEY, at http://box:9/v1: ")


def test_with_nothing_found_and_no_embedded_model_it_says_what_to_do(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go(build_parser().parse_args(["go", "--port", "0"]), places=[]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: nothing found, and the embedded model cannot run. The embedded model is switched off")
    assert "OPENAI_API_KEY" in err


def test_what_was_found_is_printed_before_the_server_starts(
    bare: Path, capsys: pytest.CaptureFixture[str], model_server: Start
) -> None:
    place = Place("vllm", model_server(b'{"object":"list","data":[{"id":"qwen3"}]}').url)
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert go(build_parser().parse_args(["go", "--port", str(port)]), places=[place]) == 1
    captured = capsys.readouterr()
    assert f"Found vLLM at {place.url}: 1 model; try vllm/qwen3\n" in captured.out
    assert f" go --port {port + 1}" in captured.err


def test_the_embedded_model_says_why_it_cannot_run(tmp_path: Path) -> None:
    assert "switched off" in why_not(Settings(local=Local(enabled=False)))
    assert why_not(Settings(data_dir=str(tmp_path), local=Local(model_path=str(tmp_path / "absent.gguf"))))
