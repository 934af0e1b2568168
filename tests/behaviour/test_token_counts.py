"""`POST /v1/responses/input_tokens`: what a model would be shown, counted here and without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver
from tests.behaviour.kit import FUNCTION, serving
from tests.behaviour.manifest import behaviour
from treadle.models.tokens import Tokens
from treadle.settings import load
from treadle.testing import Reply, ScriptedUpstream

TEXT = "会議は火曜日です。 Words, 12345 and {code: true}. " * 20


def count(api: Driver, **body: Any) -> int:
    reply = api.post("/responses/input_tokens", **body)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["input_tokens"])


@behaviour("token-counts")
def test_the_encoding_is_the_requests_or_fits_the_model(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.models += ["gpt-4o-mini", "llama3.2:3b"]
    known = Tokens()
    new, old = (known.count(TEXT, encoding=name) for name in ("o200k_base", "cl100k_base"))
    with serving(tmp_path, model) as api:
        counts = {
            "request": count(api, input=TEXT, tokenizer_encoding="cl100k_base", model="scripted/gpt-4o-mini"),
            "name": count(api, input=TEXT, model="scripted/gpt-4o-mini"),
            "family": count(api, input=TEXT, model="scripted/llama3.2:3b"),
            "characters": count(api, input=TEXT),
        }
    assert counts == {
        "request": old + 7,
        "name": new + 7,
        "family": old + 7,
        "characters": known.count(TEXT, "scripted") + 7,
    }
    assert len(set(counts.values())) == 3


@behaviour("token-counts")
def test_the_server_has_a_default_and_further_families(tmp_path: Path, model: ScriptedUpstream) -> None:
    known = Tokens()
    with serving(tmp_path, model, "compaction: {model_tokenizer_mappings: {script: o200k_base}}") as api:
        assert count(api, input=TEXT) == known.count(TEXT, encoding="o200k_base") + 7
    with serving(tmp_path, model, "compaction: {tokenizer_encoding: cl100k_base}") as api:
        assert count(api, input=TEXT) == known.count(TEXT, encoding="cl100k_base") + 7


@behaviour("token-counts")
def test_an_unknown_encoding_is_refused_by_name_wherever_it_stands(
    tmp_path: Path, api: Driver, model: ScriptedUpstream
) -> None:
    for path in ("/responses", "/responses/input_tokens", "/responses/compact"):
        reply = api.post(path, input="x", tokenizer_encoding="p50k_base")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokenizer_encoding")
    for line in ("{tokenizer_encoding: p50k_base}", "{model_tokenizer_mappings: {x: p50k_base}}"):
        file = tmp_path / "faulty.yaml"
        file.write_text(f"compaction: {line}\n")
        faults = load(file, environ={}).faults
        assert len(faults) == 1
        assert faults[0].path.startswith("compaction.")


@behaviour("token-counts")
def test_tools_pictures_and_the_history_count(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Noted. " * 30))
    alone = count(api, input="Hello.")
    tool = FUNCTION | {"description": "Says what the weather is. " * 10}
    assert count(api, input="Hello.", tools=[tool]) > alone + 40
    picture = {"type": "input_image", "image_url": "data:image/webp;base64,UklGRg==", "detail": "low"}
    shown = [{"role": "user", "content": [{"type": "input_text", "text": "Hello."}, picture]}]
    assert count(api, input=shown) == alone + 85
    first = api.create(input="Hello.")
    assert count(api, input="Hello.", previous_response_id=first["id"]) > alone + 40


@behaviour("token-counts")
@pytest.mark.parametrize("name", ["gpt-4o-mini", "gpt-4-turbo"])
def test_counts_are_within_five_percent_of_what_a_backend_reports(
    tmp_path: Path, model: ScriptedUpstream, name: str
) -> None:
    """Against the formula that OpenAI publishes for messages: three tokens each, the role, and three for the answer."""
    model.models.append(name)
    model.script(Reply(text="Fine."))
    known = Tokens()
    talk = [{"role": role, "content": f"{TEXT} {n}"} for n, role in enumerate(("user", "assistant") * 5)]
    with serving(tmp_path, model) as api:
        api.create(input=talk, instructions="Be brief.", model=f"scripted/{name}")
        messages = json.loads(model.requests[0].raw)["messages"]
        reported = 3 + sum(3 + known.count(m["role"], name) + known.count(m["content"], name) for m in messages)
        assert count(api, input=talk, instructions="Be brief.", model=f"scripted/{name}") == pytest.approx(
            reported, rel=0.05
        )
