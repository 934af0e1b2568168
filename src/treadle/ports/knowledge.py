"""Ports to knowledge: files and their bytes, documents read into chunks, indexes of chunks, and searching them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from treadle.ports.store import Order
from treadle.scope import Scope
from treadle.wire.retrieval import Attributes, Filter, RankingOptions, SearchMode


class FileRow(msgspec.Struct, kw_only=True):
    """An uploaded file without its bytes, which are the blob of the same id."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    media_type: str = "application/octet-stream"
    expires_at: int | None = None
    """Unix seconds. From then on no method finds the file."""


class FilePage(msgspec.Struct):
    files: list[FileRow]
    has_more: bool


class Files(Protocol):
    """Files of a scope. StorageFault when the database cannot be reached."""

    async def add(self, scope: Scope, row: FileRow) -> None: ...

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, FileRow]:
        """Those of the ids that are there, by id."""
        ...

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order, purpose: str | None) -> FilePage:
        """InvalidRequest (`param="after"`) for an unknown cursor."""
        ...

    async def delete(self, scope: Scope, file_id: str) -> bool:
        """Removes the row, whether it has expired or not; False if there was none."""
        ...

    async def expired(self, limit: int) -> list[tuple[Scope, str]]:
        """Files of any scope that have expired and are still to be deleted."""
        ...

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that have a row in any scope, expired or not. For telling blobs that nobody owns."""
        ...


class Blobs(Protocol):
    """Bytes under keys that we make ourselves (`[A-Za-z0-9_-]`, up to 128), never a caller's names. A key is used once.

    ValueError for what is no key. StorageFault when the bytes cannot be written, read or removed.
    """

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> int:
        """Stores the parts and gives their size in bytes. When it returns, they are durable; when it raises or is
        cancelled, nothing is kept. What iterating raises reaches the caller."""
        ...

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` to `end` (exclusive), in pieces. NotFound while iterating, if there are none."""
        ...

    async def delete(self, key: str) -> None:
        """Nothing happens if there is none."""
        ...

    def stored(self, before: float) -> AsyncIterator[list[str]]:
        """The keys of what was stored before `before` (Unix seconds), in batches. What a process that died in the
        middle of a `put` has left behind is removed on the way."""
        ...


class FileContents(Protocol):
    """Files of the caller, ready to be shown to a model or to be written by a tool."""

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, FileRow]:
        """Those of the ids that the caller has, by id."""
        ...

    async def open(self, scope: Scope, file_id: str) -> tuple[FileRow, AsyncIterator[bytes]]:
        """NotFound if the caller has no such file."""
        ...

    async def keep(self, scope: Scope, filename: str, text: str, media_type: str = "text/plain") -> FileRow:
        """Stores a text of ours, such as the whole of a tool result, as a file of the caller."""
        ...


class ChunkRules(msgspec.Struct, frozen=True):
    """How a document is cut. Tokens are those of `o200k_base`; the overlap is at most half of the size."""

    max_tokens: int = 800
    overlap_tokens: int = 400


class Chunk(msgspec.Struct):
    """A piece of a document, numbered from 0 within it."""

    number: int
    text: str
    page: int | None = None
    """From 1; sheets and slides count as pages."""
    section: str | None = None
    """The headings above it, outermost first, joined by ' > '."""


class Extractor(Protocol):
    """Reads documents, in a process apart and within bounds of time and memory.

    The type is found by content, never by name alone. UnsupportedFile for a type nobody can read; UnreadableFile for
    one that is broken, encrypted, too large, without text, or over a bound. Ending the iteration ends the work.
    """

    def chunks(self, source: AsyncIterator[bytes], filename: str, rules: ChunkRules) -> AsyncIterator[list[Chunk]]:
        """The document in chunks, in order, in batches as they are ready."""
        ...

    async def text(self, source: AsyncIterator[bytes], filename: str, limit: int) -> str:
        """The first `limit` characters of the document's text."""
        ...


class Collection(msgspec.Struct, frozen=True):
    """The chunks of one vector store in an index. Only the store of vector stores makes these, after it has checked
    that the scope may see the store."""

    tenant: str
    store: str
    dimensions: int


class IndexedChunk(msgspec.Struct):
    chunk: Chunk
    vector: list[float]
    """Of unit length."""


class Hit(msgspec.Struct):
    """Where a search found a chunk: its file, and its number in there. Most hits are never shown, so a hit has no text.
    `score`: the cosine (-1..1) of a nearest, the BM25 weight (> 0) of a matching."""

    file: str
    number: int
    score: float


Place = tuple[str, int]
"""Where a chunk is in a collection: its file, and its number in there."""


class VectorIndex(Protocol):
    """Chunks with their vectors, by collection and file. Filters are no concern of an index: attributes belong to
    files, so callers evaluate a filter on the files and give the index the set of files to look into.

    A file's chunks are found only once it is published. All methods may be called for what is not there.
    """

    async def add(self, collection: Collection, file: str, chunks: Sequence[IndexedChunk]) -> None:
        """Adds chunks to a file that is not published yet; a number that is there already is replaced."""
        ...

    async def publish(self, collection: Collection, file: str) -> int:
        """Makes the file's chunks findable, durably and at once for every search that starts afterwards. Gives the
        bytes that they take (text and vectors)."""
        ...

    async def remove(self, collection: Collection, file: str) -> None:
        """Removes a file's chunks, published or not; they are not found by any search that starts afterwards."""
        ...

    async def drop(self, collection: Collection) -> None: ...

    async def nearest(
        self, collection: Collection, vector: Sequence[float], *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        """The chunks whose vectors are nearest, best first; ties by file and number. `files` None: all."""
        ...

    async def matching(
        self, collection: Collection, text: str, *, files: frozenset[str] | None, limit: int
    ) -> list[Hit]:
        """The chunks that hold words of `text`, best first by BM25. Any text is allowed; without words: nothing."""
        ...

    async def chunks(self, collection: Collection, places: Sequence[Place]) -> list[Chunk | None]:
        """The published chunks at these places, in their order; None for one that is not there, or not any more."""
        ...

    async def read(self, collection: Collection, file: str, *, start: int, limit: int) -> list[IndexedChunk]:
        """Published chunks of a file from number `start` on, in order."""
        ...


class Reranker(Protocol):
    """Orders texts by how well they answer a query."""

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """One score in 0..1 for each text."""
        ...


class Passage(msgspec.Struct):
    """What a search of vector stores gives."""

    file_id: str
    filename: str
    score: float
    """0..1"""
    text: str
    attributes: Attributes
    page: int | None = None
    section: str | None = None
    store: str = ""


class PassageQuery(msgspec.Struct, kw_only=True):
    """One search over several stores. Several queries are searched together and fused."""

    stores: list[str]
    queries: list[str]
    filters: Filter | None = None
    ranking: RankingOptions | None = None
    mode: SearchMode | None = None
    """None: the server's default."""
    limit: int = 10


class Passages(msgspec.Struct):
    """Best first, over all stores. `broken` names the stores that could not be searched, with the reason."""

    found: list[Passage]
    broken: dict[str, str] = {}


class PassageSearch(Protocol):
    """Searching vector stores within the caller's scope; the one path for the tool and for the search endpoint."""

    async def check(self, scope: Scope, stores: Sequence[str], param: str) -> None:
        """NotFound, naming `param`, for a store that the caller does not have; InvalidRequest for an expired one."""
        ...

    async def passages(self, scope: Scope, query: PassageQuery) -> Passages:
        """NotFound as `check`. One store out of several that fails is reported in `broken`; if all fail, the fault of
        the first is raised."""
        ...
