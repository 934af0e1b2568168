"""Usage, limits and reasoning as model servers really report them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.kit import FUNCTION, LOOKUP, Lookup, both, final, fragment, kinds, raw, serving, thoughts, types
from tests.behaviour.manifest import behaviour
from treadle.testing.turns import chunk, sse
from treadle.testing.upstream import Call, Raw, Reply, ScriptedUpstream, Tokens


def usage(response: dict[str, Any]) -> tuple[int, int, int, int, int]:
    found = response["usage"]
    assert all(type(found[key]) is int for key in ("input_tokens", "output_tokens", "total_tokens"))
    cached, reasoning = (
        found["input_tokens_details"]["cached_tokens"],
        found["output_tokens_details"]["reasoning_tokens"],
    )
    return found["input_tokens"], found["output_tokens"], found["total_tokens"], cached, reasoning


@behaviour("bug-15")
def test_usage_is_the_sum_over_all_rounds(tmp_path: Path, model: ScriptedUpstream) -> None:
    rounds = [Reply(calls=[Call("look")], usage=Tokens(10, 5, 4, 1)), Reply(text="Done.", usage=Tokens(20, 7, 8, 2))]
    model.script(*rounds, *rounds)
    with serving(tmp_path, model, tool=Lookup()) as api:
        streamed = final(api.stream(input="Look.", tools=[LOOKUP]))
        assert usage(streamed) == usage(api.create(input="Look.", tools=[LOOKUP])) == (30, 12, 42, 12, 3)
        assert usage(api.get(f"/responses/{streamed['id']}").json()) == (30, 12, 42, 12, 3)


@behaviour("bug-15")
@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (None, (0, 0, 0, 0, 0)),
        ({}, (0, 0, 0, 0, 0)),
        ({"prompt_tokens": None, "completion_tokens": None}, (0, 0, 0, 0, 0)),
        ({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None}, (3, 4, 7, 0, 0)),
        ({"prompt_tokens": 3.0, "completion_tokens": "4"}, (3, 4, 7, 0, 0)),
        ({"prompt_tokens": 10, "completion_tokens": 4, "prompt_cache_hit_tokens": 6}, (10, 4, 14, 6, 0)),
        (
            {"prompt_tokens": 3, "completion_tokens": -1, "prompt_tokens_details": {"cached_tokens": None}},
            (3, 0, 3, 0, 0),
        ),
    ],
)
def test_any_report_of_usage_becomes_whole_numbers(
    api: Driver, model: ScriptedUpstream, reported: Any, expected: tuple[int, ...]
) -> None:
    last = {**chunk(), "usage": reported}
    script = Raw([sse(chunk({"content": "Hi."}), chunk({}, finish="stop"), last)])
    assert usage(both(api, model, script, input="Hi")) == expected


@behaviour("bug-15")
def test_absurd_usage_does_not_break_the_answer(api: Driver, model: ScriptedUpstream) -> None:
    script = Raw(
        [sse(chunk({"content": "Hi."}, finish="stop", usage={"prompt_tokens": 10**30, "completion_tokens": 1e300}))]
    )
    assert text_of(both(api, model, script, input="Hi")) == "Hi."


@behaviour("bug-15")
def test_usage_that_grows_with_every_chunk_counts_once(api: Driver, model: ScriptedUpstream) -> None:
    counts = [{"prompt_tokens": 5, "completion_tokens": n} for n in (1, 2, 3)]
    script = Raw(
        [sse(*(chunk({"content": "x"}, usage=one) for one in counts), chunk({}, finish="stop", usage=counts[-1]))]
    )
    assert usage(both(api, model, script, input="Hi")) == (5, 3, 8, 0, 0)


@behaviour("bug-16")
@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("length", "max_output_tokens"),
        ("content_filter", "content_filter"),
        ("MAX_TOKENS", "max_output_tokens"),
        ("content_filter: SAFETY", "content_filter"),
    ],
)
@pytest.mark.parametrize(
    "deltas", [[{"content": "Half an"}], [{"reasoning_content": "Let me"}], []], ids=["text", "thought", "none"]
)
def test_a_cut_answer_is_incomplete_with_the_reason(
    api: Driver, model: ScriptedUpstream, finish: str, reason: str, deltas: list[dict[str, str]]
) -> None:
    response = both(api, model, raw(*deltas, finish=finish), input="Hi")
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert [item["status"] for item in response["output"]] == ["incomplete"] * len(deltas)


@behaviour("bug-16")
def test_the_item_that_was_cut_is_the_last_and_the_stream_says_so(api: Driver, model: ScriptedUpstream) -> None:
    script = raw({"reasoning_content": "Hm."}, {"content": "Half an"}, finish="length")
    model.script(script)
    events = api.stream(input="Hi")
    assert types(events)[-1] == "incomplete"
    assert [item["status"] for item in final(events)["output"]] == ["completed", "incomplete"]


@behaviour("bug-16")
def test_a_call_cut_by_the_limit_is_not_run_and_does_not_spoil_the_history(
    tmp_path: Path, model: ScriptedUpstream
) -> None:
    cut = raw({"content": "Looking."}, fragment(id="call_a", name="look", arguments='{"a": '), finish="length")
    model.script(cut, Reply(text="Going on."))
    tool = Lookup()
    with serving(tmp_path, model, tool=tool) as api:
        response = api.create(input="Look.", tools=[LOOKUP])
        assert response["status"] == "incomplete"
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
        api.create(input="Go on.", tools=[LOOKUP], previous_response_id=response["id"])
    assert tool.arguments == []
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "user"]
    assert "tool_calls" not in sent(model, 2)[1]


@behaviour("bug-16")
def test_a_budget_spent_over_several_rounds_ends_the_turn(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("look")], usage=Tokens(10, 30)), Reply(calls=[Call("look")], usage=Tokens(10, 20)))
    with serving(tmp_path, model, tool=Lookup()) as api:
        response = api.create(input="Look.", tools=[LOOKUP], max_output_tokens=50)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [request.body["max_tokens"] for request in model.requests] == [50, 20]


@behaviour("bug-17")
@pytest.mark.parametrize(
    "script",
    [
        Reply(reasoning="I think so.", text="Yes."),
        Reply(reasoning="I think so.", text="Yes.", reasoning_field="reasoning"),
        Reply(text="<think>I think so.</think>\n\nYes."),
        Reply(text="<think>\nI think so.</think>Yes.", chunks=99),
        Reply(text="\n<thinking>I think so.</thinking>\nYes.", chunks=9),
        Reply(text="[THINK]I think so.[/THINK]Yes.", chunks=7),
        raw({"content": "<thi"}, {"content": "nk>I think"}, {"content": " so.</th"}, {"content": "ink>Yes."}),
        raw(
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I think so."}]}]},
            {"content": [{"type": "text", "text": "Yes."}]},
        ),
    ],
)
def test_reasoning_under_any_name_is_an_item_with_deltas(api: Driver, model: ScriptedUpstream, script: Any) -> None:
    response = both(api, model, script, input="Right?")
    assert kinds(response) == ["reasoning", "message"]
    assert (thoughts(response), text_of(response)) == ("I think so.", "Yes.")


@behaviour("bug-17")
def test_thinking_that_is_never_closed_is_not_an_answer(api: Driver, model: ScriptedUpstream) -> None:
    response = both(api, model, Reply(text="<think>I wonder and wonder"), input="Well?")
    assert kinds(response) == ["reasoning"]
    assert thoughts(response) == "I wonder and wonder"


@behaviour("bug-17")
def test_a_lone_closing_tag_ends_reasoning_where_nobody_watches_and_later_where_somebody_does(
    api: Driver, model: ScriptedUpstream
) -> None:
    model.script(*[Reply(text="I think so.</think>\n\nYes.")] * 3)
    first = final(api.stream(input="Right?"))
    assert text_of(first) == "I think so.Yes."  # sent before it was known; the tag itself never shows
    response = api.create(input="Right?")
    assert (thoughts(response), text_of(response)) == ("I think so.", "Yes.")
    response = final(api.stream(input="Right?"))
    assert (thoughts(response), text_of(response)) == ("I think so.", "Yes.")


@behaviour("bug-17")
@pytest.mark.parametrize(
    "text",
    [
        "Models write:\n```xml\n<think>hm</think>\n```\nThat is all.",
        "The tag `</think>` ends it.",
        "Use <think> to begin.",
        "<thing> is no tag.",
        "Compare a <b> and </b>.",
    ],
)
@pytest.mark.parametrize("chunks", [1, 50])
def test_a_literal_tag_in_an_answer_stays(api: Driver, model: ScriptedUpstream, text: str, chunks: int) -> None:
    response = both(api, model, Reply(text=text, chunks=chunks), input="Show me.")
    assert kinds(response) == ["message"]
    assert text_of(response) == text


@behaviour("bug-17")
def test_tags_in_an_answer_whose_reasoning_came_apart_are_text(api: Driver, model: ScriptedUpstream) -> None:
    response = both(api, model, Reply(reasoning="Hm.", text="<think>is a tag</think>"), input="Show me.")
    assert (thoughts(response), text_of(response)) == ("Hm.", "<think>is a tag</think>")


@behaviour("bug-17")
def test_thinking_before_a_call_is_an_item_before_the_call(api: Driver, model: ScriptedUpstream) -> None:
    response = both(
        api, model, Reply(text="<think>Hm.</think>", calls=[Call("get_weather")]), input="Hi", tools=[FUNCTION]
    )
    assert kinds(response) == ["reasoning", "function_call"]
