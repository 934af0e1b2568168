"""What is written down, what is not, and what is shown of it again."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, sent, text_of
from tests.behaviour.manifest import behaviour
from treadle.testing.frames import parse_sse
from treadle.testing.upstream import Call, Refuse, Reply, ScriptedUpstream

SEALED = "reasoning.encrypted_content"
MARKER = "Kolibri-7731"
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def at_rest(folder: Path, text: str) -> list[str]:
    """The files in the data folder that hold `text`: database, write-ahead log and whatever else there is."""
    return [file.name for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


@behaviour("bug-37")
@pytest.mark.parametrize("conversation", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", ["completed", "failed"])
def test_with_store_false_nothing_is_written(
    api: Driver, model: ScriptedUpstream, tmp_path: Path, conversation: bool, stream: bool, ending: str
) -> None:
    model.default = Reply(text=MARKER, reasoning=MARKER) if ending == "completed" else Refuse(500)
    more: dict[str, Any] = {"metadata": {"m": MARKER}, "instructions": MARKER}
    if conversation:
        more["conversation"] = api.post("/conversations").json()["id"]
    reply = api.post(input=MARKER, store=False, stream=stream, **more)
    assert at_rest(tmp_path, MARKER) == []
    assert api.get("/responses").json()["data"] == []
    if ending == "completed":
        response = parse_sse(reply.content)[-1]["response"] if stream else reply.json()
        assert response["store"] is False
        assert api.get(f"/responses/{response['id']}").status_code == 404
        assert api.get(f"/responses/{response['id']}/input_items").status_code == 404
        assert api.delete(f"/responses/{response['id']}").status_code == 404
        error = api.post(input="x", previous_response_id=response["id"]).json()["error"]
        assert error["code"] == "previous_response_not_found"
        assert "store" in error["message"]
    if conversation:
        assert api.get(f"/conversations/{more['conversation']}/items").json()["data"] == []


@behaviour("bug-37")
def test_the_marker_would_be_found(api: Driver, model: ScriptedUpstream, tmp_path: Path) -> None:
    """The search above can fail."""
    model.script(Reply(text="Fine."))
    api.create(input=MARKER)
    assert at_rest(tmp_path, MARKER)


@behaviour("bug-41")
def test_thirty_streams_and_their_readers_never_meet_a_locked_database(api: Driver, model: ScriptedUpstream) -> None:
    model.default = Reply(text="one two three four five", chunks=5)

    def stream(number: int) -> list[str]:
        statuses = []
        last = None
        for turn in range(3):
            final = api.stream(input=f"{number}.{turn}", previous_response_id=last)[-1]["response"]
            last = final["id"]
            statuses.append(final["status"])
        return statuses

    def poll(_: int) -> list[int]:
        return [api.get("/responses?limit=10").status_code for _ in range(10)]

    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        streams = [pool.submit(stream, n) for n in range(30)]
        polls = [pool.submit(poll, n) for n in range(8)]
        assert [found.result(50) for found in streams] == [["completed"] * 3] * 30
        assert [found.result(50) for found in polls] == [[200] * 10] * 8


@behaviour("bug-42", "input-nul")
def test_a_nul_character_survives_everywhere(api: Driver, model: ScriptedUpstream) -> None:
    tools = [{"type": "function", "name": "look", "description": "nul\x00"}]
    model.script(Reply(text="a\x00b", calls=[Call("look", {"q": "c\x00d"})]), Reply(text="Fine."), Reply(text="Fine."))
    first = api.stream(input="x\x00y", instructions="i\x00", metadata={"k\x00": "v\x00"}, tools=tools)[-1]["response"]
    assert text_of(first) == "a\x00b"
    assert first["metadata"] == {"k\x00": "v\x00"}
    assert api.get(f"/responses/{first['id']}").json() == first
    assert sent(model)[1]["content"] == "x\x00y"
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "z\x00"}
    second = api.create(input=[output], previous_response_id=first["id"], user="u\x00")
    assert sent(model, 2)[-1]["content"] == "z\x00"
    (kept,) = api.get(f"/responses/{second['id']}/input_items").json()["data"]
    assert kept["output"] == "z\x00"
    conversation = api.post(
        "/conversations", metadata={"k": "\x00"}, items=[{"role": "user", "content": "\x00"}]
    ).json()
    assert conversation["metadata"] == {"k": "\x00"}
    api.create(input="\x00", conversation=conversation["id"])
    listed = api.get(f"/conversations/{conversation['id']}/items?order=asc").json()["data"]
    assert [item["content"][0]["text"] for item in listed] == ["\x00", "\x00", "Fine."]


def thought(response: dict[str, Any]) -> dict[str, Any]:
    (found,) = (item for item in response["output"] if item["type"] == "reasoning")
    return found


def test_sealed_reasoning_makes_the_round_trip_without_a_store(api: Driver, model: ScriptedUpstream) -> None:
    """Its text reaches the model again only where the model server takes reasoning back; it must never break a turn."""
    model.script(Reply(text="42", reasoning=MARKER), Reply(text="Still 42."), Reply(text="Still."))
    request: dict[str, Any] = {"store": False, "include": [SEALED]}
    first = api.create(input="6 x 7?", **request)
    sealed = thought(first)
    assert sealed["encrypted_content"]
    assert MARKER not in sealed["encrypted_content"]
    slim = {"type": "reasoning", "id": sealed["id"], "summary": [], "encrypted_content": sealed["encrypted_content"]}
    again = {"role": "user", "content": "Sure?"}
    for carried in (first["output"], [slim, first["output"][1]]):
        given = [{"role": "user", "content": "6 x 7?"}, *carried, again]
        assert api.create(input=given, **request)["status"] == "completed"
        assert [m["content"] for m in sent(model, len(model.requests))] == ["6 x 7?", "42", "Sure?"]


def test_changed_sealed_reasoning_is_refused_and_foreign_skipped(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="42", reasoning="Hm."), Reply(text="Fine."))
    sealed = thought(api.create(input="x", store=False, include=[SEALED]))["encrypted_content"]
    asked = {"role": "user", "content": "x"}
    middle = len(sealed) // 2
    for changed in (
        sealed[:-2],
        sealed[:middle] + ("A" if sealed[middle] != "A" else "B") + sealed[middle + 1 :],
        sealed[:6],
    ):
        item = {"type": "reasoning", "summary": [], "encrypted_content": changed}
        reply = api.post(input=[asked, item], store=False)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "invalid_encrypted_content")
        assert error["param"] == "input[1].encrypted_content"
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA" + sealed[8:]}
    assert api.create(input=[asked, foreign])["status"] == "completed"


def shown(api: Driver, path: str, *include: str) -> Any:
    return api.get(path + "?" + "&".join(f"include[]={name}" for name in include)).json()


def test_sealed_reasoning_is_shown_only_on_request(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="a", reasoning="Hm."), Reply(text="b", reasoning="Hm."))
    plain = api.create(input="x")
    assert "encrypted_content" not in thought(plain)
    conversation = api.post("/conversations").json()["id"]
    made = api.create(input="x", include=[SEALED], conversation=conversation)
    path = f"/responses/{made['id']}"
    assert "encrypted_content" not in thought(shown(api, path))
    assert thought(shown(api, path, SEALED)) == thought(made)
    assert SEALED.split(".")[1] not in api.get("/responses").text
    items = f"/conversations/{conversation}/items"
    assert "encrypted_content" not in api.get(items).text
    assert thought({"output": shown(api, items, SEALED)["data"]}) == thought(made)
    one = f"{items}/{thought(made)['id']}"
    assert "encrypted_content" not in shown(api, one)
    assert shown(api, one, SEALED) == thought(made)


def test_logprobs_are_shown_only_on_request(api: Driver, model: ScriptedUpstream) -> None:
    flag = "message.output_text.logprobs"
    model.script(Reply(text="a b"), Reply(text="a b"))
    assert api.create(input="x")["output"][0]["content"][0]["logprobs"] == []
    made = api.create(input="x", include=[flag])
    assert made["output"][0]["content"][0]["logprobs"]
    path = f"/responses/{made['id']}"
    assert shown(api, path)["output"][0]["content"][0]["logprobs"] == []
    assert shown(api, path, flag) == made


def test_picture_data_is_shown_only_on_request(api: Driver, model: ScriptedUpstream) -> None:
    flag = "message.input_image.image_url"
    model.script(Reply(text="A dot."))
    parts = [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": PIXEL, "detail": "low"}]
    given = [{"role": "user", "content": parts}]
    conversation = api.post("/conversations", items=given).json()["id"]
    made = api.create(input=given, conversation=conversation)
    items = f"/conversations/{conversation}/items"
    for path in (f"/responses/{made['id']}/input_items", items):
        hidden = [item for item in shown(api, path)["data"] if item["role"] == "user"][-1]
        assert hidden["content"][1] == {"type": "input_image", "detail": "low", "image_url": None, "file_id": None}
        whole = [item for item in shown(api, path, flag)["data"] if item["role"] == "user"][-1]
        assert whole["content"][1]["image_url"] == PIXEL
        assert shown(api, f"{items}/{whole['id']}", flag) == whole
        assert shown(api, f"{items}/{whole['id']}") == hidden
    assert PIXEL not in api.get("/responses").text


HOSTED: list[tuple[str, dict[str, Any], str]] = [
    ("file_search_call.results", {"type": "file_search_call", "queries": [], "results": [{"text": MARKER}]}, "results"),
    ("code_interpreter_call.outputs", {"type": "code_interpreter_call", "outputs": [{"logs": MARKER}]}, "outputs"),
    (
        "web_search_call.action.sources",
        {"type": "web_search_call", "action": {"type": "search", "query": "q", "sources": [{"url": MARKER}]}},
        "action",
    ),
    (
        "computer_call_output.output.image_url",
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": MARKER},
        },
        "output",
    ),
]


@pytest.mark.parametrize(("flag", "item", "field"), HOSTED, ids=[flag for flag, _, _ in HOSTED])
def test_what_hosted_tools_found_is_shown_only_on_request(
    api: Driver, model: ScriptedUpstream, flag: str, item: dict[str, Any], field: str
) -> None:
    model.script(Reply(text="Fine."))
    made = api.create(input=[item, {"role": "user", "content": "x"}])
    path = f"/responses/{made['id']}/input_items"
    assert MARKER not in json.dumps(shown(api, path))
    assert shown(api, path, flag)["data"][-1][field] == item[field]


def test_a_stored_response_is_read_back_as_it_was_sent(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine.", reasoning="Hm.", calls=[Call("look")]))
    final = api.stream(
        input="x",
        model=MODEL,
        instructions="Be brief.",
        tools=[{"type": "function", "name": "look"}, {"type": "web_search", "search_context_size": "low"}],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "low", "summary": "auto"},
        metadata={"a": "b"},
        temperature=1,
        top_p=0.5,
        top_logprobs=2,
        max_output_tokens=100,
        max_tool_calls=3,
        parallel_tool_calls=False,
        truncation="auto",
        service_tier="flex",
        prompt_cache_key="k",
        safety_identifier="s",
        user="u",
    )[-1]["response"]
    read = shown(api, f"/responses/{final['id']}", "message.output_text.logprobs")
    assert read == final
    assert [*read] == [*final]
