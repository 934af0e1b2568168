"""Conformance suites: what every adapter of a port has to do, as pytest classes to inherit from.

    from treadle.testing.conformance import ModelSuite

    class TestAcme(ModelSuite):
        @pytest.fixture
        async def model(self, upstream):
            async with AcmeModels(url=upstream.url) as adapter:
                yield adapter

Each suite says which fixtures a subclass provides. The tests are coroutines: run them with pytest-asyncio in auto mode.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from treadle.errors import InvalidRequest, QuotaExceeded, ServerError, UpstreamFault
from treadle.ports import Capabilities, ChatModel, Embedder, ModelChunk, ModelFunction, ModelMessage, ModelRequest
from treadle.testing.conformance_blobs import BlobSuite
from treadle.testing.conformance_store import StoreSuite
from treadle.testing.gates import Gate
from treadle.testing.turns import Call, Drop, Raw, Refuse, Reply, Tokens, chunk, sse
from treadle.testing.upstream import ScriptedUpstream

__all__ = ["BlobSuite", "EmbedderSuite", "ModelSuite", "StoreSuite"]

PATIENCE = 10


def ask(text: str = "Hi", *, functions: list[ModelFunction] | None = None) -> ModelRequest:
    """The plainest request; everything optional is left unset."""
    return ModelRequest(model="scripted", messages=[ModelMessage("user", text)], functions=functions or [])


async def drain(model: ChatModel, request: ModelRequest) -> list[ModelChunk]:
    """All chunks of one call, bounded in time."""
    async with asyncio.timeout(PATIENCE), aclosing(model.stream(request)) as reads:
        return [chunk async for read in reads for chunk in read]


def calls_of(chunks: list[ModelChunk]) -> list[tuple[str, str, str]]:
    """(id, name, arguments) of each call, by slot."""
    slots: dict[int, tuple[str, str, str]] = {}
    for fragment in (one.call for one in chunks if one.call is not None):
        call_id, name, arguments = slots.get(fragment.slot, ("", "", ""))
        slots[fragment.slot] = (fragment.id or call_id, fragment.name or name, arguments + fragment.arguments)
    return [slots[slot] for slot in sorted(slots)]


class ModelSuite:
    """For a ChatModel that speaks the chat-completions dialect. Provide `model`, bound to the fixture `upstream`."""

    @pytest.fixture
    async def upstream(self) -> AsyncIterator[ScriptedUpstream]:
        async with ScriptedUpstream() as upstream:
            yield upstream

    @pytest.fixture
    def model(self, upstream: ScriptedUpstream) -> ChatModel:
        raise NotImplementedError("a subclass provides the adapter under test")

    async def test_text_arrives_whole_with_finish_and_usage(self, model: ChatModel, upstream: ScriptedUpstream) -> None:
        upstream.script(Reply(text="Hello there, friend.", usage=Tokens(12, 4, cached=3, reasoning=1)))
        chunks = await drain(model, ask())
        assert "".join(chunk.text for chunk in chunks) == "Hello there, friend."
        assert [chunk.finish for chunk in chunks if chunk.finish] == ["stop"]
        [usage] = [chunk.usage for chunk in chunks if chunk.usage]
        assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (12, 4, 3, 1)

    @pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
    async def test_reasoning_is_told_from_text(self, model: ChatModel, upstream: ScriptedUpstream, name: str) -> None:
        upstream.script(Reply(text="Yes.", reasoning="Let me think.", reasoning_field=name))
        chunks = await drain(model, ask())
        assert "".join(chunk.reasoning for chunk in chunks) == "Let me think."
        assert "".join(chunk.text for chunk in chunks) == "Yes."

    async def test_a_refusal_is_told_from_text(self, model: ChatModel, upstream: ScriptedUpstream) -> None:
        upstream.script(Reply(refusal="I will not do that."))
        chunks = await drain(model, ask())
        assert "".join(chunk.refusal for chunk in chunks) == "I will not do that."
        assert not any(chunk.text for chunk in chunks)

    async def test_parallel_calls_stay_apart(self, model: ChatModel, upstream: ScriptedUpstream) -> None:
        upstream.script(Reply(calls=[Call("one", '{"a": 1}', "call_a"), Call("two", '{"b": [2]}', "call_b")]))
        chunks = await drain(model, ask(functions=[ModelFunction("one"), ModelFunction("two")]))
        assert calls_of(chunks) == [("call_a", "one", '{"a": 1}'), ("call_b", "two", '{"b": [2]}')]
        assert [chunk.finish for chunk in chunks if chunk.finish] == ["tool_calls"]

    async def test_any_split_of_the_bytes_gives_the_same(self, model: ChatModel, upstream: ScriptedUpstream) -> None:
        raw = sse(
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "naïve 😀\u2028 line"}),
            chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"x": "é"}'}}]}),
            chunk({}, finish="tool_calls"),
        )
        for size in (1, 7, len(raw)):
            upstream.script(Raw([raw[start : start + size] for start in range(0, len(raw), size)]))
            chunks = await drain(model, ask())
            assert "".join(chunk.text for chunk in chunks) == "naïve 😀\u2028 line"
            assert calls_of(chunks) == [("c", "f", '{"x": "é"}')]

    @pytest.mark.parametrize("finish", ["length", "content_filter"])
    async def test_a_cut_answer_says_why(self, model: ChatModel, upstream: ScriptedUpstream, finish: str) -> None:
        upstream.script(Raw([sse(chunk({"content": "Once"}), chunk({}, finish=finish))]))
        assert [chunk.finish for chunk in await drain(model, ask()) if chunk.finish] == [finish]

    async def test_what_was_not_set_is_not_sent(self, model: ChatModel, upstream: ScriptedUpstream) -> None:
        upstream.script(Reply(text="ok"))
        await drain(model, ask("What?"))
        body = upstream.requests[0].body
        assert set(body) <= {"model", "messages", "stream", "stream_options"}
        assert body["model"] == "scripted"
        assert body["messages"] == [{"role": "user", "content": "What?"}]

    async def test_a_first_read_is_handed_on_before_the_next_one(
        self, model: ChatModel, upstream: ScriptedUpstream
    ) -> None:
        held = Gate()
        first = sse(chunk({"role": "assistant", "content": "first "}), done=False)
        upstream.script(Raw([first, held, sse(chunk({"content": "second"}), chunk({}, finish="stop"))]))
        seen = ""
        async with asyncio.timeout(PATIENCE), aclosing(model.stream(ask())) as reads:
            async for read in reads:
                seen += "".join(chunk.text for chunk in read)
                if seen == "first ":
                    held.set()
        assert seen == "first second"

    async def test_a_refused_call_raises_before_the_first_chunk(
        self, model: ChatModel, upstream: ScriptedUpstream
    ) -> None:
        upstream.default = Refuse(400, {"error": {"message": "No such parameter: x", "type": "invalid_request_error"}})
        with pytest.raises(ServerError, match="No such parameter: x") as caught:
            await drain(model, ask())
        assert caught.value.status == 400
        assert len(upstream.requests) == 1, "the same request would be refused again"

    async def test_a_rate_limit_keeps_its_meaning(self, model: ChatModel, upstream: ScriptedUpstream) -> None:
        upstream.default = Refuse(429, {"error": {"message": "Slow down"}}, headers={"retry-after": "60"})
        with pytest.raises(QuotaExceeded) as caught:
            await drain(model, ask())
        assert {name.lower(): value for name, value in caught.value.headers.items()}["retry-after"] == "60"

    async def test_a_stream_that_breaks_off_is_a_fault_and_not_an_end(
        self, model: ChatModel, upstream: ScriptedUpstream
    ) -> None:
        upstream.script(Drop(after=3))
        with pytest.raises(UpstreamFault):
            await drain(model, ask())
        assert len(upstream.requests) == 1, "no retry after the first byte"

    async def test_closing_the_iterator_closes_the_connection(
        self, model: ChatModel, upstream: ScriptedUpstream
    ) -> None:
        upstream.script(Reply(text="one two three", held={2: Gate()}))
        async with asyncio.timeout(PATIENCE):
            stream = model.stream(ask())
            await anext(stream)
            await stream.aclose()
            await upstream.requests[0].disconnected.wait()

    async def test_cancelling_closes_the_connection(self, model: ChatModel, upstream: ScriptedUpstream) -> None:
        upstream.script(Reply(before=Gate()))
        task = asyncio.create_task(drain(model, ask()))
        request = await upstream.received()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await request.disconnected.within(PATIENCE)

    async def test_it_lists_models_and_declares_capabilities_as_data(
        self, model: ChatModel, upstream: ScriptedUpstream
    ) -> None:
        upstream.models = ["a", "vendor/b"]
        assert await model.models() == ["a", "vendor/b"]
        assert isinstance(model.capabilities("a"), Capabilities)


class EmbedderSuite:
    """For an Embedder. Provide `embedder`."""

    @pytest.fixture
    def embedder(self) -> Embedder:
        raise NotImplementedError("a subclass provides the adapter under test")

    async def test_one_unit_vector_per_text_in_order(self, embedder: Embedder) -> None:
        texts = ["The cat sat on the mat.", "Shares fell on Monday.", "x"]
        together = await embedder.embed(texts)
        assert [len(vector) for vector in together.vectors] == [embedder.dimensions] * 3
        for text, vector in zip(texts, together.vectors, strict=True):
            assert math.hypot(*vector) == pytest.approx(1, abs=1e-3)
            [alone] = (await embedder.embed([text])).vectors
            assert dot(alone, vector) > 0.99
        assert together.tokens > 0

    async def test_the_same_text_has_the_same_vector(self, embedder: Embedder) -> None:
        first, second = (await embedder.embed(["once more", "once more"])).vectors
        assert dot(first, second) == pytest.approx(1, abs=1e-3)

    async def test_related_texts_are_nearer_than_unrelated_ones(self, embedder: Embedder) -> None:
        question, related, unrelated = (
            await embedder.embed(["where did the cat sleep", "the cat did sleep on the sofa", "shares fell on monday"])
        ).vectors
        assert dot(question, related) > dot(question, unrelated)

    async def test_nothing_to_embed_is_nothing(self, embedder: Embedder) -> None:
        assert (await embedder.embed([])).vectors == []

    async def test_a_size_it_cannot_give_is_refused_by_name(self, embedder: Embedder) -> None:
        for size in (0, -1, 10**9):
            with pytest.raises(InvalidRequest) as caught:
                await embedder.embed(["x"], dimensions=size)
            assert caught.value.param == "dimensions"


def dot(one: list[float], other: list[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))
