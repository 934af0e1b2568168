"""Approvals: what asks, what an answer runs, and every way to answer wrongly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import LOOPBACK, Driver, sent, text_of
from tests.behaviour.kit import error, final, kinds, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import answer, asked, calls, declared, items, outputs, roles, well_formed
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.upstream import Call, Refuse, Reply, ScriptedUpstream

ECHO = Call("echo", {"text": "careful", "size": 1})


def ask(api: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, **more: Any) -> dict[str, Any]:
    """A response that ends by asking whether ECHO may run."""
    model.script(Reply(calls=[ECHO]))
    response = final(api.stream(input="Do it.", tools=[declared(mcp, require_approval="always")], **more))
    assert kinds(response)[-1] == "mcp_approval_request"
    assert response["status"] == "completed"
    assert mcp.calls == []
    return response


@behaviour("bug-53")
@pytest.mark.parametrize(
    ("approval", "asking"),
    [
        ("always", "echo structured"),
        ("never", ""),
        (None, ""),
        ({"always": {"tool_names": ["echo"]}}, "echo structured"),
        ({"always": {"tool_names": ["echo"]}, "never": {"tool_names": ["structured"]}}, "echo"),
        ({"never": {"tool_names": ["structured"]}}, "echo"),
        ({"never": {"read_only": True}}, "structured"),
        ({"always": {"read_only": False}, "never": {"tool_names": ["echo", "structured"]}}, "structured"),
        ({"always": ["echo"], "never": ["echo", "structured"]}, "echo"),
        ({}, "echo structured"),
        ({"never": []}, "echo structured"),
    ],
    ids=str,
)
def test_exactly_the_tools_that_are_to_ask_do_ask(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, approval: Any, asking: str
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "a"}), Call("structured")]))
    if not asking:
        model.script(Reply(text="Done."))
    response = final(remote.stream(input="Both.", tools=[declared(mcp, require_approval=approval)]))
    assert {item["name"] for item in items(response, "mcp_approval_request")} == set(asking.split())
    assert {name for name, _ in mcp.calls} == {"echo", "structured"} - set(asking.split())


@behaviour("bug-53")
@pytest.mark.parametrize("approval", ["sometimes", {"always": "echo"}, 5], ids=str)
def test_an_unknown_form_of_require_approval_is_refused(remote: Driver, mcp: FakeMcpServer, approval: Any) -> None:
    fault = error(remote.post(input="Hi.", tools=[declared(mcp, require_approval=approval)]), 400)
    assert "require_approval" in (fault["param"] or "")


@behaviour("bug-53")
def test_the_setting_decides_where_a_declaration_says_nothing(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    with serving(tmp_path, model, LOOPBACK, "mcp: {require_approval: always}") as api:
        model.script(Reply(calls=[ECHO]))
        asked(api.create(input="Do it.", tools=[declared(mcp)]))
        assert mcp.calls == []


@behaviour("bug-54")
@pytest.mark.parametrize("arguments", ['{"b": 1, "a": {"d": 2, "c": [3]}}', '{ "text" : "\\u00e9" }', "{}"])
def test_an_approval_runs_the_stored_arguments_as_they_are(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, arguments: str
) -> None:
    tools = [declared(mcp, require_approval="always")]
    model.script(Reply(calls=[Call("echo", arguments)]), Reply(text="Done."))
    first = remote.create(input="Do it.", tools=tools)
    request = asked(first)
    assert request["arguments"] == arguments
    events = remote.stream(input=[answer(request)], previous_response_id=first["id"], tools=tools)
    (call,) = calls(final(events))
    assert (call["arguments"], call["approval_request_id"]) == (arguments, request["id"])
    # The call was run before the model was asked anything.
    assert len(model.requests) == 2
    assert roles(sent(model, 2)) == ["user", "assistant", "tool"]
    assert len(mcp.calls) == 1
    assert mcp.count("tools/list") == 1


@behaviour("bug-14", "bug-53")
@pytest.mark.parametrize("besides", [[], [Call("structured")]], ids=["alone", "mixed"])
def test_nobody_is_asked_about_arguments_that_are_broken(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, besides: list[Call]
) -> None:
    tools = [declared(mcp, require_approval={"never": ["structured"]})]
    model.script(Reply(calls=[Call("echo", '{"text": "a'), *besides]), Reply(calls=[ECHO]))
    response = final(remote.stream(input="Do it.", tools=tools))
    assert asked(response)["arguments"] == ECHO.arguments_text
    assert [name for name, _ in mcp.calls] == [call.name for call in besides]
    well_formed(sent(model, 2))
    assert "not a JSON object" in "".join(outputs(sent(model, 2)))


@behaviour("bug-53")
def test_a_mixed_round_runs_what_is_allowed_and_asks_for_the_rest(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    tools = [declared(mcp, require_approval={"never": {"tool_names": ["echo"]}})]
    model.script(Reply(text="Both.", calls=[Call("structured"), Call("echo", {"text": "a"})]), Reply(text="Done."))
    first = final(remote.stream(input="Both.", tools=tools))
    assert kinds(first) == ["mcp_list_tools", "message", "mcp_call", "mcp_approval_request"]
    assert mcp.calls == [("echo", {"text": "a"})]
    second = remote.create(input=[answer(asked(first))], previous_response_id=first["id"], tools=tools)
    assert [name for name, _ in mcp.calls] == ["echo", "structured"]
    assert text_of(second) == "Done."
    well_formed(sent(model, 2))
    assert len(outputs(sent(model, 2))) == 2


@behaviour("bug-53")
def test_two_requests_may_be_answered_differently(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    tools = [declared(mcp, require_approval="always")]
    model.script(Reply(calls=[ECHO, Call("structured")]), Reply(text="Half."), Reply(text="Yes."))
    first = remote.create(input="Both.", tools=tools)
    one, two = items(first, "mcp_approval_request")
    second = remote.create(
        input=[answer(one, approve=False, reason="Too risky."), answer(two)],
        previous_response_id=first["id"],
        tools=tools,
    )
    assert [name for name, _ in mcp.calls] == ["structured"]
    remote.create(input="Sure?", previous_response_id=second["id"], tools=tools)
    for number in (2, 3):
        well_formed(sent(model, number))
        told = outputs(sent(model, number))
        assert len(told) == 2
        assert "Too risky." in told[0]
        assert "celsius" in told[1]


@behaviour("bug-53")
def test_a_request_that_is_left_unanswered_bricks_nothing(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    model.script(Reply(text="As you like."))
    remote.create(input="Never mind.", previous_response_id=first["id"], tools=first["tools"])
    well_formed(sent(model, 2))
    assert "not approved" in outputs(sent(model, 2))[0]
    assert mcp.calls == []


@behaviour("bug-55")
def test_an_answer_counts_once_on_every_branch(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    first = ask(remote, model, mcp)
    yes = {"input": [answer(asked(first))], "tools": first["tools"]}
    model.script(Reply(text="Done."))
    second = remote.create(previous_response_id=first["id"], **yes)
    for previous in (first["id"], second["id"]):
        fault = error(remote.post(previous_response_id=previous, **yes), 400)
        assert "answered already" in fault["message"]
    twice = [answer(asked(first)), answer(asked(first))]
    error(remote.post(input=twice, previous_response_id=first["id"], tools=first["tools"]), 400)
    assert len(mcp.calls) == 1


@behaviour("bug-55")
def test_what_was_denied_cannot_be_approved_afterwards(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    model.script(Reply(text="Pity."))
    no, yes = [answer(asked(first), approve=False)], [answer(asked(first))]
    second = remote.create(input=no, previous_response_id=first["id"], tools=first["tools"])
    for previous in (first["id"], second["id"]):
        error(remote.post(input=yes, previous_response_id=previous, tools=first["tools"]), 400)
    assert mcp.calls == []


@behaviour("bug-55")
def test_a_denial_can_be_sent_again_when_the_model_failed(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    no = [answer(asked(first), approve=False)]
    model.script(Refuse(400), Reply(text="Pity."))
    error(remote.post(input=no, previous_response_id=first["id"], tools=first["tools"]), 400)
    remote.create(input=no, previous_response_id=first["id"], tools=first["tools"])
    assert mcp.calls == []


@behaviour("bug-55")
def test_an_approval_is_spent_although_the_model_fails_behind_the_call(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    yes = {"input": [answer(asked(first))], "previous_response_id": first["id"], "tools": first["tools"]}
    model.script(Refuse(400))
    failed = final(remote.stream(**yes))
    assert failed["status"] == "failed"
    (call,) = calls(failed)
    assert call["approval_request_id"] == asked(first)["id"]
    assert "answered already" in error(remote.post(**yes), 400)["message"]
    assert len(mcp.calls) == 1


@behaviour("bug-55")
@pytest.mark.parametrize("at_once", [2, 8])
def test_of_answers_at_the_same_time_exactly_one_runs_the_call(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer, at_once: int
) -> None:
    first = ask(remote, model, mcp)
    model.script(Reply(text="Done."))
    body = {"input": [answer(asked(first))], "previous_response_id": first["id"], "tools": first["tools"]}
    with ThreadPoolExecutor(at_once) as pool:
        replies = list(pool.map(lambda _: remote.post(**body), range(at_once)))
    assert sorted(reply.status_code for reply in replies) == [200] + [400] * (at_once - 1)
    assert len(mcp.calls) == 1


@behaviour("bug-55")
def test_an_answer_to_nothing_is_refused(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    first, other = ask(remote, model, mcp), ask(remote, model, mcp)
    for request in ("mcpr_unknown", "", asked(other)["id"]):
        reply = remote.post(input=[answer(request)], previous_response_id=first["id"], tools=first["tools"])
        assert error(reply, 400)["param"] == "input[0].approval_request_id"
    error(remote.post(input=[answer(asked(first))], tools=first["tools"]), 400)
    assert mcp.calls == []


@behaviour("bug-55")
def test_an_answer_is_for_the_server_that_was_asked_about(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    with FakeMcpServer() as other:
        for tools in (
            [declared(other, require_approval="always")],
            [declared(mcp.url + "?tenant=2", require_approval="always")],
            [declared(mcp, "renamed", require_approval="always")],
            [],
        ):
            reply = remote.post(input=[answer(asked(first))], previous_response_id=first["id"], tools=tools)
            assert error(reply, 400)["param"] == "tools"
        assert other.requests == []
    assert mcp.calls == []


@behaviour("bug-55", "bug-56")
def test_an_answer_does_not_reach_a_tool_that_is_not_allowed_any_more(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    narrower = [declared(mcp, require_approval="always", allowed_tools=["structured"])]
    body = {"input": [answer(asked(first))], "previous_response_id": first["id"]}
    assert error(remote.post(**body, tools=narrower), 400)["param"] == "tools"
    assert mcp.calls == []
    # Nothing was used up: with the tools as they were, the answer counts.
    model.script(Reply(text="Done."))
    remote.create(**body, tools=first["tools"])
    assert len(mcp.calls) == 1


@behaviour("bug-55")
def test_a_stored_request_is_run_as_stored_whatever_the_client_replays(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    changed = {**asked(first), "name": "structured", "arguments": '{"text": "wicked"}'}
    model.script(Reply(text="Done."))
    remote.create(input=[changed, answer(changed)], previous_response_id=first["id"], tools=first["tools"])
    assert mcp.calls == [("echo", {"text": "careful", "size": 1})]


@behaviour("bug-54")
def test_without_storage_the_client_brings_the_request_back(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp, store=False)
    model.script(Reply(text="Done."))
    question = {"role": "user", "content": "Do it."}
    back = [question, *first["output"], answer(asked(first))]
    second = final(remote.stream(input=back, tools=first["tools"], store=False))
    assert text_of(second) == "Done."
    assert mcp.calls == [("echo", {"text": "careful", "size": 1})]
    error(remote.post(input=back, tools=first["tools"], store=False), 400)
    assert len(mcp.calls) == 1


@behaviour("also-tools-again", "bug-33")
def test_tools_are_given_again_after_an_approval_and_run(
    remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    first = ask(remote, model, mcp)
    model.script(Reply(text="Done."), Reply(text="No tools."), Reply(calls=[ECHO]), Reply(text="Again."))
    second = remote.create(input=[answer(asked(first))], previous_response_id=first["id"], tools=first["tools"])
    third = remote.create(input="Rest.", previous_response_id=second["id"])
    fourth = final(remote.stream(input="Once more.", previous_response_id=third["id"], tools=[declared(mcp)]))
    assert kinds(fourth) == ["mcp_call", "message"]
    assert len(mcp.calls) == 2
    assert mcp.count("tools/list") == 1
    for number in (2, 3, 4, 5):
        well_formed(sent(model, number))
        assert "not run" not in str(sent(model, number))


@behaviour("bug-53", "bug-35")
def test_approvals_work_in_a_conversation(remote: Driver, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    conversation = remote.post("/conversations", model=None).json()["id"]
    first = ask(remote, model, mcp, conversation=conversation)
    model.script(Reply(text="Done."), Reply(text="Yes."))
    remote.create(input=[answer(asked(first))], conversation=conversation, tools=first["tools"])
    error(remote.post(input=[answer(asked(first))], conversation=conversation, tools=first["tools"]), 400)
    remote.create(input="Sure?", conversation=conversation, tools=first["tools"])
    well_formed(sent(model, 3))
    assert len(mcp.calls) == 1
    assert mcp.count("tools/list") == 1
