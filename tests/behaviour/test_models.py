"""Which models are offered, and what is said about one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, httpx2
from tests.behaviour.kit import error, serving
from treadle.testing.upstream import Reply, ScriptedUpstream

EMBEDDER = "local/all-minilm-l6-v2"
CHAT = "local/smollm2-135m-instruct"
SENTENCE = "Model '{}' not found. Use 'client.models.list()' to list available Models."


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Driver]:
    """A server over one provider whose list is whole, and one that may have more."""
    with (
        ScriptedUpstream(default=Reply("ok"), models=["qwen3-32b", "e5-small"]) as upstream,
        serving(tmp_path, upstream, f"  vllm: {{url: '{upstream.url}'}}", "aliases: {fast: vllm/qwen4}") as driver,
    ):
        yield driver


def refused(driver: Driver, model: str, path: str = "/responses") -> str:
    found = error(driver.post(path, model=model, input="Hello."), 404)
    assert (found["code"], found["param"]) == ("model_not_found", "model")
    message: str = found["message"]
    assert message.startswith(SENTENCE.format(model))
    return message.removeprefix(SENTENCE.format(model)).strip()


def test_an_unknown_model_is_told_with_what_there_is(closed: Driver) -> None:
    assert refused(closed, "abc") == "Providers here: scripted, vllm, local."
    assert refused(closed, "abc", "/embeddings") == "Providers here: scripted, vllm, local."


def test_a_near_miss_is_told_with_what_was_probably_meant(closed: Driver) -> None:
    assert refused(closed, "vllm/qwen3-32").endswith("Did you mean 'vllm/qwen3-32b'?")
    assert refused(closed, "smollm2-135m").endswith(f"Did you mean '{CHAT}'?")
    assert "It is an alias of 'vllm/qwen4'." in refused(closed, "fast")


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("groq/llama-3.3-70b", "GROQ_API_KEY"),
        ("ollama/llama3.2", "OLLAMA_URL"),
        ("claude-sonnet-4", "ANTHROPIC_API_KEY"),
    ],
)
def test_a_vendor_that_is_not_configured_is_told_with_its_variable(closed: Driver, model: str, variable: str) -> None:
    assert refused(closed, model).endswith(f"are available when the server is started with {variable} set.")


@pytest.mark.parametrize("model", ["x" * 512, "a\nb", "\u2028", "/", "vllm/", "//", "None"])
def test_an_odd_name_is_told_like_any_other(closed: Driver, model: str) -> None:
    found = error(closed.post(model=model, input="Hello."), 404)
    assert found["code"] == "model_not_found"
    assert len(found["message"]) < 500


def test_models_that_embed_do_not_chat_and_the_other_way_round(closed: Driver) -> None:
    embeds = error(closed.post("/responses", model=EMBEDDER, input="Hello."), 400)
    assert (embeds["param"], embeds["message"]) == (
        "model",
        f"The model '{EMBEDDER}' makes embeddings and cannot chat.",
    )
    chats = error(closed.post("/embeddings", model=CHAT, input="Hello."), 400)
    assert (chats["param"], chats["message"]) == ("model", f"The model '{CHAT}' chats; it makes no embeddings.")


def embedded(driver: Driver, **body: Any) -> dict[str, Any]:
    reply = driver.http.post(driver.server.url + "/embeddings", json={"input": "Hello.", **body})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_without_a_model_the_configured_one_embeds(tmp_path: Path) -> None:
    with (
        ScriptedUpstream() as upstream,
        serving(tmp_path, upstream, "embeddings: {default: scripted/small}") as driver,
    ):
        found = embedded(driver)
        assert found["model"] == "scripted/small"
        (asked,) = [one for one in upstream.other_requests if one.path.endswith("/embeddings")]
        assert asked.body["model"] == "small"
        assert embedded(driver, model="scripted/other")["model"] == "scripted/other"


def test_without_a_model_and_a_default_the_embedded_one_embeds(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, serving(tmp_path, upstream) as driver:
        if EMBEDDER not in offered(driver):
            pytest.skip("the embedded models are not installed here")
        found = embedded(driver)
        assert found["model"] == EMBEDDER
        assert len(found["data"][0]["embedding"]) == 384


def test_without_any_model_that_embeds_the_parameter_is_missing(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, serving(tmp_path, upstream, "local: {enabled: false}") as driver:
        found = error(driver.http.post(driver.server.url + "/embeddings", json={"input": "Hello."}), 400)
        assert (found["code"], found["param"]) == ("missing_required_parameter", "model")


def offered(driver: Driver) -> list[str]:
    return [model["id"] for model in driver.get("/models").json()["data"]]


def test_embedded_models_that_are_switched_off_are_not_offered(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, serving(tmp_path, upstream, "local: {enabled: false}") as driver:
        assert [name for name in offered(driver) if name.startswith("local/")] == []


def test_embedded_models_that_are_not_there_are_not_offered_and_say_why(tmp_path: Path) -> None:
    absent = f"local: {{model_path: {tmp_path}/absent.gguf, embedding_model_path: {tmp_path}/absent.onnx}}"
    with ScriptedUpstream() as upstream, serving(tmp_path, upstream, absent) as driver:
        assert [name for name in offered(driver) if name.startswith("local/")] == []
        for path, model in (("/responses", CHAT), ("/embeddings", EMBEDDER)):
            assert error(driver.post(path, model=model, input="Hello."), 503)["code"] == "model_not_installed"


@pytest.mark.parametrize("path", ["/", "/v1", "/health", "/v1/"])
def test_a_path_beside_the_api_says_where_the_api_is(closed: Driver, path: str) -> None:
    found = error(closed.http.get(closed.server.root + path), 404)
    assert found["message"].endswith("The API is under /v1 and described at /docs.")


def test_what_the_guard_refuses_has_a_request_id_too(closed: Driver) -> None:
    reply = httpx2.get(f"{closed.server.url}/models", headers={"origin": "https://evil.example"})
    assert error(reply, 403)["code"] == "permission_denied"
    assert reply.headers["x-request-id"].startswith("req_")
