"""`prompt` through the official Python client in strict mode: every answer must fit the SDK's types exactly."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, sent
from treadle.testing.turns import Reply
from treadle.testing.upstream import ScriptedUpstream

PNG = f"data:image/png;base64,{b64encode(bytes.fromhex('89504e470d0a1a0a')).decode()}"


@pytest.fixture
def prompt(api: Driver) -> str:
    body = {"prompt": "Be {{ tone }} about {{ photo }} and {{ notes }}.", "variables": ["tone", "photo", "notes"]}
    found: str = api.post("/prompts", **body).json()["id"]
    return found


def values(tone: Any) -> dict[str, Any]:
    return {
        "tone": tone,
        "photo": {"type": "input_image", "image_url": PNG, "detail": "low"},
        "notes": {"type": "input_file", "file_data": "data:text/plain;base64,aGk=", "filename": "notes.txt"},
    }


@pytest.mark.parametrize("tone", ["kind", {"type": "input_text", "text": "kind"}], ids=["string", "part"])
def test_a_response_echoes_its_prompt_with_values_of_every_kind(
    client: Any, model: ScriptedUpstream, prompt: str, tone: Any
) -> None:
    model.script(Reply(text="Hello."))
    named = {"id": prompt, "version": "1", "variables": values(tone)}
    response = client.responses.create(model=MODEL, input="Hi", prompt=named)
    assert (response.prompt.id, response.prompt.version) == (prompt, "1")
    assert {name: type(value).__name__ for name, value in response.prompt.variables.items()} == {
        "tone": "str" if isinstance(tone, str) else "ResponseInputText",
        "photo": "ResponseInputImage",
        "notes": "ResponseInputFile",
    }
    assert response.instructions == "Be kind about [Image: photo] and [File: notes]."
    assert client.responses.retrieve(response.id) == response
    assert sent(model)[0]["content"] == response.instructions


def test_a_prompt_alone_is_enough(client: Any, model: ScriptedUpstream, prompt: str) -> None:
    model.script(Reply(text="Hello."))
    response = client.responses.create(model=MODEL, prompt={"id": prompt, "variables": values("kind")})
    assert (response.output_text, response.prompt.version) == ("Hello.", "1")
    [item] = client.responses.input_items.list(response.id).data
    assert [part.type for part in item.content] == [
        "input_text",
        "input_text",
        "input_image",
        "input_text",
        "input_file",
    ]


def test_a_stream_with_a_prompt_fits_the_types(client: Any, model: ScriptedUpstream, prompt: str) -> None:
    model.script(Reply(text="Hello."))
    named = {"id": prompt, "variables": values("kind")}
    with client.responses.stream(model=MODEL, input="Hi", prompt=named) as stream:
        response = stream.get_final_response()
    assert (response.output_text, response.prompt.id, response.prompt.version) == ("Hello.", prompt, "1")


def test_a_socket_that_is_warmed_up_with_a_prompt_takes_it_again(
    client: Any, model: ScriptedUpstream, prompt: str
) -> None:
    model.script(Reply(text="Hello."))
    common = {"type": "response.create", "model": MODEL, "store": False}
    common["prompt"] = {"id": prompt, "variables": values("kind")}
    with client.responses.connect() as socket:

        def answered(**more: Any) -> Any:
            socket.send({**common, **more})
            return next(event.response for event in socket if event.type == "response.completed")

        warm = answered(generate=False)
        assert (warm.prompt.version, warm.output) == ("1", [])
        response = answered(input="Hi", previous_response_id=warm.id)
    assert (response.output_text, response.prompt.version) == ("Hello.", "1")
    assert [message["role"] for message in sent(model)] == ["system", "user", "user"]


def test_a_refusal_names_the_variable(client: Any, prompt: str) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Hi", prompt={"id": prompt, "variables": {"tone": "kind"}})
    assert refused.value.param == "prompt.variables.photo"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model=MODEL, input="Hi", prompt={"id": prompt, "version": "9"})
    assert missing.value.param == "prompt.version"
