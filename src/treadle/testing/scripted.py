"""Scripted ports for tests inside the process: a model that says what a test wants, and a cheap embedder."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from treadle.errors import InvalidRequest
from treadle.ports import CallFragment, Capabilities, Embedding, ModelChunk, ModelRequest, ModelUsage
from treadle.testing.gates import Gate, Waitable
from treadle.testing.turns import bag_of_words

Step = ModelChunk | Sequence[ModelChunk] | BaseException | Waitable
"""One network read (a chunk, or several that came together), a fault to raise, or something to wait for first."""


class ScriptedModel:
    """A `ChatModel`: the n-th call of `stream` plays the n-th script.

        model = ScriptedModel(calls("look", "{}"), says("Found it."))
        ... run the turn ...
        assert model.requests[1].messages[-1].role == "tool"
        model.assert_consumed()

    `requests` holds a copy of each ModelRequest as it was at the time. A call that nothing is scripted for raises
    and is remembered; `abandoned` counts streams closed before their script ended.
    """

    def __init__(
        self,
        *scripts: Sequence[Step],
        capabilities: Capabilities | Callable[[str], Capabilities] | None = None,
        models: Sequence[str] = ("scripted",),
    ) -> None:
        self.requests: list[ModelRequest] = []
        self.abandoned = 0
        self.stopped = Gate()
        """Opens when a stream is closed before its script ended."""
        self._scripts: deque[Sequence[Step]] = deque(scripts)
        self._capabilities = capabilities or Capabilities()
        self._models = list(models)
        self._problems: list[str] = []
        self._playing = 0

    def script(self, *more: Sequence[Step]) -> None:
        """Appends scripts."""
        self._scripts.extend(more)

    def capabilities(self, model: str) -> Capabilities:
        return self._capabilities(model) if callable(self._capabilities) else self._capabilities

    async def models(self) -> list[str]:
        return list(self._models)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[ModelChunk], None]:
        self.requests.append(copy.deepcopy(request))
        if not self._scripts:
            self._problems.append(f"model call {len(self.requests)} has no script")
            raise AssertionError(self._problems[-1])
        script = deque(self._scripts.popleft())
        self._playing += 1
        try:
            while script:
                step = script.popleft()
                if isinstance(step, BaseException):
                    script.clear()
                    raise step
                if isinstance(step, ModelChunk):
                    yield [step]
                elif isinstance(step, Sequence):
                    yield list(step)
                else:
                    await step.wait()
        except BaseException:
            if script:
                self.abandoned += 1
                self.stopped.set()
            raise
        finally:
            self._playing -= 1

    def assert_consumed(self) -> None:
        """AssertionError if scripts are left over, a call had none, or a stream is neither read up nor closed."""
        problems = [*self._problems, *(f"never asked for: {script!r}" for script in self._scripts)]
        if self._playing:
            problems.append(f"{self._playing} stream(s) were left open")
        if problems:
            raise AssertionError("; ".join(problems))


def says(*pieces: str, reasoning: str = "", usage: ModelUsage | None = None) -> list[Step]:
    """A script that reasons, says `pieces` in one network read each, and stops."""
    steps: list[Step] = [ModelChunk(reasoning=reasoning)] if reasoning else []
    steps += [ModelChunk(text=piece) for piece in pieces]
    return [*steps, ModelChunk(finish="stop", usage=usage or ModelUsage(input_tokens=10, output_tokens=5))]


def calls(
    name: str, arguments: str = "{}", *, id: str = "call_1", text: str = "", usage: ModelUsage | None = None
) -> list[Step]:
    """A script that says `text`, if any, and calls one function, its arguments in two network reads."""
    half = len(arguments) // 2
    steps: list[Step] = [ModelChunk(text=text)] if text else []
    steps.append(ModelChunk(call=CallFragment(slot=0, id=id, name=name, arguments=arguments[:half])))
    steps.append(ModelChunk(call=CallFragment(slot=0, arguments=arguments[half:])))
    return [*steps, ModelChunk(finish="tool_calls", usage=usage or ModelUsage(input_tokens=10, output_tokens=5))]


class WordEmbedder:
    """An `Embedder` without a model: texts that share words are near each other."""

    def __init__(self, dimensions: int = 64) -> None:
        self.dimensions = dimensions

    async def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> Embedding:
        if dimensions is not None and not 1 <= dimensions <= self.dimensions:
            raise InvalidRequest(f"dimensions must be between 1 and {self.dimensions}.", param="dimensions")
        width = dimensions or self.dimensions
        return Embedding([bag_of_words(text, width) for text in texts], sum(len(text.split()) for text in texts))
