"""The port to those who watch the server work: told of a request, its response, and each model call, tool call,
search and store within it, when it begins and when it ends. Never of a delta.

Nothing of what was said passes here: a watcher is given names, numbers and outcomes, no prompts, arguments or results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from treadle.errors import ServerError
from treadle.ports.models import FinishReason, ModelRequest, ModelUsage


class Watch(Protocol):
    """Something under way: it lasts as long as the block, and what leaves the block, a fault or a cancellation, is its
    outcome. No method raises."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class RequestWatch(Watch, Protocol):
    """An HTTP request, until its answer is sent. What the block begins is part of it, other tasks included."""

    def answered(self, route: str, status: int | None, *, complete: bool) -> None:
        """`route` is the path's pattern, empty where nothing is; `status` None if no answer was begun."""
        ...


class RoundWatch(Watch, Protocol):
    """One model call, until its answer has ended."""

    def heard(self) -> None:
        """The first part of the answer is here. Called once."""
        ...


class ToolWatch(Watch, Protocol):
    """One call of a tool that the server runs. What the block begins is part of it."""

    def answered(self, *, failed: bool) -> None: ...


class SearchWatch(Watch, Protocol):
    """One search of vector stores."""

    def found(self, count: int, *, broken: int) -> None:
        """`broken` counts the stores that could not be searched."""
        ...


class Answer(Protocol):
    """What a model call has given so far. Read when the call ends, however it ends."""

    finish_reason: FinishReason | None
    usage: ModelUsage | None


class ResponseWatch(Protocol):
    """A response in the making. Its parts may be under way at the same time."""

    def round(self, request: ModelRequest, answer: Answer) -> RoundWatch:
        """`request` has the settings of the call; its messages and functions are not for the watcher."""
        ...

    def listing(self, label: str) -> Watch:
        """Asking the MCP server of that label for its tools."""
        ...

    def tool(self, name: str, call_id: str, *, kind: str, label: str) -> ToolWatch:
        """`kind` as in `Binding.kind`; `label` is that of the MCP server, else empty."""
        ...

    def settling(self) -> Watch:
        """Storing the outcome."""
        ...

    def ended(self, status: str, usage: ModelUsage, fault: ServerError | None) -> None:
        """The last word, said once. `status` as in the response; `cancelled` if nobody listened any more."""
        ...


class Observer(Protocol):
    """Whoever watches. Nesting follows from where a method is called: in the block of a watch, or in a task that was
    begun there."""

    def request(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestWatch:
        """`headers` in lower case; `traceparent` and `tracestate` make the request part of its caller's trace."""
        ...

    def response(self, response_id: str, *, model: str, provider: str, conversation: str | None) -> ResponseWatch:
        """Begins at once. `model` as the request names it, `provider` the section of the configuration it is from."""
        ...

    def search(self, stores: Sequence[str]) -> SearchWatch: ...

    def asked(self, parameters: Sequence[str], tools: Sequence[str]) -> None:
        """A response was asked for: the names of the parameters that were given, and the types of the tools."""
        ...

    def level(self, name: str, what: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Something whose height is looked at now and then: by kind, or under an empty name. `read` is called from any
        thread, and must be quick."""
        ...


class Unwatched:
    """Nobody watches: all of the port's methods, doing nothing. Stateless, so that one serves everybody."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def answered(
        self, route: str = "", status: int | None = None, *, complete: bool = True, failed: bool = False
    ) -> None: ...

    def heard(self) -> None: ...

    def found(self, count: int, *, broken: int) -> None: ...

    def round(self, request: ModelRequest, answer: Answer) -> Self:
        return self

    def listing(self, label: str) -> Self:
        return self

    def tool(self, name: str, call_id: str, *, kind: str, label: str) -> Self:
        return self

    def settling(self) -> Self:
        return self

    def ended(self, status: str, usage: ModelUsage, fault: ServerError | None) -> None: ...

    def request(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Self:
        return self

    def response(self, response_id: str, *, model: str, provider: str, conversation: str | None) -> Self:
        return self

    def search(self, stores: Sequence[str]) -> Self:
        return self

    def asked(self, parameters: Sequence[str], tools: Sequence[str]) -> None: ...

    def level(self, name: str, what: str, read: Callable[[], Mapping[str, int]]) -> None: ...


UNWATCHED = Unwatched()
