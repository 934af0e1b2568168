"""Ports to the rows of vector stores, and to the queue of files that are to be indexed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from treadle.ports.knowledge import Collection
from treadle.ports.store import Order
from treadle.scope import Scope
from treadle.wire.retrieval import Attributes
from treadle.wire.vector_stores import Chunking, FileFault, FileStatus


class StatusCounts(msgspec.Struct):
    """Files by status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.in_progress + self.completed + self.failed + self.cancelled


class VectorStoreRow(msgspec.Struct, kw_only=True):
    """A vector store without its files. Times are Unix seconds."""

    id: str
    created_at: int
    last_active_at: int
    name: str = ""
    description: str = ""
    metadata: dict[str, str] = {}
    embedding_model: str
    dimensions: int
    shortened: bool = False
    """The model gives more dimensions unless it is asked for these."""
    expires_days: int | None = None
    version: int = 0
    """Rises whenever the set of completed files or their attributes change."""

    @property
    def expires_at(self) -> int | None:
        return None if self.expires_days is None else self.last_active_at + self.expires_days * 86_400

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class CountedStore(msgspec.Struct):
    row: VectorStoreRow
    counts: StatusCounts
    usage_bytes: int


class VectorStorePage(msgspec.Struct):
    stores: list[CountedStore]
    has_more: bool


class StoreChanges(msgspec.Struct, kw_only=True):
    """What an update sets; UNSET and None stay as they are, except that `expires_days` None means never."""

    name: str | None = None
    metadata: dict[str, str] | None = None
    expires_days: int | UnsetType | None = UNSET
    last_active_at: int


class NewStoreFile(msgspec.Struct, kw_only=True):
    """A file to attach. `attributes` None keeps those that an attached one has. `error` set: it has failed already."""

    file: str
    filename: str
    created_at: int
    attributes: Attributes | None = None
    chunking: Chunking
    error: tuple[FileFault, str] | None = None


class StoreFileRow(msgspec.Struct, kw_only=True):
    """A file in a store."""

    store: str
    file: str
    filename: str
    created_at: int
    status: FileStatus
    attributes: Attributes
    chunking: Chunking
    error: tuple[FileFault, str] | None = None
    usage_bytes: int = 0
    chunks: int = 0
    """Indexed up to now."""


class StoreFilePage(msgspec.Struct):
    files: list[StoreFileRow]
    has_more: bool


class FileBatchRow(msgspec.Struct, kw_only=True):
    id: str
    store: str
    created_at: int
    cancelled: bool = False
    counts: StatusCounts = msgspec.field(default_factory=StatusCounts)


class SearchableFile(msgspec.Struct, gc=False):
    """A completed file, as a search needs it. `shown` is the id that callers know it by."""

    file: str
    shown: str
    filename: str
    attributes: Attributes


class ReadyDocument(msgspec.Struct, kw_only=True):
    """A chunk that came with its vector. The index holds it as a file of its own, `file`; callers see `document`."""

    file: str
    document: str
    filename: str
    attributes: Attributes
    usage_bytes: int
    created_at: int


class VectorStores(Protocol):
    """Vector stores of a scope, their files and batches. StorageFault when the database cannot be reached.

    What belongs to another scope is not there. Cursors are ids; an unknown one is an InvalidRequest (`param="after"`
    or `"before"`), and it need not match the filter of the list.
    """

    async def create(self, scope: Scope, row: VectorStoreRow) -> None: ...

    async def get(self, scope: Scope, store_id: str) -> CountedStore | None: ...

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, VectorStoreRow]:
        """Those of the stores that are there, by id, without counting."""
        ...

    def collection(self, scope: Scope, row: VectorStoreRow) -> Collection:
        """The place in the index of a store that this scope was given."""
        ...

    async def page(
        self, scope: Scope, *, after: str | None, before: str | None, limit: int, order: Order
    ) -> VectorStorePage: ...

    async def update(self, scope: Scope, store_id: str, changes: StoreChanges) -> CountedStore | None: ...

    async def touch(self, scope: Scope, ids: Sequence[str], now: int) -> None:
        """Sets `last_active_at`."""
        ...

    async def delete(self, scope: Scope, store_id: str) -> bool:
        """Removes the store with its files' rows and batches; its chunks are the caller's to drop."""
        ...

    async def searchable(self, scope: Scope, store_id: str) -> list[SearchableFile]:
        """The completed files of a store."""
        ...


class StoreFiles(Protocol):
    """The files of the vector stores of a scope."""

    async def attach(
        self, scope: Scope, store_id: str, files: Sequence[NewStoreFile], batch: FileBatchRow | None = None
    ) -> list[StoreFileRow] | None:
        """Adds files to be indexed, and the batch that they come in. One that is attached already keeps its place: its
        attributes are replaced if some are given, and it is indexed again if it failed, was cancelled, or is to be cut
        in another way. None if there is no such store."""
        ...

    async def get(self, scope: Scope, store_id: str, file_id: str) -> StoreFileRow | None: ...

    async def page(
        self,
        scope: Scope,
        store_id: str,
        *,
        batch: str | None = None,
        status: FileStatus | None,
        after: str | None,
        before: str | None,
        limit: int,
        order: Order,
    ) -> StoreFilePage: ...

    async def set_attributes(
        self, scope: Scope, store_id: str, file_id: str, attributes: Attributes
    ) -> StoreFileRow | None: ...

    async def detach(self, scope: Scope, store_id: str, file_id: str) -> bool:
        """Removes the row; the chunks are the caller's to remove."""
        ...

    async def holders(self, scope: Scope, file_id: str) -> list[VectorStoreRow]:
        """The stores that the file is attached to."""
        ...

    async def batch(self, scope: Scope, store_id: str, batch_id: str) -> FileBatchRow | None: ...

    async def cancel_batch(self, scope: Scope, store_id: str, batch_id: str) -> list[str] | None:
        """Marks the files of the batch that are in progress as cancelled and gives their ids. None if there is no such
        batch."""
        ...

    async def add_ready(self, scope: Scope, store_id: str, documents: Sequence[ReadyDocument]) -> bool:
        """Makes chunks that are in the index already part of the store. False if there is no such store."""
        ...


class IngestionJob(msgspec.Struct, kw_only=True):
    """A file that a worker has claimed. `claim` is the proof: without it nothing about the file can be changed."""

    scope: Scope
    collection: Collection
    embedding_model: str
    shortened: bool
    file: str
    filename: str
    chunking: Chunking
    claim: str
    attempt: int
    """From 1: how often the file was claimed and not given back."""


class IngestionQueue(Protocol):
    """Files in progress, taken up by one worker at a time, whichever process it is in.

    A claim ends with its lease (Unix seconds), with any change of what is to be done, and with the deletion of the
    file or the store. Methods that return a bool give False if the claim has ended.
    """

    async def claim(self, claim: str, lease_until: int) -> IngestionJob | None:
        """The file that has waited longest, of any scope; None if there is none that nobody works on."""
        ...

    async def renew(self, scope: Scope, job: IngestionJob, lease_until: int, chunks: int) -> bool:
        """Keeps the claim and says how many chunks are indexed."""
        ...

    async def complete(self, scope: Scope, job: IngestionJob, usage_bytes: int, chunks: int) -> bool: ...

    async def fail(self, scope: Scope, job: IngestionJob, code: FileFault, message: str) -> bool: ...

    async def release(self, scope: Scope, job: IngestionJob) -> None:
        """Gives the file back, for another worker to begin again with."""
        ...

    async def abandoned(self, scope: Scope, job: IngestionJob) -> bool:
        """Whether nobody is going to index the file any more, so that the chunks of a claim that ended are to go."""
        ...
