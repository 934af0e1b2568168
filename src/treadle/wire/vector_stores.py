"""Vector stores, their files and batches, and searches (contract §13)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle.errors import InvalidRequest
from treadle.wire.lists import Page
from treadle.wire.responses import Metadata
from treadle.wire.retrieval import Attributes, Filter, RankingOptions, SearchMode

StoreStatus = Literal["expired", "in_progress", "completed"]
FileStatus = Literal["in_progress", "completed", "cancelled", "failed"]
FileFault = Literal["server_error", "unsupported_file", "invalid_file"]

FileId = Annotated[str, Meta(min_length=1, max_length=256)]
Title = Annotated[str, Meta(max_length=1024)]
Query = Annotated[str, Meta(min_length=1, max_length=32_768)]
Tokens = Annotated[int, Meta(ge=100, le=4096)]

Dimension = Annotated[int, Meta(ge=1, le=65536)] | Annotated[str, Meta(min_length=1, max_length=5)]
"""OGX's clients send digits as text too."""

MAX_BATCH = 2000
"""Files of one batch."""

WHOLE_DOCUMENT, CHUNK_CONTENT = "{{WHOLE_DOCUMENT}}", "{{CHUNK_CONTENT}}"
CONTEXT_PROMPT = (
    f"<document>\n{WHOLE_DOCUMENT}\n</document>\n"
    f"This is a passage of the document:\n<passage>\n{CHUNK_CONTENT}\n</passage>\n"
    "Say in one or two sentences where in the document the passage stands and what it is about, with the names it "
    "leaves out, so that a search finds it. Answer with these sentences only."
)


# ------------------------------------------------------------------------------------------- chunking


class AutoChunking(msgspec.Struct, kw_only=True, tag_field="type", tag="auto"):
    """The server's default sizes."""


class StaticRules(msgspec.Struct, kw_only=True):
    max_chunk_size_tokens: Tokens = 800
    chunk_overlap_tokens: Annotated[int, Meta(ge=0)] | None = None
    """At most half of the size. Left out: 400, or half of the size if that is less."""


class StaticChunking(msgspec.Struct, kw_only=True, tag_field="type", tag="static"):
    static: StaticRules


class ContextualRules(msgspec.Struct, kw_only=True):
    """OGX's: a model writes for each chunk what it is about in its document."""

    model_id: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    context_prompt: Annotated[str, Meta(max_length=32_768)] = CONTEXT_PROMPT
    max_chunk_size_tokens: Tokens = 700
    chunk_overlap_tokens: Annotated[int, Meta(ge=0)] = 400
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None
    max_concurrency: Annotated[int, Meta(ge=1, le=64)] | None = None


class ContextualChunking(msgspec.Struct, kw_only=True, tag_field="type", tag="contextual"):
    contextual: ContextualRules


class OtherChunking(msgspec.Struct, kw_only=True, tag_field="type", tag="other"):
    """Chunks that were not cut here."""


WantedChunking = AutoChunking | StaticChunking | ContextualChunking
Chunking = StaticChunking | ContextualChunking | OtherChunking
"""As stored and reported: never `auto`."""


def chunking_of(wanted: WantedChunking | None, default: StaticRules, at: str) -> StaticChunking | ContextualChunking:
    """The strategy with its sizes filled in. InvalidRequest, naming the field below `at`, if they do not fit."""
    match wanted:
        case ContextualChunking():
            _check_contextual(wanted.contextual, f"{at}.contextual")
            return wanted
        case StaticChunking():
            return StaticChunking(static=_checked(wanted.static, f"{at}.static"))
        case _:
            return StaticChunking(static=default)


def _checked(rules: StaticRules, at: str) -> StaticRules:
    size, overlap = rules.max_chunk_size_tokens, rules.chunk_overlap_tokens
    if overlap is None:
        overlap = min(400, size // 2)
    if overlap > size // 2:
        raise InvalidRequest(
            f"'chunk_overlap_tokens' may be at most half of 'max_chunk_size_tokens', here {size // 2}.",
            param=f"{at}.chunk_overlap_tokens",
        )
    return StaticRules(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap)


def _check_contextual(rules: ContextualRules, at: str) -> None:
    if rules.chunk_overlap_tokens >= rules.max_chunk_size_tokens:
        raise InvalidRequest(
            "'chunk_overlap_tokens' must be less than 'max_chunk_size_tokens'.", param=f"{at}.chunk_overlap_tokens"
        )
    whole, chunk = rules.context_prompt.find(WHOLE_DOCUMENT), rules.context_prompt.find(CHUNK_CONTENT)
    if whole < 0 or chunk < whole:
        # The document first: model servers then keep it from one chunk to the next.
        raise InvalidRequest(
            f"'context_prompt' must hold {WHOLE_DOCUMENT} and, after it, {CHUNK_CONTENT}.", param=f"{at}.context_prompt"
        )


# --------------------------------------------------------------------------------------------- stores


class ExpiresAfter(msgspec.Struct, kw_only=True):
    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class CreateVectorStore(msgspec.Struct, kw_only=True):
    name: Title | None = None
    description: Title | None = None
    file_ids: Annotated[list[FileId], Meta(max_length=500)] | None = None
    expires_after: ExpiresAfter | None = None
    chunking_strategy: WantedChunking | None = None
    """For `file_ids`."""
    metadata: Metadata | None = None
    embedding_model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    embedding_dimension: Dimension | None = None
    provider_id: Annotated[str, Meta(max_length=512)] | None = None
    """OGX's choice of an index. Here the configuration chooses; it is shown again in the metadata."""


class UpdateVectorStore(msgspec.Struct, kw_only=True):
    """`expires_after` null takes the expiry away; what is left out stays."""

    name: Title | None = None
    expires_after: ExpiresAfter | UnsetType | None = UNSET
    metadata: Metadata | None = None


class FileCounts(msgspec.Struct, kw_only=True):
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    total: int = 0


class VectorStore(msgspec.Struct, kw_only=True):
    """`description`, `embedding_model` and `embedding_dimension` are extensions."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str = ""
    description: str | UnsetType = UNSET
    usage_bytes: int = 0
    file_counts: FileCounts
    status: StoreStatus
    expires_after: ExpiresAfter | UnsetType = UNSET
    expires_at: int | None = None
    last_active_at: int
    metadata: dict[str, str] = {}
    embedding_model: str
    embedding_dimension: int


class VectorStoreDeleted(msgspec.Struct):
    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: bool = True


VectorStoreList = Page[VectorStore]


# ---------------------------------------------------------------------------------------------- files


class AttachFile(msgspec.Struct, kw_only=True):
    """OGX's `options`, which are its providers', are accepted and mean nothing here."""

    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: WantedChunking | None = None


class UpdateVectorStoreFile(msgspec.Struct, kw_only=True):
    attributes: Attributes | None


class LastError(msgspec.Struct):
    code: FileFault
    message: str


class VectorStoreFile(msgspec.Struct, kw_only=True):
    """`id` is the File's. `chunks_done` is an extension: how far a file in progress is."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    status: FileStatus
    last_error: LastError | None = None
    usage_bytes: int = 0
    attributes: Attributes = {}
    chunking_strategy: Chunking
    chunks_done: int | UnsetType = UNSET


class VectorStoreFileDeleted(msgspec.Struct):
    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: bool = True


VectorStoreFileList = Page[VectorStoreFile]


class FileContent(msgspec.Struct, kw_only=True):
    """OGX's clients look for the last three, null unless asked for."""

    type: Literal["text"] = "text"
    text: str
    embedding: list[float] | None = None
    chunk_metadata: dict[str, str | int | None] | None = None
    metadata: Attributes | None = None


class FileContentPage(msgspec.Struct, kw_only=True):
    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[FileContent]
    has_more: bool = False
    next_page: str | None = None


# -------------------------------------------------------------------------------------------- batches


class CreateFileBatch(msgspec.Struct, kw_only=True):
    """Either `file_ids`, with attributes and chunking for all, or `files`, each with its own."""

    file_ids: Annotated[list[FileId], Meta(min_length=1, max_length=MAX_BATCH)] | None = None
    files: Annotated[list[AttachFile], Meta(min_length=1, max_length=MAX_BATCH)] | None = None
    attributes: Attributes | None = None
    chunking_strategy: WantedChunking | None = None


class FileBatch(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: FileStatus
    file_counts: FileCounts


# ------------------------------------------------------------------------------------------- searching


class SearchVectorStore(msgspec.Struct, kw_only=True):
    query: Query | Annotated[list[Query], Meta(min_length=1, max_length=16)]
    filters: Filter | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = None
    search_mode: SearchMode | None = None


class TextContent(msgspec.Struct, kw_only=True):
    type: Literal["text"] = "text"
    text: str


class SearchResult(msgspec.Struct, kw_only=True):
    """`page` and `section` are extensions, shown where the document has them."""

    file_id: str
    filename: str
    score: float
    attributes: Attributes = {}
    content: list[TextContent]
    page: int | UnsetType = UNSET
    section: str | UnsetType = UNSET


class SearchResultsPage(msgspec.Struct, kw_only=True):
    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[SearchResult]
    has_more: bool = False
    next_page: str | None = None
