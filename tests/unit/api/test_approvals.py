"""Approvals of two users of one server: neither can answer, use up or replay what the other was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import answer, asked, calls, declared
from treadle.app import Services
from treadle.errors import InvalidRequest, NotFound, PreviousNotFound
from treadle.scope import LOCAL, Principal, Scope
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.server import settings_for
from treadle.testing.upstream import Call, Reply, ScriptedUpstream
from treadle.wire.responses import CreateResponse

ALICE = LOCAL
STRANGERS = [Scope("default", Principal("mallory")), Scope("elsewhere", Principal("local"))]

pytestmark = [behaviour("bug-55"), pytest.mark.parametrize("stranger", STRANGERS, ids=["user", "tenant"])]


@pytest.fixture
def mcp() -> Iterator[FakeMcpServer]:
    with FakeMcpServer() as fake:
        yield fake


class Turns:
    """A server without HTTP, whose turns may be anybody's."""

    def __init__(self, services: Services, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
        self._services, self._model = services, model
        self._tools = [declared(mcp, require_approval="always")]

    async def make(self, scope: Scope, *given: Any, **more: Any) -> dict[str, Any]:
        body = {"model": "scripted/m", "input": list(given), "tools": self._tools, **more}
        request = msgspec.json.decode(json.dumps(body), type=CreateResponse)
        response = await (await self._services.responses.create(scope, request)).result()
        found: dict[str, Any] = json.loads(msgspec.json.encode(response))
        return found

    async def ask(self, **more: Any) -> dict[str, Any]:
        """A response of Alice's that ends by asking whether a call may run."""
        self._model.script(Reply(calls=[Call("echo", {"text": "careful"})]))
        return await self.make(ALICE, {"role": "user", "content": "Do it."}, **more)


@pytest.fixture
async def turns(tmp_path: Path, mcp: FakeMcpServer) -> AsyncIterator[Turns]:
    with ExitStack() as stack:
        model = stack.enter_context(ScriptedUpstream(default=Reply("Done.")))
        services = Services(settings_for(tmp_path, model.url, "outgoing: {allow: [127.0.0.1]}"), {})
        await services.start()
        yield Turns(services, model, mcp)
        await services.stop()


@pytest.mark.parametrize("approve", [True, False], ids=["yes", "no"])
async def test_nobody_else_can_answer(turns: Turns, mcp: FakeMcpServer, stranger: Scope, approve: bool) -> None:
    first = await turns.ask()
    theirs = answer(asked(first), approve)
    with pytest.raises(PreviousNotFound):
        await turns.make(stranger, theirs, previous_response_id=first["id"])
    with pytest.raises(InvalidRequest, match="no approval request") as caught:
        await turns.make(stranger, theirs)
    assert caught.value.param == "input[0].approval_request_id"
    assert mcp.calls == []


@pytest.mark.parametrize("approve", [True, False], ids=["yes", "no"])
@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
async def test_who_brings_a_copy_of_the_request_does_not_use_it_up(
    turns: Turns, mcp: FakeMcpServer, stranger: Scope, approve: bool, store: bool
) -> None:
    first = await turns.ask(store=store)
    request = asked(first)
    await turns.make(stranger, request, answer(request, approve))
    ran = len(mcp.calls)
    earlier: dict[str, Any] = {"previous_response_id": first["id"]} if store else {}
    second = await turns.make(ALICE, *([] if store else [request]), answer(request), **earlier)
    (call,) = calls(second)
    assert (call["approval_request_id"], call["error"]) == (request["id"], None)
    assert len(mcp.calls) == ran + 1


async def test_what_was_run_cannot_be_run_again_by_another(turns: Turns, mcp: FakeMcpServer, stranger: Scope) -> None:
    first = await turns.ask()
    second = await turns.make(ALICE, answer(asked(first)), previous_response_id=first["id"])
    for earlier in (first, second):
        with pytest.raises(PreviousNotFound):
            await turns.make(stranger, answer(asked(first)), previous_response_id=earlier["id"])
    with pytest.raises(NotFound):
        await turns.make(stranger, {"type": "item_reference", "id": asked(first)["id"]}, answer(asked(first)))
    assert len(mcp.calls) == 1
