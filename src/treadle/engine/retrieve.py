"""A search that the server makes before it asks the model: an ordinary call, with the user's question for its query.

Models that cannot call tools answer from documents this way; others are spared a round.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from treadle.engine.calls import FileCall
from treadle.engine.dispatch import outcome_of
from treadle.engine.turn import FirstSearch, Turn
from treadle.ids import new_id
from treadle.ports import ToolOutcome
from treadle.wire.base import encode
from treadle.wire.events import Event


async def search_first(turn: Turn, wanted: FirstSearch) -> AsyncGenerator[list[Event], None]:
    """Searches, and counts as a call of the turn. A fault is in the item and is told to the model."""
    call = FileCall(turn, wanted.binding, new_id("call"), first=True)
    out: list[Event] = []
    call.open(out)
    call.grow(encode({"query": wanted.question}).decode(), out)
    call.close("completed", out)
    yield out
    turn.server_calls += 1
    out = []
    try:
        call.settle(await outcome_of(turn, call), out)
    except BaseException:
        call.settle(ToolOutcome("Not finished: the response ended before.", failed=True), out)
        if turn.ended_from_outside:
            yield out
        raise
    yield out
