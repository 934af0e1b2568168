"""What a request becomes before the model is asked: checks, defaults, and nothing nobody set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.unit.store.on_sqlite import conversations, database, migrated, path, responses
from treadle.access.netguard import OutgoingGuard
from treadle.access.sealing import KeySealer
from treadle.engine.prepare import Preparation, prepare
from treadle.engine.recent import RecentHistories
from treadle.engine.turn import Plan
from treadle.errors import InvalidRequest
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.models.tokens import Tokens
from treadle.ports import Capabilities, OutputFormat, RemoteTools
from treadle.scope import LOCAL
from treadle.store.conversations import SqlConversations
from treadle.store.responses import SqlResponses
from treadle.testing import ScriptedModel
from treadle.tools.mcp.pool import McpPool
from treadle.wire.responses import CreateResponse

__all__ = ["conversations", "database", "migrated", "path", "responses"]

Prepare = Callable[..., Any]


@pytest.fixture
def plan(responses: SqlResponses, conversations: SqlConversations) -> Prepare:
    """Prepares a request given as JSON fields. `can` are the model's capabilities."""

    async def prepared(
        can: Capabilities | None = None, default: str = "", remote: RemoteTools | None = None, **fields: Any
    ) -> Plan:
        router = ModelRouter({"fast": "scripted/m"})
        router.add(ProviderEntry("scripted", ScriptedModel(capabilities=can)))
        given = Preparation(
            counter=Tokens(),
            router=router,
            responses=responses,
            conversations=conversations,
            sealer=KeySealer(b"k" * 32),
            server_tools={},
            recent=RecentHistories(),
            default_model=default,
            remote=remote,
        )
        body = {"model": "scripted/m", "input": "x"} | fields
        return await prepare(LOCAL, msgspec.convert(body, CreateResponse), given)

    return prepared


async def test_what_nobody_set_is_not_set(plan: Prepare) -> None:
    request = (await plan()).request
    unset = {
        name: getattr(request, name)
        for name in request.__struct_fields__
        if name not in ("model", "messages", "functions", "extra_body", "logprobs", "watched")
    }
    assert unset == dict.fromkeys(unset)


async def test_what_was_set_is_passed_on_and_echoed(plan: Prepare) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "max_output_tokens": 100,
        "top_logprobs": 2,
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
    }
    made = await plan(**fields)
    for name, value in fields.items():
        assert getattr(made.request, name) == value
        assert getattr(made.response, name) == value
    assert made.request.logprobs


async def test_the_messages_are_rendered_once(plan: Prepare) -> None:
    """Where remote tools have yet to be listed, and their names to be known, that is after they were."""
    server = {"type": "mcp", "server_label": "a", "server_url": "https://a.example/mcp"}
    tools = [msgspec.Raw(msgspec.json.encode(server))]
    pool = McpPool(OutgoingGuard())
    assert [message.content for message in (await plan(remote=pool)).messages] == ["x"]
    waiting = await plan(remote=pool, tools=tools)
    assert (waiting.messages, len(waiting.remote), len(waiting.shown)) == ([], 1, 1)
    await pool.close()


async def test_an_effort_goes_only_to_models_that_take_one(plan: Prepare) -> None:
    given = {"reasoning": {"effort": "high"}}
    assert (await plan(**given)).request.reasoning_effort == "high"
    plain = await plan(can=Capabilities(reasoning_effort=False), **given)
    assert plain.request.reasoning_effort is None
    assert plain.response.reasoning.effort == "high"


async def test_the_requested_name_is_echoed_and_the_servers_own_is_used(plan: Prepare) -> None:
    made = await plan(model="fast")
    assert (made.response.model, made.request.model) == ("fast", "m")
    default = await plan(model=None, default="scripted/m")
    assert (default.response.model, default.request.model) == ("scripted/m", "m")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({}, None),
        ({"format": None}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, OutputFormat("json_object")),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            OutputFormat("json_schema", name="n", schema=msgspec.Raw(b"{}")),
        ),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True, "description": "d"}},
            OutputFormat("json_schema", name="n", schema=msgspec.Raw(b'{"a":1}'), strict=True, description="d"),
        ),
    ],
)
async def test_every_output_format_is_understood(plan: Prepare, given: Any, expected: OutputFormat | None) -> None:
    fields = msgspec.json.decode(msgspec.json.encode({"text": given}))
    body = msgspec.json.decode(
        msgspec.json.encode({"model": "scripted/m", "input": "x", **fields}), type=CreateResponse
    )
    made = await plan(text=body.text)
    assert made.output_format == expected
    assert made.response.text.format is not None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "thread_1"}, "conversation"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"background": True, "store": False}, "background"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_cannot_be_accepted_is_refused_by_name(plan: Prepare, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await plan(**fields)
    assert caught.value.param == param
