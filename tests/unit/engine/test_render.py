"""Items to model messages: every call is followed by its output, whatever order and ids the items came in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.behaviour.manifest import behaviour
from treadle.engine.history import visible
from treadle.engine.render import NO_FILE, NO_IMAGE, NO_OUTPUT, render
from treadle.engine.toolset import ToolSet, build
from treadle.ports import Capabilities, ImagePart, ModelMessage
from treadle.wire.items import Item, ItemReference, decode_input

PLAIN = Capabilities()


def items(*values: dict[str, Any]) -> list[Item]:
    found = [item for value in values for item in decode_input(Raw(json.dumps(value).encode()), "input")]
    return [item for item in found if not isinstance(item, ItemReference)]


def rendered(
    *values: dict[str, Any],
    can: Capabilities = PLAIN,
    tools: ToolSet | None = None,
    instructions: str | None = None,
) -> list[ModelMessage]:
    return render(visible(items(*values), lambda _: None), tools or ToolSet(), can, instructions)


def say(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def call(number: int | str = 1, name: str = "look", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": arguments} | more


def output(number: int | str = 1, value: Any = "seen") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": value}


def think(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def shape(messages: Sequence[ModelMessage]) -> list[tuple[str, Any]]:
    return [(m.role, m.content) for m in messages]


def test_text_and_calls_of_one_round_are_one_message() -> None:
    found = rendered(say("user", "q"), say("assistant", "Looking."), call(1), call(2), output(2, "b"), output(1, "a"))
    assert shape(found) == [("user", "q"), ("assistant", "Looking."), ("tool", "a"), ("tool", "b")]
    assert [made.id for made in found[1].calls] == ["c1", "c2"]


def test_text_after_its_calls_belongs_to_the_same_message() -> None:
    found = rendered(say("user", "q"), call(1), say("assistant", "Looking."), output(1))
    assert shape(found) == [("user", "q"), ("assistant", "Looking."), ("tool", "seen")]


def test_each_answer_of_the_assistant_is_a_message_of_its_own() -> None:
    found = rendered(say("assistant", "a"), say("assistant", "b"))
    assert shape(found) == [("assistant", "a"), ("assistant", "b")]


def test_an_unanswered_call_gets_an_answer() -> None:
    found = rendered(say("user", "q"), call(1), say("user", "never mind"))
    assert shape(found) == [("user", "q"), ("assistant", ""), ("tool", NO_OUTPUT), ("user", "never mind")]


def test_a_late_output_still_follows_its_call() -> None:
    found = rendered(say("user", "q"), call(1), say("user", "wait"), output(1, "late"))
    assert shape(found) == [("user", "q"), ("assistant", ""), ("tool", "late"), ("user", "wait")]


def test_an_output_before_its_call_is_its_output() -> None:
    assert shape(rendered(output(1, "early"), call(1))) == [("assistant", ""), ("tool", "early")]


def test_reused_call_ids_keep_each_output_with_its_call() -> None:
    found = rendered(call(0), output(0, "a"), say("user", "q"), call(0), output(0, "b"), output(0, "again"), call(0))
    assert [m.content for m in found if m.role == "tool"] == ["a", "b", NO_OUTPUT]


def test_a_cut_call_is_hidden_unless_it_was_answered() -> None:
    assert rendered(call(1, status="incomplete")) == []
    assert shape(rendered(call(1, status="incomplete"), output(1))) == [("assistant", ""), ("tool", "seen")]


def test_broken_arguments_are_replayed_as_an_object() -> None:
    (message, _) = rendered(call(1, arguments='{"path": "a'))
    assert json.loads(message.calls[0].arguments) == {"invalid_arguments": '{"path": "a'}


def test_pictures_of_an_output_follow_as_the_users() -> None:
    picture = {"type": "input_image", "image_url": "data:x"}
    found = rendered(call(1), call(2), output(1, [{"type": "input_text", "text": "t"}, picture]), output(2))
    assert [m.role for m in found] == ["assistant", "tool", "tool", "user"]
    assert isinstance(found[3].content, list)
    assert isinstance(found[3].content[0], ImagePart)


def test_what_a_model_cannot_read_becomes_a_note() -> None:
    blind = Capabilities(images=False, files=False)
    parts = [{"type": "input_image", "image_url": "data:x"}, {"type": "input_file", "file_data": "x"}]
    (message,) = rendered({"role": "user", "content": parts}, can=blind)
    assert message.content == f"{NO_IMAGE}\n{NO_FILE}"


@behaviour("bug-20")
def test_system_messages_are_merged_in_front_where_a_server_needs_that() -> None:
    given = (say("developer", "two"), say("user", "q"), say("system", "three"), say("user", "r"))
    found = rendered(*given, instructions="one")
    assert shape(found) == [("system", "one\n\ntwo\n\nthree"), ("user", "q"), ("user", "r")]
    anywhere = rendered(*given, instructions="one", can=Capabilities(system_anywhere=True, developer_role=True))
    assert [m.role for m in anywhere] == ["developer", "developer", "user", "developer", "user"]
    assert [m.content for m in anywhere] == ["one", "two", "q", "three", "r"]


@behaviour("bug-18")
def test_without_its_reasoning_a_call_is_still_there() -> None:
    found = rendered(say("user", "q"), think("Hm."), call(1), output(1))
    assert shape(found) == [("user", "q"), ("assistant", ""), ("tool", "seen")]
    assert found[1].reasoning is None


def test_reasoning_goes_back_in_the_current_turn_only_and_only_where_it_is_wanted() -> None:
    takes = Capabilities(reasoning_back="reasoning_content")
    given = (say("user", "q"), think("Old."), call(1), output(1), say("user", "r"), think("New."), call(2), output(2))
    found = rendered(*given, can=takes)
    assert [m.reasoning for m in found if m.role == "assistant"] == [None, "New."]


def test_a_namespaced_call_is_replayed_under_the_name_the_model_knows() -> None:
    child = {"type": "function", "name": "hire"}
    tools = build([Raw(json.dumps({"type": "namespace", "name": "crew", "tools": [child]}).encode())], Raw(b"null"), {})
    found = rendered(call(1, "hire", namespace="crew"), output(1), tools=tools)
    assert found[0].calls[0].name == "crew__hire"
    undeclared = rendered(call(1, "hire", namespace="crew"), output(1))
    assert undeclared[0].calls[0].name == "crew__hire"


some_items = st.lists(
    st.one_of(
        st.builds(say, st.sampled_from(["user", "assistant", "system", "developer"]), st.sampled_from(["", "a"])),
        st.builds(call, st.integers(0, 2), arguments=st.sampled_from(["{}", "", "{"])),
        st.builds(
            output, st.integers(0, 2), st.sampled_from(["", "x", [], [{"type": "input_image", "image_url": "u"}]])
        ),
        st.just(think("t")),
    ),
    max_size=12,
)


@given(some_items, st.booleans(), st.sampled_from(["", "reasoning"]))
def test_a_call_and_its_output_always_stand_together(values: list[dict[str, Any]], anywhere: bool, back: Any) -> None:
    can = Capabilities(system_anywhere=anywhere, reasoning_back=back)
    owed: list[str] = []
    for number, message in enumerate(rendered(*values, can=can)):
        if message.role == "tool":
            assert message.call_id == owed.pop(0)
            continue
        assert owed == []
        owed = [made.id for made in message.calls]
        if not anywhere:
            assert message.role not in ("system", "developer") or number == 0
    assert owed == []


@pytest.mark.parametrize("cut", range(1, 9))
def test_history_only_grows_at_its_end(cut: int) -> None:
    """Model servers cache by prefix: a turn must not change bytes before its own input."""
    values = [say("user", "a"), say("assistant", "b"), say("user", "c"), say("assistant", "d"), say("user", "e"),
              say("assistant", "f"), say("user", "g"), say("assistant", "h")]  # fmt: skip
    assert rendered(*values)[:cut] == rendered(*values[:cut])
