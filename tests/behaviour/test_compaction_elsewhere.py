"""Compaction is a step of the loop, so it is the same in the background, on a WebSocket, and with things too large."""

from __future__ import annotations

from typing import Any

from tests.behaviour.background_kit import begin, outcome
from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.kit import kinds
from tests.behaviour.manifest import behaviour
from tests.behaviour.socket_kit import opened
from treadle.testing import Reply, ScriptedUpstream
from treadle.testing.server import RunningServer
from treadle.testing.turns import Tokens

LONG = "The ship sails on and nothing much happens on this day either. " * 20
NOTES = "NOTES: the word is heron."
AUTO = [{"type": "compaction", "compact_threshold": 300}]


def script(model: ScriptedUpstream) -> None:
    model.script(Reply(text=LONG, usage=Tokens(20, 290)), Reply(text=NOTES), Reply(text="Heron."), Reply(text="Yes."))


def shown(model: ScriptedUpstream, number: int) -> list[Any]:
    found = [message["content"] for message in sent(model, number)]
    return [NOTES if isinstance(text, str) and text.endswith(NOTES) else text for text in found]


LAST = ["The word is heron.", NOTES, "The word?", "Heron.", "Sure?"]


@behaviour("compact-auto")
def test_in_the_background(api: Driver, model: ScriptedUpstream) -> None:
    script(model)
    first = outcome(api, begin(api, input="The word is heron.", context_management=AUTO)["id"])
    queued = begin(api, input="The word?", previous_response_id=first["id"], context_management=AUTO)
    second = outcome(api, queued["id"])
    assert (second["status"], kinds(second)) == ("completed", ["compaction", "message"])
    api.create(input="Sure?", previous_response_id=second["id"])
    assert shown(model, 4) == LAST


@behaviour("compact-auto")
def test_on_a_connection_of_which_nothing_is_stored(server: RunningServer, model: ScriptedUpstream) -> None:
    script(model)
    with opened(server) as socket:
        first = socket.turn(input="The word is heron. " + LONG, store=False, context_management=AUTO)
        second = socket.turn(input="The word?", previous_response_id=first["id"], store=False, context_management=AUTO)
        assert kinds(second) == ["compaction", "message"]
        socket.turn(input="Sure?", previous_response_id=second["id"], store=False)
    assert shown(model, 4) == LAST[1:]


@behaviour("compact-auto")
def test_what_is_too_large_to_be_inside_is_found_beside_it(api: Driver, model: ScriptedUpstream) -> None:
    huge = "word " * 50_000
    talk = [{"role": "user", "content": "The word is heron."}, {"role": "assistant", "content": LONG}]
    model.script(Reply(text=NOTES), Reply(text="Heron."), Reply(text="Yes."), Reply(text="Yes."))
    made = api.create(input=[*talk, {"role": "user", "content": huge}], context_management=AUTO)
    assert kinds(made) == ["compaction", "message"]
    assert len(made["output"][0]["encrypted_content"]) < 10_000
    api.create(input="Sure?", previous_response_id=made["id"])
    assert shown(model, 3) == ["The word is heron.", NOTES, huge, "Heron.", "Sure?"]
    whole = [*talk, {"role": "user", "content": huge}, *made["output"], {"role": "user", "content": "Sure?"}]
    assert text_of(api.create(input=whole, store=False)) == "Yes."
    assert shown(model, 4) == shown(model, 3)


@behaviour("compact-auto")
def test_compacted_again_and_again_with_the_word_still_known(api: Driver, model: ScriptedUpstream) -> None:
    def answer(request: Any) -> Reply:
        first = request.body["messages"][0]
        if first["role"] == "system":
            return Reply(text=NOTES if "heron" in str(request.body) else "lost")
        return Reply(text=LONG, usage=Tokens(0, 0))

    model.default = answer
    previous, compactions = None, 0
    for turn in range(8):
        question = "The word is heron. " + LONG if turn == 0 else f"Go on {turn}."
        made = api.create(input=question, previous_response_id=previous, context_management=AUTO)
        previous, compactions = made["id"], compactions + kinds(made).count("compaction")
    assert compactions > 4
    assert shown(model, len(model.requests)).count(NOTES) == 1
    assert "lost" not in str(shown(model, len(model.requests)))
