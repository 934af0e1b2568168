"""`POST /v1/responses/compact`: a history made short once and for all, stored like a response."""

from __future__ import annotations

import time
from functools import partial

from msgspec import Raw, structs

from treadle.api.packing import pack
from treadle.engine.notes import Notes, Summary, said_by_user, standing_in, to_record
from treadle.engine.prepare import Context, Preparation, gather, writer_of
from treadle.engine.render import render
from treadle.engine.summarize import Compacting, Written, record_of, summarize
from treadle.engine.turn import wire_usage
from treadle.errors import InvalidRequest
from treadle.ids import new_id
from treadle.ports import ResponseRow, Responses, SettledTurn, StoredItem
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.items import Message, TypedItem
from treadle.wire.responses import CompactedResponse, CompactResponse, Response


class CompactionService:
    """The use case over the engine's step."""

    def __init__(self, preparation: Preparation, responses: Responses) -> None:
        self._preparation = preparation
        self._store = responses

    async def compact(self, scope: Scope, request: CompactResponse) -> CompactedResponse:
        """The user's messages and one compaction for all else. Its id can be continued like that of a response.

        InvalidRequest for a request that names no model, or nothing to compact. Whatever the model server refuses is
        raised.
        """
        given = self._preparation
        model = request.model or given.compaction.model
        if not model:
            raise InvalidRequest(
                "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
            )
        context = await gather(scope, structs.replace(request, model=model), given)
        await given.guard.admit(context.inputs, "input")
        compacting = Compacting(
            threshold=0,
            rules=given.compaction,
            route=writer_of(context.route, given),
            count=partial(given.counter.count, model=context.route.upstream, encoding=request.tokenizer_encoding),
            seal=given.sealer.seal,
            cache_key=request.prompt_cache_key,
        )
        so_far = _earlier(context)
        written = await summarize(_record(context.shown, context), so_far, compacting, request.instructions)
        notes = Notes(
            summary=_shorter(written, context),
            prefix=given.compaction.prefix,
            standing=standing_in(context.shown),
        )
        item = notes.sealed(given.sealer.seal)
        said = [StoredItem(one.id or "", "message", encode(one)) for one in said_by_user(context.shown)]
        compaction = StoredItem(item.id or "", "compaction", encode(item))
        response = _response(request, model, written)
        row = ResponseRow(
            id=response.id,
            status=response.status,
            model=model,
            created_at=response.created_at,
            completed_at=response.completed_at,
            previous=response.previous_response_id,
            data=pack(response),
        )
        await self._store.settle(scope, SettledTurn(row=row, inputs=said, outputs=[compaction]))
        return CompactedResponse(
            id=response.id,
            created_at=response.created_at,
            output=[Raw(one.data) for one in (*said, compaction)],
            usage=wire_usage(written.usage),
        )


def _response(request: CompactResponse, model: str, written: Written) -> Response:
    """The compaction as `GET /v1/responses/{id}` shows it."""
    now = int(time.time())
    return Response(
        id=new_id("resp"),
        created_at=now,
        completed_at=now,
        status="completed",
        model=model,
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        prompt_cache_key=request.prompt_cache_key,
        usage=wire_usage(written.usage),
    )


def _earlier(context: Context) -> str:
    """The notes of compactions that are compacted again."""
    return "\n\n".join(item.text for item in context.shown if isinstance(item, Summary))


def _shorter(written: Written, context: Context) -> str:
    """The notes, or what they stand for where that is shorter: no history grows by being compacted."""
    others = [item for item in context.shown if not (isinstance(item, Message) and item.role == "user")]
    verbatim = "\n\n".join(text for text in (_earlier(context), *_record(others, context)) if text)
    return verbatim if 0 < len(verbatim) < len(written.text) else written.text


def _record(items: list[TypedItem], context: Context) -> list[str]:
    return record_of(render(to_record(items), context.tools, context.route.capabilities, attached=context.attached))
