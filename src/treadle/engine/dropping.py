"""`truncation: auto`: whole turns leave the front of what a model is shown, until the rest fits (contract §11)."""

from __future__ import annotations

from collections.abc import Callable

from treadle.ports import ModelMessage

SHARE = 8
"""At least this part of what could go is dropped at a time, so that a long history takes few refusals."""


def without_oldest(
    messages: list[ModelMessage], size: Callable[[list[ModelMessage]], int]
) -> list[ModelMessage] | None:
    """The messages without their oldest turns; None if there is nothing that may go.

    A turn begins with a message of the user and goes with all its calls and outputs. System and developer messages stay
    where they are, and so does the newest turn.
    """
    starts = [index for index, message in enumerate(messages) if _begins_turn(messages, index)]
    if not starts:
        return None
    first = next((index for index, message in enumerate(messages) if not _standing(message)), len(messages))
    # What comes before the first message of the user is a turn too.
    edges = sorted({first, *starts})[:-1]
    if not edges:
        return None
    ends = [*edges[1:], starts[-1]]
    enough = size(messages[first : starts[-1]]) // SHARE
    gone = 0
    for begin, end in zip(edges, ends, strict=True):
        gone += size(messages[begin:end])
        if gone >= enough:
            break
    return [message for index, message in enumerate(messages) if index >= end or _standing(message)]


def _standing(message: ModelMessage) -> bool:
    return message.role in ("system", "developer")


def _begins_turn(messages: list[ModelMessage], index: int) -> bool:
    """Pictures that tools gave follow their outputs under the user's name, and begin nothing."""
    return messages[index].role == "user" and not (index and messages[index - 1].role == "tool")
