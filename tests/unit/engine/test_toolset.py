"""Declared tools and the functions a model sees: a table that reads the same both ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.engine.support import Look
from treadle.engine.toolset import ToolSet, build
from treadle.errors import InvalidRequest
from treadle.ports import ServerTool


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def tools_of(*tools: Any, choice: Any = None, server: Mapping[str, ServerTool] | None = None) -> ToolSet:
    return build([raw(tool) for tool in tools], raw(choice), server or {})


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name} | more


def namespace(name: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(children)}


CREW = namespace("crew", function("hire"), {"type": "custom", "name": "shout"})


def names(tools: ToolSet) -> list[str]:
    return [found.name for found in tools.functions]


@pytest.mark.parametrize("seen", ["crew__hire", "hire", "crew.hire", "functions.hire", "functions.crew__hire"])
def test_a_namespaced_tool_is_known_by_every_spelling(seen: str) -> None:
    binding = tools_of(CREW, function("other")).bind(seen)
    assert (binding.owner, binding.name, binding.namespace, binding.custom) == ("client", "hire", "crew", False)


def test_a_spelling_that_two_tools_share_is_nobodys() -> None:
    binding = tools_of(CREW, namespace("team", function("hire"))).bind("hire")
    assert (binding.owner, binding.name, binding.namespace) == ("client", "hire", None)


def test_a_plain_tool_comes_before_a_namespaced_one_of_its_name() -> None:
    assert tools_of(CREW, function("hire")).bind("hire").namespace is None


def test_every_declared_name_is_found_again_by_what_it_is_called() -> None:
    tools = tools_of(CREW, function("look"), {"type": "custom", "name": "patch"})
    for seen in names(tools):
        binding = tools.bind(seen)
        assert tools.seen_name(binding.name, binding.namespace) == seen


def test_long_names_are_shortened_to_what_servers_take_and_stay_apart() -> None:
    tools = tools_of(namespace("n" * 60, function("a" * 60), function("a" * 59 + "b")))
    assert len(set(names(tools))) == 2
    assert all(len(name) <= 64 for name in names(tools))
    assert tools.bind(names(tools)[1]).name == "a" * 59 + "b"


def test_a_server_tool_runs_here_and_an_invented_name_nowhere() -> None:
    look = Look()
    tools = tools_of({"type": "lookup", "option": 1}, server={"lookup": look})
    assert (tools.bind("look").owner, tools.bind("look").tool) == ("server", look)
    assert tools.bind("made_up").owner == "refused"
    assert tools_of(function("act")).bind("made_up").owner == "client"


def test_a_server_tool_and_a_function_may_not_share_a_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        tools_of({"type": "lookup"}, function("look"), server={"lookup": Look()})
    assert caught.value.param == "tools[1].name"


def test_a_hosted_tool_that_is_not_here_is_echoed_and_hidden() -> None:
    declared = {"type": "mcp", "server_label": "s", "headers": {"a": "secret"}, "authorization": "secret"}
    tools = tools_of(declared)
    assert names(tools) == []
    assert [json.loads(bytes(shown)) for shown in tools.echo] == [{"type": "mcp", "server_label": "s"}]


def test_allowed_tools_refuse_the_others() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    tools = tools_of(function("look"), function("act"), choice=choice)
    assert names(tools) == ["look", "act"]
    assert (tools.bind("look").owner, tools.bind("act").owner) == ("client", "refused")
    assert tools.bind("made_up").owner == "refused"


CHOICES: list[tuple[Any, str | None]] = [
    (None, None),
    ("auto", None),
    ("none", "none"),
    ("required", "required"),
    ({"type": "function", "name": "look"}, "function:look"),
    ({"type": "function", "function": {"name": "look"}}, "function:look"),
    ({"type": "function", "name": "hire"}, "function:crew__hire"),
    ({"type": "custom", "name": "shout"}, "function:crew__shout"),
    ({"type": "namespace", "name": "crew"}, "required"),
    ({"type": "lookup"}, "function:look_up"),
    (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "shout"}]},
        "function:crew__shout",
    ),
]


class LookUp(Look):
    def declare(self, declaration: Any) -> list[Any]:
        (found,) = super().declare(declaration)
        found.name = "look_up"
        return [found]


@pytest.mark.parametrize(("choice", "first"), CHOICES, ids=[json.dumps(choice) for choice, _ in CHOICES])
def test_a_choice_becomes_what_the_first_call_is_told(choice: Any, first: str | None) -> None:
    tools = tools_of(CREW, function("look"), {"type": "lookup"}, choice=choice, server={"lookup": LookUp()})
    assert tools.first_choice == first


@pytest.mark.parametrize(
    ("declared", "choice"),
    [
        ([], "required"),
        ([{"type": "code_interpreter"}], "required"),
        ([{"type": "code_interpreter"}], {"type": "code_interpreter"}),
        ([function("look")], {"type": "function", "name": "act"}),
        ([function("look")], {"type": "mcp", "server_label": "s"}),
        ([function("look")], {"type": "shell"}),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(declared: Sequence[Any], choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tools_of(*declared, choice=choice)
    assert caught.value.param == "tool_choice"
