"""Continuing from an earlier response: what the model sees, what is stored, and what a deletion leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, Driver, httpx2, sent, text_of
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream

PIXEL = "data:image/png;base64,iVBORw0KGgo="
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


def contents(model: ScriptedUpstream, number: int) -> list[Any]:
    return [m["content"] for m in sent(model, number)]


def input_items(api: Driver, response_id: str, query: str = "order=asc") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/responses/{response_id}/input_items?{query}").json()["data"]
    return found


def answer(call: dict[str, Any], text: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text, **more}


@behaviour("bug-33")
@pytest.mark.parametrize("following", ["output", "output and text", "text"])
def test_a_turn_that_called_tools_is_continued(api: Driver, model: ScriptedUpstream, following: str) -> None:
    model.script(Reply(text="Let me see.", calls=[Call("look"), Call("look")]), Reply(text="Sunny."))
    first = api.create(input="Weather?", tools=TOOLS)
    one, two = (item for item in first["output"] if item["type"] == "function_call")
    given: list[Any] = [answer(one, "sun"), answer(two, "wind")] if "output" in following else []
    given += [{"role": "user", "content": "Well?"}] if "text" in following else []
    second = api.create(input=given, tools=TOOLS, previous_response_id=first["id"])
    assert text_of(second) == "Sunny."
    user, assistant, *rest = sent(model, 2)
    assert (user["content"], assistant["content"]) == ("Weather?", "Let me see.")
    assert [call["id"] for call in assistant["tool_calls"]] == [one["call_id"], two["call_id"]]
    tools = [m for m in rest if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in tools] == [one["call_id"], two["call_id"]]
    if "output" in following:
        assert [m["content"] for m in tools] == ["sun", "wind"]
    if "text" in following:
        assert rest[-1] == {"role": "user", "content": "Well?"}


@behaviour("bug-34")
def test_the_third_turn_sees_everything_before_it_in_order(api: Driver, model: ScriptedUpstream) -> None:
    model.script(
        Reply(text="A dot."), Reply(reasoning="Hm.", calls=[Call("look")]), Reply(text="Seen."), Reply(text="Blue.")
    )
    picture = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PIXEL}]
    first = api.create(input=[{"role": "user", "content": picture}])
    second = api.create(input="Look closer.", tools=TOOLS, previous_response_id=first["id"])
    call = second["output"][-1]
    third = api.create(input=[answer(call, "blue")], tools=TOOLS, previous_response_id=second["id"])
    api.create(input="Colour?", tools=TOOLS, previous_response_id=third["id"])
    seen = sent(model, 4)
    assert [m["role"] for m in seen] == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert seen[0]["content"][1]["image_url"]["url"] == PIXEL
    assert [m["content"] for m in (seen[1], seen[2], seen[4], seen[5], seen[6])] == [
        "A dot.",
        "Look closer.",
        "blue",
        "Seen.",
        "Colour?",
    ]
    assert sent(model, 3) == seen[:5]


@behaviour("bug-21")
def test_what_a_user_says_twice_is_heard_twice(api: Driver, model: ScriptedUpstream) -> None:
    """Also from clients that give each message the same id."""
    for given in ("yes", [{"role": "user", "content": "yes", "id": "msg_user"}]):
        model.script(Reply(text="Go on?"), Reply(text="Go on?"), Reply(text="Done."))
        last = api.create(input=given)
        for _ in range(2):
            last = api.create(input=given, previous_response_id=last["id"])
        assert contents(model, len(model.requests)) == ["yes", "Go on?", "yes", "Go on?", "yes"]
    model.script(Reply(text="Done."))
    api.create(input=[{"role": "user", "content": "yes", "id": "msg_user"}] * 2)
    assert contents(model, len(model.requests)) == ["yes", "yes"]


def test_an_id_used_again_for_something_else_loses_nothing(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="a"), Reply(text="b"))
    first = api.create(input=[{"role": "user", "content": "one", "id": "msg_0"}])
    second = api.create(input=[{"role": "user", "content": "two", "id": "msg_0"}], previous_response_id=first["id"])
    assert contents(model, 2) == ["one", "a", "two"]
    (kept,) = input_items(api, second["id"])
    assert kept["id"] != "msg_0"


@pytest.mark.parametrize("form", ["whole", "references", "without ids", "trimmed"])
def test_own_items_sent_again_reach_the_model_once(api: Driver, model: ScriptedUpstream, form: str) -> None:
    model.script(Reply(text="Let me see.", reasoning="Hm.", calls=[Call("look")]), Reply(text="Sunny."))
    first = api.create(input="Weather?", tools=TOOLS)
    call = first["output"][-1]
    own: list[dict[str, Any]] = [*input_items(api, first["id"]), *first["output"]]
    match form:
        case "references":
            own = [{"type": "item_reference", "id": item["id"]} for item in own]
        case "without ids":
            own = [{k: v for k, v in call.items() if k not in ("id", "status")}]
        case "trimmed":
            own = [
                {k: v for k, v in item.items() if k != "status"}
                | (
                    {"content": [{"type": p["type"], "text": p["text"]} for p in item["content"]]}
                    if "role" in item
                    else {}
                )
                for item in own
            ]
        case _:
            pass
    second = api.create(input=[*own, answer(call, "sun")], tools=TOOLS, previous_response_id=first["id"])
    assert text_of(second) == "Sunny."
    assert [m["role"] for m in sent(model, 2)] == ["user", "assistant", "tool"]
    assert len(sent(model, 2)[1]["tool_calls"]) == 1
    assert [item["type"] for item in input_items(api, second["id"])] == ["function_call_output"]


def test_a_reference_brings_an_item_of_another_response(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="A secret."), Reply(text="Fine."))
    first = api.create(input="x")
    reference = {"id": first["output"][0]["id"]}
    second = api.create(input=[{"role": "user", "content": "y"}, reference, {"role": "user", "content": "z"}])
    assert contents(model, 2) == ["y", "A secret.", "z"]
    assert [item["id"] for item in input_items(api, second["id"])][1] == reference["id"]


@behaviour("bug-36")
def test_a_running_response_can_be_read(api: Driver, model: ScriptedUpstream) -> None:
    go = Gate()
    model.script(Reply(text="one two three", held={2: go}))
    with (
        httpx2.Client(timeout=20) as other,
        other.stream(
            "POST", f"{api.server.url}/responses", json={"model": MODEL, "input": "x", "stream": True}
        ) as live,
    ):
        lines = live.iter_lines()
        response_id = next(line for line in lines if '"resp_' in line).split('"id":"', 1)[1].split('"', 1)[0]
        found = api.get(f"/responses/{response_id}").json()
        assert (found["id"], found["status"], found["usage"]) == (response_id, "in_progress", None)
        assert input_items(api, response_id)[0]["content"][0]["text"] == "x"
        refused = api.post(input="y", previous_response_id=response_id)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
        assert api.delete(f"/responses/{response_id}").status_code == 400
        go.set()
        assert "response.completed" in "".join(lines)
    assert api.get(f"/responses/{response_id}").json()["status"] == "completed"


@behaviour("bug-36")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", [Refuse(500), Refuse(400), Drop(after=2)], ids=["500", "400", "broken off"])
def test_a_failed_response_is_kept_with_its_error_and_input(
    api: Driver, model: ScriptedUpstream, stream: bool, refusal: Refuse | Drop
) -> None:
    model.default = refusal
    api.post(input="Will it work?", stream=stream)
    (kept,) = api.get("/responses").json()["data"]
    assert kept["status"] == "failed"
    assert kept["error"]["code"] in ("server_error", "invalid_prompt")
    assert kept["error"]["message"]
    assert kept["input"][0]["content"][0]["text"] == "Will it work?"
    assert input_items(api, kept["id"])[0]["content"][0]["text"] == "Will it work?"
    continued = api.post(input="And now?", previous_response_id=kept["id"])
    assert (continued.status_code, continued.json()["error"]["param"]) == (400, "previous_response_id")


def test_branches_see_their_own_past_and_a_deletion_hides_one_link(api: Driver, model: ScriptedUpstream) -> None:
    model.default = lambda request: Reply(text=f"re {request.body['messages'][-1]['content']}")
    a = api.create(input="A")["id"]
    b = api.create(input="B", previous_response_id=a)["id"]
    c = api.create(input="C", previous_response_id=a)["id"]
    d = api.create(input="D", previous_response_id=b)["id"]
    assert contents(model, 4) == ["A", "re A", "B", "re B", "D"]
    assert contents(model, 3) == ["A", "re A", "C"]
    assert api.delete(f"/responses/{b}").json() == {"id": b, "object": "response", "deleted": True}
    for path in (f"/responses/{b}", f"/responses/{b}/input_items"):
        assert api.get(path).status_code == 404
    assert api.delete(f"/responses/{b}").status_code == 404
    assert b not in api.get("/responses").text.replace(f'"previous_response_id":"{b}"', "")
    refused = api.post(input="x", previous_response_id=b).json()["error"]
    assert refused["code"] == "previous_response_not_found"
    api.create(input="E", previous_response_id=d)
    assert contents(model, 5) == ["A", "re A", "B", "re B", "D", "re D", "E"]
    api.create(input="F", previous_response_id=c)
    assert contents(model, 6) == ["A", "re A", "C", "re C", "F"]


def test_any_earlier_response_can_be_branched_from(api: Driver, model: ScriptedUpstream) -> None:
    model.default = lambda request: Reply(text=f"re {request.body['messages'][-1]['content']}")
    chain = [api.create(input="0")["id"]]
    for n in range(1, 6):
        chain.append(api.create(input=str(n), previous_response_id=chain[-1])["id"])
    for n, link in enumerate(chain):
        api.create(input="x", previous_response_id=link)
        past = [text for m in range(n + 1) for text in (str(m), f"re {m}")]
        assert contents(model, len(model.requests)) == [*past, "x"]


@behaviour("also-input-items")
def test_input_items_page_over_input_that_came_without_ids(api: Driver, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine."))
    response = api.create(input=[{"role": "user", "content": str(n)} for n in range(25)])
    url = f"/responses/{response['id']}/input_items"
    for order, expected in (("asc", range(25)), ("desc", reversed(range(25)))):
        found, after = [], ""
        while True:
            page = api.get(f"{url}?limit=7&order={order}&after={after}").json()
            assert page["object"] == "list"
            assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
            found += [item["content"][0]["text"] for item in page["data"]]
            if not page["has_more"]:
                break
            after = page["last_id"]
        assert found == [str(n) for n in expected]
    assert len(api.get(url).json()["data"]) == 20
    assert api.get(f"{url}?after=msg_nobody").json()["error"]["param"] == "after"


@behaviour("also-input-items")
def test_the_official_client_pages_by_itself(client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Fine."))
    made = client.responses.create(model=MODEL, input=[{"role": "user", "content": str(n)} for n in range(25)])
    found = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=10, order="asc")]
    assert found == [str(n) for n in range(25)]


def test_stored_responses_page_newest_first_and_by_model(api: Driver, model: ScriptedUpstream) -> None:
    model.default = Reply(text="Fine.")
    made = [api.create(input="x", model=name)["id"] for name in (MODEL, "scripted", MODEL, "scripted", MODEL)]
    first = api.get("/responses?limit=2").json()
    assert [r["id"] for r in first["data"]] == made[:2:-1]
    assert first["has_more"] is True
    second = api.get(f"/responses?limit=3&after={first['last_id']}").json()
    assert ([r["id"] for r in second["data"]], second["has_more"]) == (made[2::-1], False)
    mine = api.get("/responses?model=scripted&order=asc").json()
    assert [r["id"] for r in mine["data"]] == [made[1], made[3]]
