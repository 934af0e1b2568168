"""CreateResponse to Plan: everything the loop may know is found out here, before the model is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from msgspec import UNSET, Raw

from treadle.engine.attachments import Attachments
from treadle.engine.citations import Citable
from treadle.engine.guarding import GuardRules
from treadle.engine.history import check_outputs, check_sealed, visible
from treadle.engine.inputs import check_addresses, decode_inputs, resolve
from treadle.engine.knowledge import check_stores, declared_searches, offer_file_search
from treadle.engine.marks import marks_of
from treadle.engine.media import Place
from treadle.engine.prompting import PlacedPrompt, render_prompt
from treadle.engine.recent import History, RecentHistories
from treadle.engine.render import render
from treadle.engine.sources import ApprovedCall, RemoteRules, RemoteSource, approved_calls, resolve_sources
from treadle.engine.summarize import Compacting, CompactionRules
from treadle.engine.telling import FileSearchRules, budget_of, recall
from treadle.engine.toolset import ToolSet, build
from treadle.engine.turn import FirstSearch, Plan
from treadle.engine.unstored import Recall, is_behind_gap
from treadle.engine.web import add_web_search
from treadle.errors import InvalidRequest, NotFound, PreviousNotFound
from treadle.ids import new_id, plausible
from treadle.ports import (
    Approvals,
    Checkpoint,
    Conversations,
    ModelMessage,
    ModelPart,
    ModelRequest,
    OutputFormat,
    PageReader,
    PassageSearch,
    Prompts,
    RemoteTools,
    Responses,
    Route,
    Router,
    Sealer,
    ServerTool,
    TokenCounter,
    WebSearch,
)
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.items import Item, McpApprovalRequest, TypedItem, decode_stored
from treadle.wire.responses import (
    ContextFields,
    ConversationRef,
    CreateResponse,
    ReasoningOptions,
    Response,
    TextFormat,
    TextOptions,
    checked_metadata,
)

_CONTINUABLE = ("completed", "incomplete")


@dataclass(slots=True, kw_only=True)
class Preparation:
    """The ports and limits that preparing a turn needs. What needs a running loop is set when the server starts."""

    router: Router
    responses: Responses
    conversations: Conversations
    sealer: Sealer
    server_tools: Mapping[str, ServerTool]
    counter: TokenCounter
    prompts: Prompts | None = None
    recent: RecentHistories = field(default_factory=RecentHistories)
    remote: RemoteTools | None = None
    rules: RemoteRules = field(default_factory=RemoteRules)
    approvals: Approvals | None = None
    search: WebSearch | None = None
    reader: PageReader | None = None
    search_limit: int = 8
    passages: PassageSearch | None = None
    attachments: Attachments = field(default_factory=Attachments)
    file_search: FileSearchRules = field(default_factory=FileSearchRules)
    tool_seconds: float = 120.0
    max_seconds: float = 3600.0
    compaction: CompactionRules = field(default_factory=CompactionRules)
    guard: GuardRules = field(default_factory=GuardRules)
    default_model: str = ""
    max_infer_iters: int = 10
    max_parallel_tools: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What decides what the model sees; shared by creating a response and by counting its tokens."""

    route: Route
    tools: ToolSet
    messages: list[ModelMessage]
    inputs: list[Item]
    base: Checkpoint | None
    history: History
    shown: list[TypedItem]
    attached: Mapping[Place, ModelPart]
    prompt: PlacedPrompt
    sources: list[RemoteSource]
    approved: list[ApprovedCall]
    denied: list[str]
    citable: Citable
    first_search: FirstSearch | None
    context_tokens: int = 0
    """What was reported of the turn before."""


async def prepare(
    scope: Scope,
    request: CreateResponse,
    given: Preparation,
    *,
    remembered: Recall | None = None,
    generate: bool = True,
) -> Plan:
    """The plan of a turn. Raises the wire error for anything that cannot be accepted.

    `remembered` knows responses that are not stored. Without `generate` the turn asks no model, and may have no input.
    """
    _check(request)
    output_format = _output_format(request.text)
    guarding = given.guard.of(request)
    context = await gather(scope, request, given, ahead=False, remembered=remembered, may_be_empty=not generate)
    contents = given.attachments.contents
    include = frozenset(request.include or ())
    want_logprobs = bool(request.top_logprobs) or "message.output_text.logprobs" in include
    return Plan(
        scope=scope,
        response=_echo(request, context, given.default_model),
        model=context.route.model,
        provider=context.route.provider,
        capabilities=context.route.capabilities,
        request=_model_request(request, context.route, want_logprobs),
        messages=context.messages,
        tools=context.tools,
        remote=context.sources,
        remote_tools=given.remote,
        remote_fatal=given.rules.fatal,
        approved=context.approved,
        denied=context.denied,
        claim=_claim(scope, given.approvals) if context.approved or context.denied else None,
        shown=context.shown,
        attached=context.attached,
        keep=None if contents is None or request.store is False else partial(contents.keep, scope),
        instructions=context.prompt.instructions,
        tool_seconds=given.tool_seconds,
        max_seconds=given.max_seconds,
        inputs=context.inputs,
        output_format=output_format,
        max_infer_iters=request.max_infer_iters or given.max_infer_iters,
        max_parallel_tools=given.max_parallel_tools,
        seal=given.sealer.seal if "reasoning.encrypted_content" in include else None,
        include=include,
        base=context.base,
        history=context.history,
        citable=context.citable,
        first_search=context.first_search,
        append_to_conversation=request.conversation_id is not None and generate,
        generate=generate,
        lead=len(context.prompt.leading),
        compacting=compacting_of(request, context.route, given),
        context_tokens=context.context_tokens,
        guarding=guarding,
    )


def compacting_of(request: CreateResponse, route: Route, given: Preparation) -> Compacting | None:
    """How this turn's context is compacted, if the request or the server wants that at all.

    A threshold that nobody has set is three quarters of the model's window; one beyond the window would never help.
    """
    rules, window = given.compaction, route.capabilities.context_window
    threshold = rules.threshold
    if request.context_management:
        threshold = request.context_management[0].compact_threshold or threshold or (window or 0) * 3 // 4
    if not threshold:
        return None
    return Compacting(
        threshold=threshold if window is None else min(threshold, window * 9 // 10),
        rules=rules,
        route=writer_of(route, given),
        count=partial(given.counter.count, model=route.upstream, encoding=request.tokenizer_encoding),
        seal=given.sealer.seal,
    )


def writer_of(route: Route, given: Preparation) -> Callable[[], Awaitable[Route]]:
    """Where summaries are written: by the configured model, else by the one that the conversation is with."""

    async def writer() -> Route:
        return await given.router.route(given.compaction.model) if given.compaction.model else route

    return writer


async def gather(
    scope: Scope,
    request: ContextFields,
    given: Preparation,
    *,
    ahead: bool = True,
    remembered: Recall | None = None,
    may_be_empty: bool = False,
) -> Context:
    """History, input, tools and route of a request, rendered for the model.

    Calls of remote tools are shown under names that are known once the tools are listed. `ahead` renders them all the
    same, under those that are likely; without it `messages` are left to whoever lists the tools.
    """
    model = request.model or given.default_model
    if not model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model", code="missing_required_parameter")
    if request.previous_response_id is not None and request.conversation is not None:
        raise InvalidRequest(
            "Give either 'previous_response_id' or 'conversation', not both.", param="previous_response_id"
        )
    given.counter.check(request.tokenizer_encoding)
    tools = build(request.tools or (), request.tool_choice, given.server_tools)
    searches = declared_searches(tools.hosted, given.file_search) if given.passages is not None else []
    given_items = decode_inputs(request.input)
    (base, history, context_tokens), route, rendered, _ = await asyncio.gather(
        _history(scope, request, given, remembered),
        given.router.route(model),
        render_prompt(scope, request.prompt, given.prompts),
        check_stores(scope, searches, given.passages),
    )
    prompt = PlacedPrompt(None, request.instructions)
    if rendered is not None:
        alone = not given_items and not history.items and not may_be_empty
        prompt = rendered.placed(request.instructions, alone=alone)
    inputs = await resolve(scope, [*given_items, *prompt.given], history.items, given.responses)
    if not inputs and not history.items and not may_be_empty:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    check_outputs(history.items, inputs)
    check_sealed(inputs, given.sealer.unseal)
    if given.rules.guard is not None:
        await check_addresses([*inputs, *prompt.leading], given.rules.guard, prompt.places)
    items = [item for item, _ in inputs]
    recalled = recall(history.items, items, given.file_search, budget_of(given.file_search, route.capabilities))
    items, past = recalled.inputs, [*recalled.history, *recalled.inputs]
    sources = resolve_sources(tools.hosted, history.items, given.rules) if given.remote is not None else []
    approved, denied = approved_calls(inputs, history.items, sources)
    add_web_search(tools, given.search, given.reader, given.search_limit, recalled.numbers)
    file_search = offer_file_search(
        tools, searches, given.passages, given.file_search, recalled.numbers, route.capabilities
    )
    if not sources:
        tools.settle_choice()
    permitted = {call.request.id for call in approved}
    shown: list[TypedItem] = [message for message, _ in prompt.leading]
    shown += [
        item
        for item in visible(past, given.sealer.unseal)
        if not (isinstance(item, McpApprovalRequest) and item.id in permitted)  # rendered with its call, once it ran
    ]
    attached = await given.attachments.find(scope, [*inputs, *prompt.leading], shown, route.capabilities, prompt.places)
    messages: list[ModelMessage] = []
    if ahead or not sources or file_search is not None:
        messages = render(shown, tools, route.capabilities, prompt.instructions, attached=attached)
    if file_search is not None:
        file_search.make_room(messages, route.capabilities)
    return Context(
        route=route,
        tools=tools,
        messages=messages,
        inputs=items,
        base=base,
        history=history,
        shown=shown,
        attached=attached,
        prompt=prompt,
        sources=sources,
        approved=approved,
        denied=denied,
        citable=recalled.citable,
        first_search=file_search.first(tools, route.capabilities, items) if file_search is not None else None,
        context_tokens=context_tokens,
    )


def _claim(scope: Scope, approvals: Approvals | None) -> Callable[[str], Awaitable[bool]]:
    async def claim(request_id: str) -> bool:
        return approvals is not None and await approvals.claim(scope, request_id)

    return claim


def _check(request: CreateResponse) -> None:
    checked_metadata(request.metadata)
    if request.background and request.store is False:
        raise InvalidRequest(
            "A background response has to be stored: leave out 'store', or set it to true.", param="background"
        )


async def _history(
    scope: Scope, request: ContextFields, given: Preparation, remembered: Recall | None
) -> tuple[Checkpoint | None, History, int]:
    """Where the history ends, what it holds, and the tokens that were reported of it: one look-up, and one range scan
    unless it is known still."""
    checkpoint: Checkpoint | None = None
    tokens = 0
    if (previous := request.previous_response_id) is not None:
        if remembered is not None and (unstored := remembered(previous)) is not None:
            return None, unstored, 0
        found = await given.responses.checkpoint(scope, previous) if plausible(previous) else None
        if found is None:
            raise PreviousNotFound(
                f"Previous response with id '{previous[:128]}' not found. Responses made with 'store': false can only "
                "be continued on the WebSocket connection that they were made on.",
                param="previous_response_id",
            )
        row, checkpoint = found
        tokens = marks_of(row.data).context_tokens
        if is_behind_gap(row.data):
            raise PreviousNotFound(
                f"Previous response with id '{previous}' continues one made with 'store': false, so only the WebSocket "
                "connection that it was made on could continue it.",
                param="previous_response_id",
            )
        if row.status not in _CONTINUABLE:
            raise InvalidRequest(
                f"Previous response '{previous}' is {row.status} and cannot be continued.", param="previous_response_id"
            )
    elif (conversation := request.conversation_id) is not None:
        if not conversation.startswith("conv_"):
            raise InvalidRequest(
                "Invalid 'conversation': the ids of conversations start with 'conv_'.", param="conversation"
            )
        checkpoint = await given.conversations.checkpoint(scope, conversation) if plausible(conversation) else None
        if checkpoint is None:
            raise NotFound(f"Conversation '{conversation[:128]}' not found.", param="conversation")
    if checkpoint is None:
        return None, History([], 0), 0
    if previous is not None and (known := given.recent.get(checkpoint)) is not None:
        return checkpoint, known, tokens
    stored = await given.responses.history(scope, checkpoint)
    items = [decode_stored(entry.kind, entry.id, entry.data) for entry in stored]
    return checkpoint, History(items, sum(len(entry.data) for entry in stored)), tokens


def _output_format(text: TextOptions | None) -> OutputFormat | None:
    """The wanted format, or None for text. InvalidRequest when a json_schema lacks its name or schema."""
    if text is None or text.format is None or text.format.type == "text":
        return None
    given = text.format
    if given.type == "json_object":
        return OutputFormat("json_object")
    for name in ("name", "schema"):
        if getattr(given, name) in (None, UNSET):
            at = f"text.format.{name}"
            raise InvalidRequest(f"Missing required parameter: '{at}'.", param=at, code="missing_required_parameter")
    return OutputFormat(
        "json_schema",
        name=given.name or "",
        schema=Raw(encode(given.schema)),
        strict=given.strict or None,
        description=given.description or None,
    )


def _model_request(request: CreateResponse, route: Route, want_logprobs: bool) -> ModelRequest:
    """What the caller set, and nothing it did not (bug case 22)."""
    verbosity = request.text.verbosity if request.text else None
    return ModelRequest(
        model=route.upstream,
        messages=[],
        parallel_tool_calls=request.parallel_tool_calls,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        top_logprobs=request.top_logprobs,
        logprobs=want_logprobs,
        reasoning_effort=request.reasoning.effort
        if request.reasoning and route.capabilities.reasoning_effort
        else None,
        verbosity=verbosity or None,
        service_tier=request.service_tier,
        prompt_cache_key=request.prompt_cache_key,
        safety_identifier=request.safety_identifier,
        watched=request.stream is True,
    )


def _echo(request: CreateResponse, context: Context, default_model: str) -> Response:
    """The response before its first round: the settings as they apply, with defaults where the caller set none."""
    text = request.text or TextOptions()
    conversation = request.conversation_id
    response = Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        model=request.model or default_model,
        instructions=context.prompt.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        previous_response_id=request.previous_response_id,
        conversation=ConversationRef(conversation) if conversation else None,
        prompt=context.prompt.used,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=request.reasoning or ReasoningOptions(),
        safety_identifier=request.safety_identifier,
        text=TextOptions(format=_echo_format(text.format), verbosity=text.verbosity or UNSET),
        tool_choice=context.tools.choice.echo,
        tools=context.tools.echo,
        truncation=request.truncation or "disabled",
        user=request.user,
        metadata=request.metadata or {},
    )
    for name in ("parallel_tool_calls", "store", "temperature", "top_p", "presence_penalty", "frequency_penalty"):
        if (value := getattr(request, name)) is not None:
            setattr(response, name, value)
    response.top_logprobs = request.top_logprobs or 0
    if request.service_tier is not None and request.service_tier != "auto":
        response.service_tier = request.service_tier
    return response


def _echo_format(given: TextFormat | None) -> TextFormat:
    if given is None:
        return TextFormat()
    if given.type == "json_schema":
        return TextFormat(
            type=given.type,
            name=given.name,
            description=given.description or None,
            schema=given.schema,
            strict=given.strict is True,
        )
    return TextFormat(type=given.type)
