"""One model call and what follows from it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from treadle.engine.assembler import Assembler, ModelCallMade
from treadle.engine.citations import CitationScanner, Source
from treadle.engine.structured import HeldText, withholds
from treadle.engine.turn import Again, ClientAction, Finished, RoundDecision, Stopped, Turn
from treadle.ports import ModelChunk, ModelMessage, ModelRequest, TokenLogprob
from treadle.wire.events import Event


class Round:
    """Runs one model call: `events()` first, then `made`, `decision` and `unfit` say what came of it."""

    def __init__(self, turn: Turn, messages: list[ModelMessage], *, final: bool = False) -> None:
        self._turn = turn
        self._messages = messages
        self._final = final
        """The schema pass of a withheld output format: no tools any more."""
        self._held = HeldText() if withholds(turn.plan) and not final else None
        self._counted = False
        self.assembler = Assembler(turn)
        self._citations = CitationScanner(turn.citable) if turn.citable.asked else None
        self._logprobs: list[TokenLogprob] = []
        """Of text that is held for the sake of citations."""
        self.made: list[ModelCallMade] = []
        self.decision: RoundDecision = Finished()
        self.unfit = False
        """The answer was held back because it does not fit the output format; ask again with `final`."""

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """One batch per network read. Upstream faults are raised; `abort` then closes what is open."""
        held = self._held
        stream = self._turn.plan.model.stream(self._request())
        if (guard := self._turn.guard) is not None and guard.blocks_output:
            stream = guard.filtered(stream)
        async with aclosing(stream) as chunks:
            async for batch in chunks:
                out: list[Event] = []
                self._fold(batch if held is None else held.filter(batch), out)
                if out:
                    yield out
        yield self._conclude()

    def _fold(self, chunks: list[ModelChunk], out: list[Event]) -> None:
        """Feeds the assembler; citation marks are looked for only when there is something to cite."""
        if self._citations is None:
            self.assembler.feed(chunks, out)
            return
        for chunk in chunks:
            if chunk.text and (pieces := self._citations.feed(chunk.text)) != [chunk.text]:
                self._logprobs += chunk.logprobs or ()
                self._cited(pieces, out)
                chunk.text = ""
            self.assembler.feed([chunk], out)

    def _cited(self, pieces: list[str | Source], out: list[Event]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                logprobs, self._logprobs = self._logprobs, []
                self.assembler.feed([ModelChunk(text=piece, logprobs=logprobs or None)], out)
            else:
                self.assembler.cite(piece, out)

    def refuse(self, message: str, out: list[Event]) -> None:
        """Ends the answer with a refusal; what was used is still counted."""
        self._count()
        self.assembler.refuse(message, out)

    def _count(self) -> None:
        if self.assembler.usage is not None and not self._counted:
            self._counted = True
            self._turn.add_usage(self.assembler.usage)

    def abort(self, out: list[Event]) -> None:
        """Closes what is open, after a fault or when nobody listens any more; what was used is still counted."""
        self._count()
        if self._held is not None:
            self.assembler.feed(self._held.release(), out)
        self.assembler.abort(out)

    def _conclude(self) -> list[Event]:
        turn, assembler, held, out = self._turn, self.assembler, self._held, list[Event]()
        turn.rounds += 1
        self._count()
        reason = assembler.finish_reason
        cut = reason in ("length", "content_filter")
        if held is not None and turn.plan.output_format is not None:
            self.unfit = not cut and not assembler.called and not held.fits(turn.plan.output_format)
            if not self.unfit:
                self._fold(held.release(), out)
        self._cited(self._citations.finish() if self._citations is not None else [], out)
        self.made = assembler.finish("incomplete" if cut else "completed", out)
        self.decision = self._decide(cut)
        return out

    def _decide(self, cut: bool) -> RoundDecision:
        turn = self._turn
        if cut:
            return Stopped(
                "content_filter" if self.assembler.finish_reason == "content_filter" else "max_output_tokens"
            )
        if not self.made and not self.unfit:
            return Finished()
        if any(one.call.waits for one in self.made):
            return ClientAction()
        if turn.rounds >= turn.plan.max_infer_iters:
            return Stopped("max_iterations_exceeded")
        if remaining_tokens(turn) == 0:
            return Stopped("max_output_tokens")
        return Again()

    def _request(self) -> ModelRequest:
        """The plan's request with this round's messages, tools and what is left of the limits."""
        turn, plan = self._turn, self._turn.plan
        request = msgspec.structs.replace(
            plan.request, messages=self._messages, max_output_tokens=remaining_tokens(turn)
        )
        if plan.tools.functions and plan.capabilities.tools and not self._final:
            request.functions = plan.tools.functions
            request.tool_choice = self._choice()
            if not plan.capabilities.parallel_flag:
                request.parallel_tool_calls = None
        else:
            request.parallel_tool_calls = None
        request.output_format = None if self._held is not None else plan.output_format
        return request

    def _choice(self) -> str | None:
        """Forced for the first call only, or the loop would never end (bug case 13); `none` when no call is left."""
        turn = self._turn
        limit = turn.response.max_tool_calls
        if limit is not None and turn.server_calls >= limit:
            return "none"
        if turn.plan.tools.choice.mode == "none":
            return "none"
        choice = turn.plan.tools.first_choice if turn.rounds == 0 else None
        return None if turn.plan.searched_as(choice) else choice


def remaining_tokens(turn: Turn) -> int | None:
    """What is left of `max_output_tokens` for the next call."""
    limit = turn.response.max_output_tokens
    return None if limit is None else max(0, limit - turn.usage.output_tokens + turn.notes_tokens)
