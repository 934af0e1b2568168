"""Batches: many requests in a file, their answers in another (contract §14)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from treadle.wire.files import FileExpiry
from treadle.wire.lists import Page
from treadle.wire.responses import Metadata

ENDPOINTS = ("/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""What the lines of a batch may ask for."""

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})

Method = Literal["POST"]


class CreateBatch(msgspec.Struct, kw_only=True):
    input_file_id: Annotated[str, Meta(min_length=1, max_length=256)]
    endpoint: Annotated[str, Meta(max_length=256)]
    completion_window: Literal["24h"]
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    output_expires_after: FileExpiry | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """OGX's: a second request with the same key is the same batch, and a conflict if it asks for something else."""


class BatchError(msgspec.Struct, kw_only=True):
    """Why a batch was not begun: what is wrong with a line of its file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(msgspec.Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchInputTokens(msgspec.Struct):
    cached_tokens: int = 0


class BatchOutputTokens(msgspec.Struct):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, kw_only=True):
    """Sums over the lines whose answers tell theirs."""

    input_tokens: int = 0
    input_tokens_details: BatchInputTokens = msgspec.field(default_factory=BatchInputTokens)
    output_tokens: int = 0
    output_tokens_details: BatchOutputTokens = msgspec.field(default_factory=BatchOutputTokens)
    total_tokens: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """What is not known yet is left out."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    input_file_id: str
    completion_window: str = "24h"
    status: BatchStatus = "validating"
    created_at: int
    expires_at: int
    in_progress_at: int | UnsetType = UNSET
    finalizing_at: int | UnsetType = UNSET
    completed_at: int | UnsetType = UNSET
    failed_at: int | UnsetType = UNSET
    expired_at: int | UnsetType = UNSET
    cancelling_at: int | UnsetType = UNSET
    cancelled_at: int | UnsetType = UNSET
    errors: BatchErrors | UnsetType = UNSET
    output_file_id: str | UnsetType = UNSET
    error_file_id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    usage: BatchUsage | UnsetType = UNSET
    metadata: Metadata | None = None


BatchList = Page[Batch]


class BatchRequest(msgspec.Struct, kw_only=True):
    """A line of the input file. All may be missing, so that each line's fault can be named."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: Raw | UnsetType = UNSET


class LineError(msgspec.Struct, kw_only=True):
    code: str | None
    message: str


class LineResponse(msgspec.Struct, kw_only=True):
    status_code: int
    request_id: str
    body: Raw


class LineResult(msgspec.Struct, kw_only=True):
    """A line of the output file, or of the error file."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None
