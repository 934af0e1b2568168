"""`POST /v1/responses/compact`: what the user said stays word for word, all else becomes one item."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, sent, text_of
from tests.behaviour.kit import serving
from tests.behaviour.manifest import behaviour
from treadle.testing import Reply, ScriptedUpstream
from treadle.testing.turns import Refuse, Tokens

NOTES = "NOTES: the word is heron."
TALK: list[dict[str, Any]] = [
    {"role": "developer", "content": "Speak like a pirate."},
    {"role": "user", "content": "What is the weather?"},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"the sky over the harbour"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "Rain, says the long report. " * 20},
    {"role": "assistant", "content": "It rains, arr, and the word that I was told is heron."},
    {"role": "user", "content": "Thanks!"},
]


def compact(api: Driver, **body: Any) -> dict[str, Any]:
    reply = api.post("/responses/compact", **body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def contents(model: ScriptedUpstream, number: int) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in sent(model, number)]


@behaviour("compact-shape")
def test_user_messages_stay_and_all_else_becomes_one_item(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=NOTES, usage=Tokens(100, 20)))
    made = compact(api, input=TALK)
    assert made["object"] == "response.compaction"
    assert made["usage"]["total_tokens"] == 120
    *said, item = made["output"]
    assert [(one["role"], one["content"], one["status"]) for one in said] == [
        ("user", [{"type": "input_text", "text": "What is the weather?"}], "completed"),
        ("user", [{"type": "input_text", "text": "Thanks!"}], "completed"),
    ]
    assert set(item) == {"type", "id", "encrypted_content"}
    assert item["type"] == "compaction"
    assert "heron" not in item["encrypted_content"]
    (system, record) = sent(model)
    assert system["role"] == "system"
    for text in ("What is the weather?", "look", "Rain, says", "I was told is heron", "Thanks!"):
        assert text in record["content"]
    assert "pirate" not in record["content"]  # goes on as it is


@behaviour("compact-shape")
def test_the_output_is_taken_back_as_input(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=NOTES), Reply(text="Heron."))
    made = compact(api, input=TALK)
    response = api.create(input=[*made["output"], {"role": "user", "content": "The word?"}], store=False)
    assert text_of(response) == "Heron."
    messages = contents(model, 2)
    assert [role for role, _ in messages] == ["system", "user", "user", "user", "user"]
    assert messages[0][1] == "Speak like a pirate."
    assert [content for _, content in messages[1:3]] == ["What is the weather?", "Thanks!"]
    assert messages[3][1].endswith(NOTES)
    assert messages[4][1] == "The word?"


@behaviour("compact-chain")
def test_its_id_can_be_continued_read_and_deleted(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=NOTES), Reply(text="Heron."), Reply(text="Still heron."))
    made = compact(api, input=TALK)
    first = api.create(input="The word?", previous_response_id=made["id"])
    assert [content for _, content in contents(model, 2)][1:] == [
        "What is the weather?",
        "Thanks!",
        contents(model, 2)[3][1],
        "The word?",
    ]
    api.create(input="Again?", previous_response_id=first["id"])
    assert any(NOTES in content for _, content in contents(model, 3))
    read = api.get(f"/responses/{made['id']}").json()
    assert (read["id"], read["status"], read["object"]) == (made["id"], "completed", "response")
    assert read["output"] == made["output"][-1:]
    assert api.delete(f"/responses/{made['id']}").status_code == 200
    assert api.get(f"/responses/{made['id']}").status_code == 404
    assert api.get(f"/responses/{first['id']}").status_code == 200


@behaviour("compact-chain")
def test_a_stored_chain_is_compacted_by_its_id(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Paris, of course, as everybody knows who has been there."), Reply(text="Asked: Paris."))
    first = api.create(input="What is the capital of France?")
    made = compact(api, previous_response_id=first["id"])
    assert [one["content"][0]["text"] for one in made["output"][:-1]] == ["What is the capital of France?"]
    assert "as everybody knows" in sent(model, 2)[1]["content"]


@behaviour("compact-chain")
def test_what_is_compacted_twice_has_one_item_and_all_user_messages(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=NOTES), Reply(text="NOTES: heron; B."), Reply(text="Heron."))
    first = compact(api, input=TALK)
    longer = [*first["output"], {"role": "user", "content": "B?"}, {"role": "assistant", "content": "About B. " * 30}]
    second = compact(api, input=longer)
    assert [one["type"] for one in second["output"]] == ["message"] * 3 + ["compaction"]
    assert NOTES in sent(model, 2)[1]["content"]
    api.create(input=[*second["output"], {"role": "user", "content": "The word?"}])
    shown = [content for _, content in contents(model, 3)]
    assert sum("NOTES" in content for content in shown) == 1
    assert shown.count("Speak like a pirate.") == 1  # bug case 43: nothing twice


@behaviour("compact-chain")
def test_compactions_are_not_among_the_input_items(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text=NOTES), Reply(text="Fine."))
    made = compact(api, input=TALK)
    response = api.create(input=[*made["output"], {"role": "user", "content": "And?"}])
    listed = api.get(f"/responses/{response['id']}/input_items").json()["data"]
    assert [one["type"] for one in listed] == ["message"] * 3


@behaviour("bug-43")
def test_no_history_grows_by_being_compacted(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="A very long account of next to nothing. " * 30), Reply(text="Yes."))
    made = compact(api, input=[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there."}])
    api.create(input=[*made["output"], {"role": "user", "content": "More?"}])
    assert contents(model, 2)[1][1].endswith("Assistant: Hi there.")


@behaviour("bug-43")
def test_a_history_beyond_the_window_is_summarised_in_parts(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: Any) -> Reply | Refuse:
        text = request.body["messages"][-1]["content"]
        if len(text) > 6_000:
            return Refuse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
        seen.append(text)
        return Reply(text=f"notes {len(seen)}")

    with ScriptedUpstream(default=answer) as model, serving(tmp_path, model) as api:
        talk = [{"role": "assistant", "content": f"Fact {n}: " + "so it is, " * 80} for n in range(40)]
        compact(api, input=[{"role": "user", "content": "Tell."}, *talk])
    assert len(seen) > 5
    assert all(f"Fact {n}:" in "".join(seen) for n in range(40))
    assert all(f"notes {n}" in seen[n] for n in range(1, len(seen)))


@behaviour("bug-28")
def test_what_another_server_sealed_is_skipped_and_what_was_changed_refused(
    api: Driver, model: ScriptedUpstream
) -> None:
    model.script(Reply(text=NOTES), Reply(text="Fine."))
    foreign = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABforeign"}
    made = compact(api, input=[foreign, *TALK])
    api.create(input=[{"role": "user", "content": "a"}, foreign])
    assert [content for _, content in contents(model, 2)] == ["a"]
    changed = made["output"][-1] | {"encrypted_content": made["output"][-1]["encrypted_content"][:-8] + "AAAAAAAA"}
    reply = api.post(input=[changed, {"role": "user", "content": "a"}])
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_encrypted_content"
    assert reply.json()["error"]["param"] == "input[0].encrypted_content"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "model": None}, "model"),
        ({"input": "x", "tokenizer_encoding": "p50k_base"}, "tokenizer_encoding"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": "x", "prompt_cache_key": "k" * 65}, "prompt_cache_key"),
    ],
)
@behaviour("compact-shape")
def test_what_cannot_be_compacted_is_refused_by_name(api: Driver, body: dict[str, Any], param: str) -> None:
    reply = api.post("/responses/compact", **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


@behaviour("compact-shape")
def test_model_prompt_and_prefix_are_the_operators(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.models.append("writer")
    model.script(Reply(text="short"), Reply(text="Fine."))
    texts = "summarization_prompt: Sum it up., summary_prefix: 'So far:'"
    with serving(tmp_path, model, f"compaction: {{summarization_model: scripted/writer, {texts}}}") as api:
        made = compact(api, input=TALK, model=None, instructions="Be kind.", prompt_cache_key="k1")
        api.create(input=made["output"])
    body = json.loads(model.requests[0].raw)
    assert (body["model"], body["prompt_cache_key"]) == ("writer", "k1")
    assert body["messages"][0]["content"].startswith("Sum it up.")
    assert "Be kind." in body["messages"][0]["content"]
    assert contents(model, 2)[-1][1] == "So far:\n\nshort"


@behaviour("compact-shape")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # its own example does not fit its own types
def test_the_official_client_takes_the_result(server: Any, model: ScriptedUpstream) -> None:
    from openai import OpenAI

    model.script(Reply(text=NOTES), Reply(text=NOTES), Reply(text="Heron."))
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        made = client.responses.compact(model=MODEL, input=TALK)
        assert [item.type for item in made.output] == ["message", "message", "compaction"]
        response = client.responses.create(
            model=MODEL, input=[{"role": "user", "content": "b"}], previous_response_id=made.id
        )
        assert response.output_text == NOTES
        again = client.responses.create(model=MODEL, input=[*made.output, {"role": "user", "content": "c"}])
        assert again.output_text == "Heron."


@behaviour("compact-shape")
def test_the_strict_client_takes_what_its_types_can_hold(client: Any, model: ScriptedUpstream) -> None:
    """Its types have no place for a user's message in an output, against its own documentation."""
    model.script(Reply(text=NOTES))
    made = client.responses.compact(model=MODEL, input=[{"role": "assistant", "content": "All that I know. " * 9}])
    assert [item.type for item in made.output] == ["compaction"]
    assert client.responses.retrieve(made.id).output[0].type == "compaction"
