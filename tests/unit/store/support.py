"""What the store's tests share: scopes, items and turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from treadle.ids import new_conversation_id, new_id
from treadle.ports import Checkpoint, ConversationRow, ResponseRow, SettledTurn, StoredItem
from treadle.scope import Principal, Scope

ALICE = Scope("acme", Principal("alice"))
BOB = Scope("acme", Principal("bob"))
ELSEWHERE = Scope("globex", Principal("alice"))
STRANGERS = (BOB, ELSEWHERE)

NOW = 1_800_000_000


def message(text: str, *, name: str | None = None, role: str = "user") -> StoredItem:
    name = new_id("msg") if name is None else name
    data = f'{{"id":"{name}","type":"message","role":"{role}","content":"{text}"}}'
    return StoredItem(name, "message", data.encode())


def row(**fields: object) -> ResponseRow:
    values: dict[str, object] = {"id": new_id("resp"), "status": "completed", "model": "m", "created_at": NOW}
    return ResponseRow(**(values | fields))  # type: ignore[arg-type]


def turn(
    *texts: str,
    base: Checkpoint | None = None,
    previous: str | None = None,
    conversation: str | None = None,
    append: bool = False,
    created_at: int = NOW,
) -> SettledTurn:
    """A turn whose last text is its output, and all others inputs."""
    *inputs, output = texts
    return SettledTurn(
        row=row(previous=previous, conversation=conversation, created_at=created_at),
        inputs=[message(text) for text in inputs],
        outputs=[message(output, role="assistant")],
        base=base,
        append_to_conversation=append,
    )


def conversation() -> ConversationRow:
    return ConversationRow(id=new_conversation_id(), created_at=NOW, metadata=b'{"topic":"x"}')


def texts(items: list[StoredItem]) -> list[str]:
    return [item.data.decode().rpartition('"content":"')[2].removesuffix('"}') for item in items]


async def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Returns when `condition` holds; fails if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)
