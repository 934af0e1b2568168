"""The types of a turn: Plan (frozen), Turn (the only mutable state), and what may follow a round."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Raw

from treadle.engine.citations import Citable, Source
from treadle.engine.guard import Guard, Guarding
from treadle.engine.media import Place
from treadle.engine.recent import History
from treadle.engine.sources import ApprovedCall, RemoteSource
from treadle.engine.summarize import Compacting
from treadle.engine.toolset import Binding, ToolSet
from treadle.errors import ContextTooLong, InvalidRequest, QuotaExceeded, ServerError
from treadle.ids import new_id
from treadle.ports import (
    UNWATCHED,
    Capabilities,
    ChatModel,
    Checkpoint,
    FileRow,
    ImagePart,
    ModelMessage,
    ModelPart,
    ModelRequest,
    ModelUsage,
    OutputFormat,
    RemoteTools,
    ResponseWatch,
)
from treadle.scope import Scope
from treadle.wire.items import Item, TypedItem, encode_item
from treadle.wire.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    Usage,
)

Keep = Callable[[str, str], Awaitable[FileRow]]
"""Takes a filename and a text."""

Reason = Literal["max_output_tokens", "content_filter", "max_iterations_exceeded"]


@dataclass(frozen=True, slots=True)
class FirstSearch:
    """A search that the server makes before it asks the model, with the user's question."""

    binding: Binding
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of preparation. What is not in the plan, the loop may not look up."""

    scope: Scope
    response: Response
    """The response as it stands before the first round: ids, echo of the request, no output."""
    model: ChatModel
    provider: str = ""
    capabilities: Capabilities
    request: ModelRequest
    """Everything for the first model call but messages and tools."""
    messages: list[ModelMessage]
    """Empty where they are rendered only once the remote tools have names."""
    tools: ToolSet
    remote: list[RemoteSource] = field(default_factory=list)
    """MCP servers whose tools have to be listed before the first round."""
    remote_tools: RemoteTools | None = None
    remote_fatal: bool = False
    """A server that cannot be listed fails the response."""
    approved: list[ApprovedCall] = field(default_factory=list)
    """Calls that the client has permitted, to be run before the first round."""
    denied: list[str] = field(default_factory=list)
    """Requests that the client has refused: nothing else may answer them any more."""
    claim: Callable[[str], Awaitable[bool]] | None = None
    """Takes an approval request for this turn; False if another turn has it."""
    shown: list[TypedItem] = field(default_factory=list)
    """What `messages` are rendered from."""
    attached: Mapping[Place, ModelPart] = field(default_factory=dict)
    """What stands for parts of `shown` that refer to images and files."""
    instructions: str | None = None
    inputs: list[Item]
    """This turn's own input items, as they will be stored."""
    output_format: OutputFormat | None = None
    max_infer_iters: int = 10
    max_parallel_tools: int = 8
    keep: Keep | None = None
    """Keeps a text as a file of the caller; None for a response of which nothing is to stay."""
    tool_seconds: float = 120.0
    """How long one call of a server tool may take."""
    max_seconds: float = 3600.0
    """How long the turn may take before no further round is begun."""
    seal: Callable[[str], str] | None = None
    """Encrypts reasoning for the client; set when it asked for it."""
    include: frozenset[str] = frozenset()
    base: Checkpoint | None = None
    history: History = field(default_factory=lambda: History([], 0))
    """What stands before `inputs`, kept for the turn that will continue this one."""
    append_to_conversation: bool = False
    generate: bool = True
    """False: the turn is only prepared for the one that will continue it, and no model is asked."""
    citable: Citable = field(default_factory=Citable)
    """What searches of earlier turns found."""
    first_search: FirstSearch | None = None
    lead: int = 0
    """How many of `shown` stand before the history, anew in each turn."""
    compacting: Compacting | None = None
    """How a context that grows too long is compacted; None: it is not."""
    context_tokens: int = 0
    """What the model server reported of the turn before, input and answer; 0: nothing."""

    guarding: Guarding | None = None
    """What is judged; None: nothing."""

    @property
    def behind_gap(self) -> bool:
        """What came before was never stored; only who remembers it can continue."""
        return self.base is None and self.response.previous_response_id is not None

    def searched_as(self, choice: str | None) -> bool:
        """Whether the server's own search is the call that the first choice of a tool demands."""
        if self.first_search is None:
            return False
        if choice == "required":
            return self.tools.choice.forced is None
        return choice == f"function:{self.first_search.binding.seen}"


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing left to run."""


@dataclass(frozen=True, slots=True)
class ClientAction:
    """The client has to run calls of its own; the turn is complete."""


@dataclass(frozen=True, slots=True)
class Again:
    """Outputs are in the messages: call the model once more."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A limit ended the turn."""

    reason: Reason


RoundDecision = Finished | ClientAction | Again | Stopped


@dataclass(slots=True)
class Turn:
    """What changes while a response is made. `items[i]` is what was announced under output index i."""

    plan: Plan
    response: Response
    items: list[Item] = field(default_factory=list)
    raws: dict[int, Raw] = field(default_factory=dict)
    """JSON of the items that are done, by output index."""
    sequence: int = 0
    rounds: int = 0
    server_calls: int = 0
    usage: ModelUsage = field(default_factory=ModelUsage)
    fault: ServerError | None = None
    watch: ResponseWatch = UNWATCHED
    images: dict[str, list[ImagePart]] = field(default_factory=dict)
    """Pictures that this turn's tools gave, by item; the items themselves hold text."""
    citable: Citable = field(init=False)
    """What the model may cite."""
    settling: bool = False
    """Set when storing began: from then on the outcome stands, whatever happens to the client."""
    interruption: ServerError | None = None
    """Set just before the task that runs the turn is cancelled, when it has to end with this fault and be told so.
    Without it, to be cancelled means that nobody listens any more."""
    cancelling: bool = False
    """The same, when it has to end as cancelled because its owner wants it to."""
    announced: int = 0
    """How many of its first events have been told already: that it was created, that it is in progress."""
    acting: Callable[[], Awaitable[None]] | None = None
    """Awaited before a tool runs that must not run twice for the same call."""
    asked: Sequence[ModelMessage] = ()
    """What the first round shows the model."""
    view: list[TypedItem] | None = None
    """What the model is shown instead of `plan.shown` and the items before `view_from`, since a compaction."""
    view_from: int = 0
    carried: list[Item] | None = None
    """What of the history the next turn loads, since a compaction; None: all of it."""
    notes_tokens: int = 0
    """Output tokens that went into compactions, not into the answer."""
    context_tokens: int = 0
    """Of the newest model call and its answer, as reported."""
    call_ids: set[str] | None = None
    """Ids of the calls in history and output; None until the first call."""

    guard: Guard | None = field(init=False)

    def __post_init__(self) -> None:
        self.citable = self.plan.citable
        self.guard = Guard(self.plan.guarding) if self.plan.guarding is not None else None

    @property
    def ended_from_outside(self) -> bool:
        """It ends before its time, and whoever reads its events is told so."""
        return self.cancelling or self.interruption is not None

    def next_sequence(self) -> int:
        number = self.sequence
        self.sequence = number + 1
        return number

    def own_call_id(self, given: str | None) -> str:
        """The model server's id for a new call, or one of ours where it gave none or one that is taken.

        Some servers count from 0 again in every answer; an output would then belong to two calls (bug case 12).
        """
        if self.call_ids is None:
            self.call_ids = {call.id for message in self.asked for call in message.calls}
        call_id = (given or "")[:64]
        if not call_id or call_id in self.call_ids:
            call_id = new_id("call")
        self.call_ids.add(call_id)
        return call_id

    def keep_images(self, item_id: str, images: list[ImagePart]) -> None:
        if images:
            self.images[item_id] = images

    def cite_from(self, sources: Iterable[Source]) -> None:
        if self.citable is self.plan.citable:
            self.citable = self.plan.citable.copy()
        self.citable.add(sources)

    def add_usage(self, usage: ModelUsage) -> None:
        total = self.usage
        total.input_tokens += usage.input_tokens
        total.output_tokens += usage.output_tokens
        total.cached_tokens += usage.cached_tokens
        total.cache_write_tokens += usage.cache_write_tokens
        total.reasoning_tokens += usage.reasoning_tokens

    def snapshot(self) -> Response:
        """The response with the items done so far."""
        self.response.output = [self.raws[index] for index in sorted(self.raws)]
        return self.response

    def history(self, added: int) -> History:
        """What the turn that continues this one begins with. `added` are the bytes that this turn's items have."""
        history = self.plan.history
        if self.carried is not None and not self.plan.append_to_conversation:
            history = History(self.carried, sum(len(encode_item(item)) for item in self.carried))
        items = [*history.items, *self.plan.inputs, *(self.items[i] for i in sorted(self.raws))]
        return History(items, history.size + added)

    def complete(self) -> None:
        self._end()
        self.response.status = "completed"

    def stop(self, reason: Reason) -> None:
        self._end()
        self.response.status = "incomplete"
        self.response.incomplete_details = IncompleteDetails(reason)

    def fail(self, fault: ServerError) -> None:
        self.fault = fault
        self._end()
        self.response.completed_at = None
        self.response.status = "failed"
        self.response.incomplete_details = None
        self.response.error = ResponseError(response_code(fault), fault.message)

    def cancel(self) -> None:
        self._end()
        self.response.completed_at = None
        self.response.status = "cancelled"

    def _end(self) -> None:
        self.snapshot()
        self.response.completed_at = int(time.time())
        self.response.usage = wire_usage(self.usage)


def response_code(fault: ServerError) -> str:
    """A code from the closed set that strict clients accept inside a response (contract §4)."""
    if isinstance(fault, QuotaExceeded):
        return "rate_limit_exceeded"
    if isinstance(fault, ContextTooLong | InvalidRequest):
        return "invalid_prompt"
    return "server_error"


def wire_usage(usage: ModelUsage) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        input_tokens_details=InputTokensDetails(usage.cached_tokens, usage.cache_write_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputTokensDetails(usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )
