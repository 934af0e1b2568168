"""What stands in a compaction: the notes that replace a part of a history, and how a model is shown them.

A compaction is text sealed under our key, so it moves between models, servers of one key, and clients. What goes on
word for word is inside it, so it stands alone: where a chain begins anew with it, and where a client sends nothing
older.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw

from treadle.errors import InvalidRequest
from treadle.ids import new_id
from treadle.wire.base import encode
from treadle.wire.items import Compaction, Message, OpaqueItem, TypedItem, decode_stored, encode_item, kind_of

log = logging.getLogger("treadle.history")

Unseal = Callable[[str], str | None]

LARGE = 200_000
"""JSON bytes; what is larger is not put into a compaction. A picture, most likely."""


class Summary(Compaction, tag="compaction", kw_only=True):
    """An opened compaction, as it is rendered; never stored or sent."""

    text: str
    prefix: str

    @property
    def shown(self) -> str:
        return f"{self.prefix}\n\n{self.text}" if self.prefix else self.text


class Kept(msgspec.Struct, array_like=True):
    """An item inside a compaction."""

    kind: str
    id: str
    data: Raw


class Notes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The inside of a compaction. `standing` are system and developer messages, `kept` messages of the user.

    `rest` is what goes on behind the notes as it was, and `left` the number of these items. Where they are too large to
    be inside, they are looked for before the compaction. Without `left`, what the compaction was made of is not beside
    it, and whatever is stays.
    """

    summary: str
    prefix: str = ""
    standing: list[Message] = []
    kept: list[Message] = []
    rest: list[Kept] | None = None
    left: int | None = None

    def sealed(self, seal: Callable[[str], str]) -> Compaction:
        return Compaction(id=new_id("cmp"), encrypted_content=seal(encode(self).decode()))

    def replace(self, item_id: str | None, before: list[TypedItem]) -> list[TypedItem]:
        """What a model is shown for the items `before` the compaction and for itself."""
        if self.left is None:
            return [*before, *self.before(item_id, [])]
        return self.before(item_id, before[len(before) - self.left :] if self.rest is None else self._rest())

    def before(self, item_id: str | None, rest: list[TypedItem]) -> list[TypedItem]:
        """The notes, and all that goes with them, before `rest`."""
        summary = Summary(id=item_id, encrypted_content="", text=self.summary, prefix=self.prefix)
        return [*self.standing, *self.kept, summary, *rest]

    def _rest(self) -> list[TypedItem]:
        items = [decode_stored(one.kind, one.id, bytes(one.data)) for one in self.rest or ()]
        return [item for item in items if not isinstance(item, OpaqueItem)]


def kept_inside(items: Sequence[TypedItem]) -> list[Kept] | None:
    """The items as they are put into a compaction; None if they are too large for that."""
    found = [Kept(kind_of(item), item.id or "", Raw(encode_item(item))) for item in items]
    return found if sum(len(bytes(one.data)) for one in found) <= LARGE else None


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
