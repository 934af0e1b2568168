"""What stands in a compaction: the notes that replace a part of a history, and how a model is shown them.

A compaction is text sealed under our key, so it moves between models, servers of one key, and clients. It says up to
which item it replaces what came before it. What it keeps word for word is inside, so that it stands alone where a chain
begins anew with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from treadle.errors import InvalidRequest
from treadle.ids import new_id
from treadle.wire.base import encode
from treadle.wire.items import Compaction, Message, TypedItem

log = logging.getLogger("treadle.history")

Unseal = Callable[[str], str | None]


class Summary(Compaction, tag="compaction", kw_only=True):
    """An opened compaction, as it is rendered; never stored or sent."""

    text: str
    prefix: str

    @property
    def shown(self) -> str:
        return f"{self.prefix}\n\n{self.text}" if self.prefix else self.text


class Notes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The inside of a compaction. `standing` are system and developer messages, `kept` messages of the user.

    `until` is the last item that it replaces; None for one that replaces nothing in its place: what it was made of is
    not beside it, but what the user said may be.
    """

    summary: str
    prefix: str = ""
    standing: list[Message] = []
    kept: list[Message] = []
    until: str | None = None

    def sealed(self, seal: Callable[[str], str]) -> Compaction:
        return Compaction(id=new_id("cmp"), encrypted_content=seal(encode(self).decode()))

    def replace(self, item_id: str | None, before: list[TypedItem]) -> list[TypedItem]:
        """What a model is shown for the items `before` the compaction and for itself."""
        summary = Summary(id=item_id, encrypted_content="", text=self.summary, prefix=self.prefix)
        if self.until is None:
            return [*before, *self.standing, summary]
        places = [index for index, item in enumerate(before) if item.id == self.until]
        left = before[places[-1] + 1 :] if places else before
        return [*self.standing, *self.kept, summary, *left]


_notes = msgspec.json.Decoder(Notes)


def opened(item: Compaction, unseal: Unseal) -> Notes | None:
    """None for what another server sealed, or what cannot be opened any more."""
    try:
        text = unseal(item.encrypted_content)
        if text is not None:
            return _notes.decode(text)
    except (InvalidRequest, msgspec.MsgspecError, RecursionError):
        pass  # inputs were checked; what is stored must not block its thread when the key has changed since
    log.warning("a compaction sealed by another server or under another key is not shown to the model")
    return None


def standing_in(items: Sequence[TypedItem]) -> list[Message]:
    """System and developer messages, each text once: they go on to hold whatever is summarised."""
    found: dict[bytes, Message] = {}
    for item in items:
        if isinstance(item, Message) and item.role in ("system", "developer"):
            found.setdefault(encode((item.role, item.content)), item)
    return list(found.values())


def said_by_user(items: Sequence[TypedItem]) -> list[Message]:
    return [item for item in items if isinstance(item, Message) and item.role == "user"]


def to_record(items: Sequence[TypedItem]) -> list[TypedItem]:
    """What notes are made of: all but what stays as it is, and earlier notes."""
    return [
        item
        for item in items
        if not isinstance(item, Summary) and not (isinstance(item, Message) and item.role in ("system", "developer"))
    ]
