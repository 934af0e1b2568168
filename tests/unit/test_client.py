"""The in-process client: the official SDK against the app, with nothing but function calls between them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from treadle.app import create_app
from treadle.client import StartFailed, async_client, client
from treadle.client.exchange import HIGH_WATER
from treadle.client.life import Background
from treadle.settings import InvalidSettings
from treadle.testing.gates import PATIENCE, Gate
from treadle.testing.server import settings_for
from treadle.testing.upstream import Call, Drop, Refuse, Reply, ScriptedUpstream

openai = pytest.importorskip("openai", reason="the openai client comes with the test extra")

MODEL = "scripted/scripted"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def reason(fault: BaseException) -> str:
    """What went wrong; the SDK's older versions wrap it."""
    return str(fault.__cause__ or fault)


@pytest.fixture
def model() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as upstream:
        yield upstream
    upstream.assert_consumed()


@pytest.fixture
def setup(tmp_path: Path, model: ScriptedUpstream) -> dict[str, Any]:
    """Arguments of the client functions that lead to the scripted model."""
    return {"data_dir": str(tmp_path), "models": {"scripted": {"kind": "openai_chat", "url": model.url, "retries": 0}}}


async def test_a_response_is_created_and_fetched_again(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("Hello there."))
    async with async_client(**setup) as bound:
        made = await bound.responses.create(model=MODEL, input="Say hello.")
        assert made.output_text == "Hello there."
        assert await bound.responses.retrieve(made.id) == made


async def test_events_arrive_while_the_model_still_speaks(setup: Any, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("One two three.", held={3: gate}))
    async with async_client(**setup) as bound, asyncio.timeout(PATIENCE):
        text = ""
        async with bound.responses.stream(model=MODEL, input="Count.") as events:
            async for event in events:
                if event.type == "response.output_text.delta":
                    text += event.delta
                    # The model says the last word only after the first ones have been read here.
                    if text == "One two ":
                        gate.set()
            final = await events.get_final_response()
        assert text == final.output_text == "One two three."


async def test_a_tool_loop_runs(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Paris"})]), Reply("Sunny."))
    async with async_client(**setup) as bound:
        first = await bound.responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
        (call,) = first.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        second = await bound.responses.create(
            model=MODEL, input=[output], previous_response_id=first.id, tools=[WEATHER]
        )
        assert second.output_text == "Sunny."
    assert [message["role"] for message in model.requests[1].body["messages"]] == ["user", "assistant", "tool"]


async def test_a_conversation_remembers(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("Noted."), Reply("Alice."))
    async with async_client(**setup) as bound:
        conversation = await bound.conversations.create(metadata={"topic": "names"})
        for text in ("My name is Alice.", "Who am I?"):
            last = await bound.responses.create(model=MODEL, input=text, conversation=conversation.id)
        assert last.output_text == "Alice."
        page = await bound.conversations.items.list(conversation.id, order="asc")
        assert [item.role async for item in page] == ["user", "assistant", "user", "assistant"]


async def test_what_is_stored_outlives_the_client(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("Kept."))
    async with async_client(**setup) as bound:
        made = await bound.responses.create(model=MODEL, input="Keep this.")
    async with async_client(**setup) as bound:
        assert (await bound.responses.retrieve(made.id)).output_text == "Kept."


async def test_errors_are_the_classes_of_the_sdk(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Refuse(429), Refuse(401), Drop())
    async with async_client(
        **setup,
    ) as plain:
        bound = plain.with_options(max_retries=0)
        with pytest.raises(openai.BadRequestError) as refused:
            await bound.responses.create(model=MODEL, input="x", temperature=3)
        assert refused.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            await bound.responses.retrieve("resp_unknown")
        for expected in (openai.RateLimitError, openai.AuthenticationError, openai.InternalServerError):
            with pytest.raises(expected):
                await bound.responses.create(model=MODEL, input="x")


async def test_leaving_a_stream_ends_the_model_call(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("Never the end of it.", held={3: Gate()}))
    async with async_client(**setup) as bound, asyncio.timeout(PATIENCE):
        events = await bound.responses.create(model=MODEL, input="Talk.", stream=True)
        async for event in events:
            if event.type == "response.output_text.delta":
                break
        await events.close()
        await (await model.received()).disconnected.within()


async def test_a_cancelled_call_ends_the_model_call(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("Too late.", before=Gate()))
    async with async_client(**setup) as bound:
        call = asyncio.ensure_future(bound.responses.create(model=MODEL, input="Wait."))
        request = await model.received()
        call.cancel()
        await request.disconnected.within()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_timeout_is_the_timeout_of_the_sdk(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("Too late.", before=Gate()))
    async with async_client(**setup) as bound:
        with pytest.raises(openai.APITimeoutError):
            await bound.with_options(max_retries=0, timeout=0.1).responses.create(model=MODEL, input="Wait.")
        await (await model.received()).disconnected.within()


async def test_an_app_of_ones_own_is_used(tmp_path: Path, model: ScriptedUpstream) -> None:
    model.script(Reply("Mine."))
    async with async_client(app=create_app(settings_for(tmp_path, model.url))) as bound:
        assert (await bound.responses.create(model=MODEL, input="x")).output_text == "Mine."


def test_a_client_without_a_loop_streams_and_leaves_early(setup: Any, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply("One two three.", held={3: gate}), Reply("Never the end of it.", held={3: Gate()}))
    with client(**setup) as bound:
        text = ""
        for event in bound.responses.create(model=MODEL, input="Count.", stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
                if text == "One two ":
                    gate.set()
        assert text == "One two three."
        with bound.responses.create(model=MODEL, input="Talk.", stream=True) as events:
            next(iter(events))
        model.received_blocking(2).disconnected.wait_blocking()


def test_several_threads_share_a_client(setup: Any, model: ScriptedUpstream) -> None:
    count = 4
    barrier = threading.Barrier(count)
    model.default = lambda request: Reply("You said " + request.body["messages"][-1]["content"])

    with client(**setup) as bound, ThreadPoolExecutor(count) as pool:

        def ask(number: int) -> str:
            barrier.wait(PATIENCE)
            answer: str = bound.responses.create(model=MODEL, input=f"number {number}").output_text
            return answer

        answers = list(pool.map(ask, range(count)))
    assert answers == [f"You said number {number}" for number in range(count)]


async def test_a_client_without_a_loop_works_inside_a_running_loop(setup: Any, model: ScriptedUpstream) -> None:
    model.script(Reply("From another thread."))
    with client(**setup) as bound:
        assert bound.responses.create(model=MODEL, input="x").output_text == "From another thread."


def test_a_closed_client_says_so_and_leaves_no_thread(setup: Any, model: ScriptedUpstream) -> None:
    before = set(threading.enumerate())
    with client(**setup) as bound:
        pass
    assert {thread.name for thread in threading.enumerate()} == {thread.name for thread in before}
    with pytest.raises((RuntimeError, openai.APIConnectionError)) as refused:
        bound.responses.retrieve("resp_x")
    assert "closed" in reason(refused.value)


@pytest.mark.timeout(20)
def test_a_call_that_waits_ends_at_once_when_the_client_is_closed(
    setup: Any, model: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.client.transport.GRACE_SECONDS", 60)
    model.script(Reply("Too late.", before=Gate()))
    with ThreadPoolExecutor(1) as pool:
        with client(**setup) as bound:
            call = pool.submit(bound.with_options(max_retries=0).responses.create, model=MODEL, input="Wait.")
            model.received_blocking()
        with pytest.raises(openai.APIConnectionError):
            call.result(PATIENCE)


def test_work_left_in_the_thread_is_cancelled_and_its_caller_told() -> None:
    begun = Gate()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        with Background("test") as background:
            left = pool.submit(background.run, work())
            begun.wait_blocking()
        with pytest.raises(RuntimeError, match="closed during the call"):
            left.result(PATIENCE)


# An app of three lines shows what the server cannot be made to do.


async def started(scope: Any, receive: Any, send: Any) -> bool:
    """Plays a lifespan without events; whether the scope was one."""
    if scope["type"] != "lifespan":
        return False
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})
    return True


async def begin(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})


async def test_an_app_waits_for_its_reader() -> None:
    sent, size, total = [0], 1024, 1024 * 1024

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if await started(scope, receive, send):
            return
        await begin(send)
        while sent[0] < total:
            sent[0] += size
            await send({"type": "http.response.body", "body": b"x" * size, "more_body": sent[0] < total})

    async with async_client(app=app) as bound, bound.responses.with_streaming_response.retrieve("resp_x") as response:
        got = 0
        async for part in response.iter_bytes():
            assert sent[0] - got <= HIGH_WATER + 2 * size
            got += len(part)
    assert got == total


async def test_an_app_that_waits_for_its_reader_hears_that_it_has_left() -> None:
    ended = Gate()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if await started(scope, receive, send):
            return
        await receive()
        await begin(send)
        await send({"type": "http.response.body", "body": b"x" * (HIGH_WATER + 1), "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        ended.set()

    async with async_client(app=app) as bound:
        async with bound.responses.with_streaming_response.retrieve("resp_x"):
            assert not ended.is_set()
        await ended.within()


async def test_a_fault_in_the_middle_reaches_the_reader() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if await started(scope, receive, send):
            return
        await begin(send)
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        raise ZeroDivisionError("a bug of the app")

    async with async_client(app=app) as bound:
        stream = await bound.responses.create(model="x", input="x", stream=True)
        with pytest.raises(ZeroDivisionError, match="a bug of the app"):
            [event async for event in stream]


async def test_an_answer_that_breaks_off_is_a_connection_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await started(scope, receive, send)

    async with async_client(app=app) as bound:
        with pytest.raises(openai.APIConnectionError):
            await bound.with_options(max_retries=0).models.list()


async def test_an_app_that_cannot_start_says_why() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.failed", "message": "the disk is full"})

    with pytest.raises(StartFailed, match="the disk is full"):
        async with async_client(app=app):
            pass
    with pytest.raises(StartFailed, match="the disk is full"), client(app=app):
        pass


async def test_an_app_that_is_running_already_is_not_started_again() -> None:
    kinds = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kinds.append(scope["type"])
        await begin(send)
        await send({"type": "http.response.body", "body": b'{"object": "list", "data": []}'})

    async with async_client(app=app, started=True) as bound:
        await bound.models.list()
    assert kinds == ["http"]


async def test_a_client_in_another_loop_is_refused_clearly() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await started(scope, receive, send)

    async with async_client(app=app) as bound:
        call = bound.with_options(max_retries=0).responses.retrieve("resp_x")
        with pytest.raises((RuntimeError, openai.APIConnectionError)) as refused:
            await asyncio.to_thread(asyncio.run, call)
    assert "event loop it was made in" in reason(refused.value)


async def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="default_modell"):
        async with async_client(data_dir=str(tmp_path), default_modell="x"):
            pass
    settings = settings_for(tmp_path, "http://127.0.0.1:1/v1")
    with pytest.raises(TypeError, match="finished settings"):
        async with async_client(settings, default_model="x"):
            pass
    with pytest.raises(TypeError, match="its settings"):
        async with async_client(settings, app=create_app(settings)):
            pass


def test_without_the_sdk_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match="pip install 'openai>=2'"), client():
        pass
