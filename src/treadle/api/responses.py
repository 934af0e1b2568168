"""Responses: create, retrieve, list, delete, input items, token count."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

import msgspec
from msgspec import Raw

from treadle.api.includes import shown
from treadle.api.locks import ConversationLocks
from treadle.api.packing import given_inputs, given_of, pack, unpack
from treadle.api.paging import item_page
from treadle.api.tasks import Tasks
from treadle.api.usage import declared_types, given_parameters
from treadle.engine.counting import context_tokens
from treadle.engine.loop import run
from treadle.engine.marks import Marks, marked
from treadle.engine.prepare import Preparation, gather, prepare
from treadle.engine.turn import Plan, Turn
from treadle.engine.unstored import Recall, behind_gap
from treadle.errors import (
    ClaimLost,
    ConversationLocked,
    InvalidRequest,
    NotFound,
    PreviousNotFound,
    ServerError,
    StorageFault,
)
from treadle.ids import plausible
from treadle.ports import (
    UNWATCHED,
    Checkpoint,
    Observer,
    Order,
    ResponseRow,
    Responses,
    SettledTurn,
    StoredItem,
    TokenCounter,
)
from treadle.scope import Scope
from treadle.wire.events import Event
from treadle.wire.items import FileSearchCall, Item, WebSearchCall, encode_item, kind_of
from treadle.wire.lists import ItemList, ResponseList
from treadle.wire.responses import CountTokens, CreateResponse, InputTokens, ListedResponse, Response, ResponseDeleted

log = logging.getLogger("treadle.responses")

LEASE_SECONDS = 60
"""How long a visible running response is believed without word from its process."""

_WAITS = (0.2, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further try to store a turn that has no client who could be told."""


class Backing(Protocol):
    """The job that makes a turn. It has a row from its beginning to its end, and decides what becomes of a turn that
    is given up without an outcome."""

    async def complete(self, turn: Turn, settled: SettledTurn) -> None:
        """Adds to what is about to be stored: the end of the job, and what is to be known with it."""
        ...

    def stored(self, settled: SettledTurn) -> None:
        """It is stored."""
        ...


class Run:
    """A response in the making. Iterate it once, to the end or until nobody listens; then `turn` has the outcome."""

    def __init__(self, service: ResponseService, turn: Turn) -> None:
        self.turn = turn
        self.backing: Backing | None = None
        self._service = service

    def __aiter__(self) -> AsyncGenerator[list[Event], None]:
        return self._service.drive(self.turn, self.backing)

    def drop(self) -> None:
        """Lets go of what it holds, without an outcome."""
        self._service.let_go(self.turn)

    def interrupt(self, fault: ServerError) -> bool:
        """Makes `fault` the turn's outcome once its task is cancelled; False if its outcome stands already."""
        if self.turn.settling:
            return False
        self.turn.interruption = fault
        return True

    def cancel(self) -> bool:
        """The same, with `cancelled` as the outcome."""
        if self.turn.settling:
            return False
        self.turn.cancelling = True
        return True

    async def result(self) -> Response:
        """Drains the events; raises the fault of a turn that failed."""
        async with aclosing(self._service.drive(self.turn)) as batches:
            async for _ in batches:
                pass
        if self.turn.fault is not None:
            raise self.turn.fault
        return self.turn.response


class ResponseService:
    """The use cases of `/v1/responses`."""

    def __init__(
        self,
        preparation: Preparation,
        responses: Responses,
        counter: TokenCounter,
        tasks: Tasks,
        *,
        visible_after: float = 1.0,
        locks: ConversationLocks | None = None,
        observer: Observer = UNWATCHED,
    ) -> None:
        self._preparation = preparation
        self._store = responses
        self._counter = counter
        self._tasks = tasks
        self._visible_after = visible_after
        self._running: dict[str, Turn] = {}
        self._visible: dict[str, Scope] = {}
        self._locks = locks or ConversationLocks()
        self._observer = observer

    @property
    def running(self) -> int:
        """Responses that are being made now, by this process."""
        return len(self._running)

    async def create(
        self,
        scope: Scope,
        request: CreateResponse,
        *,
        remembered: Recall | None = None,
        generate: bool = True,
        known_as: str | None = None,
    ) -> Run:
        """Prepares a turn; everything that can be refused is refused here. Nothing runs before the Run is iterated.

        `remembered` knows responses that are not stored. Without `generate` the turn asks no model. `known_as`: the id
        of the response, where that is there already.
        """
        previous = self._running.get(request.previous_response_id or "")
        if previous is not None and previous.plan.scope == scope:
            raise InvalidRequest(
                f"Previous response '{previous.response.id}' is still in progress.", param="previous_response_id"
            )
        self._locks.acquire(scope, request.conversation_id)
        try:
            await self._check_free(scope, request.conversation_id, known_as)
            plan = await prepare(scope, request, self._preparation, remembered=remembered, generate=generate)
        except BaseException:
            self._locks.release(scope, request.conversation_id)
            raise
        if self._observer is not UNWATCHED:
            self._observer.asked(given_parameters(request), declared_types(request))
        if known_as is not None:
            plan.response.id = known_as
        return Run(self, Turn(plan, plan.response))

    async def drive(self, turn: Turn, backing: Backing | None = None) -> AsyncGenerator[list[Event], None]:
        """The events of a turn, with all that surrounds it: visibility, the lock, and the truth when nobody listens."""
        response_id = turn.response.id
        self._running[response_id] = turn
        turn.watch = self._observer.response(
            response_id,
            model=turn.response.model,
            provider=turn.plan.provider,
            conversation=turn.response.conversation.id if turn.response.conversation else None,
        )
        timer = asyncio.get_running_loop().call_later(self._visible_after, self._show, turn)
        try:
            async with aclosing(run(turn, partial(self._settled, backing))) as batches:
                async for batch in batches:
                    yield batch
        except (asyncio.CancelledError, GeneratorExit):
            if not turn.settling:
                turn.settling = True
                if backing is None:
                    turn.cancel()
                    self._tasks.spawn(self._end(turn, None))
                else:
                    self.let_go(turn)
            raise
        finally:
            timer.cancel()
            turn.watch.ended(turn.response.status, turn.usage, turn.fault)

    def let_go(self, turn: Turn) -> None:
        """The turn does not count as running any more, and does not hold its conversation."""
        response = turn.response
        self._running.pop(response.id, None)
        self._visible.pop(response.id, None)
        self._locks.release(turn.plan.scope, response.conversation.id if response.conversation else None)

    async def get(self, scope: Scope, response_id: str, include: Sequence[str] = ()) -> Response:
        turn = self._running.get(response_id)
        if turn is not None and turn.plan.scope == scope and turn.response.store:
            return _so_far(turn, include)
        found = await self._store.get(scope, response_id) if plausible(response_id) else None
        if found is None:
            raise _missing(response_id)
        return unpack(Response, found, include)

    async def page(
        self, scope: Scope, *, after: str | None, limit: int, order: Order, model: str | None
    ) -> ResponseList:
        page = await self._store.page(scope, after=after, limit=limit, order=order, model=model)
        data = [unpack(ListedResponse, found, ()) for found in page.responses]
        for listed, found in zip(data, page.responses, strict=True):
            listed.input = [shown(item, ()) for item in given_inputs(found)]
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        return ResponseList(data=data, first_id=first, last_id=last, has_more=page.has_more)

    async def input_items(
        self,
        scope: Scope,
        response_id: str,
        *,
        after: str | None,
        before: str | None,
        limit: int,
        order: Order,
        include: Sequence[str],
    ) -> ItemList:
        turn = self._running.get(response_id)
        if turn is not None and turn.plan.scope == scope and turn.response.store:
            items = given_of(inputs_of(turn.plan))
        else:
            found = await self._store.get(scope, response_id) if plausible(response_id) else None
            if found is None:
                raise _missing(response_id)
            items = given_inputs(found)
        return item_page(items, after=after, before=before, limit=limit, order=order, include=include)

    async def delete(self, scope: Scope, response_id: str) -> ResponseDeleted:
        turn = self._running.get(response_id)
        if turn is not None and turn.plan.scope == scope:
            raise InvalidRequest(f"Response '{response_id}' is still in progress.", param="response_id")
        if not plausible(response_id) or not await self._store.delete(scope, response_id):
            raise _missing(response_id)
        self._preparation.recent.clear()
        return ResponseDeleted(response_id)

    async def count_tokens(self, scope: Scope, request: CountTokens) -> InputTokens:
        """The tokens of what the model would be sent."""
        context = await gather(scope, request, self._preparation)
        count = partial(self._counter.count, model=context.route.upstream, encoding=request.tokenizer_encoding)
        return InputTokens(await context_tokens(context.messages, context.tools.functions, count))

    async def renew(self) -> None:
        """Keeps visible running responses believed; called every third of the lease."""
        by_owner: dict[tuple[str, str], tuple[Scope, list[str]]] = {}
        for response_id, scope in self._visible.items():
            by_owner.setdefault((scope.tenant, scope.owner), (scope, []))[1].append(response_id)
        for scope, ids in by_owner.values():
            await self._store.renew(scope, ids, int(time.time()) + LEASE_SECONDS)

    # ------------------------------------------------------------------------------------------------

    def _show(self, turn: Turn) -> None:
        """The turn has run for a while: write a row, so that other processes and a restart see it."""
        if turn.settling or not turn.response.store or turn.response.background:
            return
        if turn.guard is not None and not turn.guard.heard:
            # What is flagged is not to be stored, so nothing is before that is known.
            asyncio.get_running_loop().call_later(max(self._visible_after, 0.1), self._show, turn)
            return
        self._visible[turn.response.id] = turn.plan.scope
        self._tasks.spawn(
            self._store.begin(
                turn.plan.scope, row_of(turn.response), inputs_of(turn.plan), int(time.time()) + LEASE_SECONDS
            )
        )

    async def _check_free(self, scope: Scope, conversation: str | None, known_as: str | None) -> None:
        """ConversationLocked if a response is being made there, or waits to be, in whatever process."""
        if conversation is not None and plausible(conversation):
            holder = await self._store.holder(scope, conversation)
            if holder not in (None, known_as):
                raise ConversationLocked(
                    f"Response '{holder}' is being made in conversation '{conversation}'. Try again when it is done.",
                    param="conversation",
                )

    async def _settled(self, backing: Backing | None, turn: Turn) -> None:
        """Stores the turn; a client that leaves meanwhile does not stop it."""
        end = self._end(turn, backing)
        await (self._tasks.run(end) if turn.response.store else end)

    async def _end(self, turn: Turn, backing: Backing | None) -> None:
        """Stores what the turn leaves behind. Until that is done it counts as running and holds its conversation."""
        try:
            if turn.response.store:
                await self._settle(turn, backing)
        finally:
            self.let_go(turn)

    async def _settle(self, turn: Turn, backing: Backing | None) -> None:
        """One transaction for all of the turn."""
        settled = settled_turn(turn)
        try:
            checkpoint = await self._write(turn, settled, backing)
            self._remember(turn, settled, checkpoint)
        except (NotFound, PreviousNotFound):
            if turn.response.conversation is None:
                raise
            # The conversation was deleted while the turn ran, which is no reason to lose the turn (bug case 70).
            settled = settled_turn(turn)
            settled.base, settled.append_to_conversation = None, False
            await self._write(turn, settled, backing)
        except InvalidRequest as fault:
            if not settled.append_to_conversation:
                raise
            # Another process was faster, or the conversation cannot take these items. The failure is kept, as a branch
            # that the conversation does not show.
            turn.fail(fault)
            await self._write(turn, settled_turn(turn), backing)
            raise

    async def _write(self, turn: Turn, settled: SettledTurn, backing: Backing | None) -> Checkpoint:
        """Stores it. If a job has made it, nobody could be told of a fault, so it is tried for a while."""
        if backing is None:
            return await self._store.settle(turn.plan.scope, settled)
        await backing.complete(turn, settled)
        for wait in _WAITS:
            try:
                checkpoint = await self._store.settle(turn.plan.scope, settled)
                break
            except ClaimLost:
                raise
            except StorageFault as fault:
                log.warning("%s could not be stored and is tried again: %s", turn.response.id, fault.message)
            await asyncio.sleep(wait)
        else:
            checkpoint = await self._store.settle(turn.plan.scope, settled)
        backing.stored(settled)
        return checkpoint

    def _remember(self, turn: Turn, settled: SettledTurn, checkpoint: Checkpoint) -> None:
        """The next turn of a chain finds its history in memory. Conversations are read anew: others may edit them."""
        if turn.response.conversation is None and turn.response.status in ("completed", "incomplete"):
            plan = turn.plan
            added = sum(len(item.data) for item in (*settled.inputs, *settled.outputs))
            self._preparation.recent.put(checkpoint, turn.history(added), instead_of=plan.base)


def settled_turn(turn: Turn) -> SettledTurn:
    plan = turn.plan
    kinds = [kind_of(item) for item in turn.items]
    row = row_of(turn.response)
    if plan.behind_gap:
        row.data = behind_gap(row.data)
    carried, base = [], plan.base
    if turn.carried is not None and not plan.append_to_conversation:
        # A thread begins here: what was summarised is not loaded again.
        carried, base = [stored(item) for item in turn.carried], None
    tokens = turn.context_tokens if plan.compacting is not None else 0
    row.data = marked(row.data, Marks(context_tokens=tokens, carried=len(carried)))
    return SettledTurn(
        row=row,
        inputs=[*carried, *inputs_of(plan)],
        outputs=[
            StoredItem(turn.items[i].id or "", kinds[i], _kept(turn.items[i], raw))
            for i, raw in sorted(turn.raws.items())
        ],
        base=base,
        append_to_conversation=plan.append_to_conversation and turn.response.status in ("completed", "incomplete"),
    )


def _kept(item: Item, raw: Raw) -> bytes:
    """The item as it is stored: a search with its results, which the client may not have asked to see."""
    return encode_item(item) if isinstance(item, WebSearchCall | FileSearchCall) else bytes(raw)


def _so_far(turn: Turn, include: Sequence[str]) -> Response:
    """The running response as a client sees it."""
    done = [
        StoredItem(turn.items[i].id or "", kind_of(turn.items[i]), bytes(raw)) for i, raw in sorted(turn.raws.items())
    ]
    found = msgspec.structs.replace(turn.response, output=[shown(item, include) for item in done])
    if turn.settling:
        # It has an outcome, but nothing is promised before that is stored.
        found.status, found.completed_at, found.usage = "in_progress", None, None
        found.error = found.incomplete_details = None
    return found


def row_of(response: Response) -> ResponseRow:
    return ResponseRow(
        id=response.id,
        status=response.status,
        model=response.model,
        created_at=response.created_at,
        completed_at=response.completed_at,
        previous=response.previous_response_id,
        conversation=response.conversation.id if response.conversation else None,
        data=pack(response),
    )


def inputs_of(plan: Plan) -> list[StoredItem]:
    return [stored(item) for item in plan.inputs]


def stored(item: Item) -> StoredItem:
    return StoredItem(item.id or "", kind_of(item), encode_item(item))


def _missing(response_id: str) -> NotFound:
    return NotFound(
        f"Response '{response_id[:128]}' not found. Use 'client.responses.list()' to list available Responses.",
        param="response_id",
    )
