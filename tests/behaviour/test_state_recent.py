"""The cache of recent histories changes nothing that a client or a model can see."""

from __future__ import annotations

from tests.behaviour.conftest import MODEL, Driver, sent
from treadle.testing.upstream import Reply, ScriptedUpstream

TURNS = 6


def _chain(api: Driver, model: ScriptedUpstream, first: dict[str, str]) -> str:
    """A chain long enough to be kept in memory; gives the last response's id."""
    link = first
    for turn in range(TURNS):
        model.script(Reply(text=f"answer {turn}"))
        link = {"previous_response_id": api.create(input=f"question {turn}", **link)["id"]}
    return link["previous_response_id"]


def _said(turns: range) -> list[dict[str, str]]:
    return [
        message
        for turn in turns
        for message in (
            {"role": "user", "content": f"question {turn}"},
            {"role": "assistant", "content": f"answer {turn}"},
        )
    ]


def test_the_model_sees_the_whole_chain_in_order(api: Driver, model: ScriptedUpstream) -> None:
    last = _chain(api, model, {})
    model.script(Reply(text="done"), Reply(text="done again"))
    for number, asked in ((TURNS + 1, "and?"), (TURNS + 2, "or?")):  # the second one branches from the same point
        api.create(input=asked, previous_response_id=last)
        assert sent(model, number) == [*_said(range(TURNS)), {"role": "user", "content": asked}]


def test_an_item_taken_out_of_a_conversation_leaves_the_chains_that_branched_from_it(
    api: Driver, model: ScriptedUpstream
) -> None:
    secret = {"type": "message", "role": "user", "content": "a secret"}
    conversation = api.post("/conversations", items=[secret]).json()["id"]
    model.script(Reply(text="noted"))
    first = api.create(input="Hello.", conversation=conversation)["id"]
    last = _chain(api, model, {"previous_response_id": first})
    assert "a secret" in str(sent(model, TURNS + 1))
    (item,) = [i for i in api.get(f"/conversations/{conversation}/items").json()["data"] if "a secret" in str(i)]
    assert api.delete(f"/conversations/{conversation}/items/{item['id']}").status_code == 200
    model.script(Reply(text="done"))
    api.create(input="and?", previous_response_id=last)
    assert "a secret" not in str(sent(model, TURNS + 2))


def test_a_deleted_response_cannot_be_continued_from_memory(api: Driver, model: ScriptedUpstream) -> None:
    last = _chain(api, model, {})
    assert api.delete(f"/responses/{last}").status_code == 200
    refused = api.post(input="and?", previous_response_id=last, model=MODEL)
    assert refused.json()["error"]["code"] == "previous_response_not_found"
