"""`/v1/vector_stores/{id}/files` and `/file_batches`."""

from __future__ import annotations

from typing import get_args

import msgspec
from starlette.requests import Request

from treadle.api.file_batches import FileBatchService
from treadle.api.vector_files import VectorFileService
from treadle.errors import InvalidRequest
from treadle.http import query
from treadle.http.bodies import read_json
from treadle.http.endpoints import Answer, Endpoint, Parameter
from treadle.http.replies import pollable, reply
from treadle.http.routes.parameters import AFTER, BEFORE, ORDER, limit
from treadle.http.routes.vector_stores import ONE_STORE
from treadle.scope import LOCAL
from treadle.wire.vector_stores import (
    AttachFile,
    CreateFileBatch,
    FileBatch,
    FileContentPage,
    FileStatus,
    UpdateVectorStoreFile,
    VectorStoreFile,
    VectorStoreFileDeleted,
    VectorStoreFileList,
)

_attach = msgspec.json.Decoder(AttachFile)
_update = msgspec.json.Decoder(UpdateVectorStoreFile)
_batch = msgspec.json.Decoder(CreateFileBatch)

_FILES = ONE_STORE + "/files"
_ONE = _FILES + "/{file_id}"
_BATCHES = ONE_STORE + "/file_batches"
_BATCH = _BATCHES + "/{batch_id}"
_WRITES = (404, 413, 415, 503)
_READS = (400, 404, 503)
_STATUSES = get_args(FileStatus)
_LIST = (
    AFTER,
    BEFORE,
    limit(20),
    ORDER,
    Parameter(
        name="filter",
        schema={"type": "string", "enum": list(_STATUSES)},
        description="Show files with this status only.",
    ),
)
_FLAG: dict[str, object] = {"type": "boolean", "default": False}
_CONTENT = (
    Parameter(name="include_embeddings", schema=_FLAG, description="Show the vectors."),
    Parameter(name="include_metadata", schema=_FLAG, description="Show attributes, page and section."),
    Parameter(
        name="page",
        schema={"type": "integer", "minimum": 0, "default": 0},
        description="Where to go on: `next_page` of the page before.",
    ),
)


class VectorFileRoutes:
    """Endpoints over the use cases of files in vector stores, and of batches."""

    def __init__(self, files: VectorFileService, batches: FileBatchService, max_body: int) -> None:
        self._files = files
        self._batches = batches
        self._max_body = max_body

    def endpoints(self) -> list[Endpoint]:
        return [*self._file_endpoints(), *self._batch_endpoints()]

    def _file_endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path=_FILES,
                name="createVectorStoreFile",
                summary="Attach a file to a vector store.",
                action=self.attach,
                body=AttachFile,
                result=VectorStoreFile,
                statuses=_WRITES,
            ),
            Endpoint(
                method="GET",
                path=_FILES,
                name="listVectorStoreFiles",
                summary="List a vector store's files.",
                action=self.list,
                result=VectorStoreFileList,
                statuses=_READS,
                parameters=_LIST,
            ),
            Endpoint(
                method="GET",
                path=_ONE,
                name="getVectorStoreFile",
                summary="Retrieve a vector store's file.",
                action=self.get,
                result=VectorStoreFile,
                statuses=(404, 503),
            ),
            Endpoint(
                method="POST",
                path=_ONE,
                name="updateVectorStoreFileAttributes",
                summary="Replace the attributes of a vector store's file.",
                action=self.update,
                body=UpdateVectorStoreFile,
                result=VectorStoreFile,
                statuses=_WRITES,
            ),
            Endpoint(
                method="DELETE",
                path=_ONE,
                name="deleteVectorStoreFile",
                summary="Remove a file from a vector store; the File stays.",
                action=self.detach,
                result=VectorStoreFileDeleted,
                statuses=(404, 503),
            ),
            Endpoint(
                method="GET",
                path=_ONE + "/content",
                name="retrieveVectorStoreFileContent",
                summary="Show the chunks of a vector store's file.",
                action=self.content,
                result=FileContentPage,
                statuses=_READS,
                parameters=_CONTENT,
            ),
        ]

    def _batch_endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path=_BATCHES,
                name="createVectorStoreFileBatch",
                summary="Attach many files to a vector store.",
                action=self.create_batch,
                body=CreateFileBatch,
                result=FileBatch,
                statuses=_WRITES,
            ),
            Endpoint(
                method="GET",
                path=_BATCH,
                name="getVectorStoreFileBatch",
                summary="Retrieve a batch.",
                action=self.batch,
                result=FileBatch,
                statuses=(404, 503),
            ),
            Endpoint(
                method="POST",
                path=_BATCH + "/cancel",
                name="cancelVectorStoreFileBatch",
                summary="Stop what is not done yet of a batch.",
                action=self.cancel_batch,
                result=FileBatch,
                statuses=_READS,
            ),
            Endpoint(
                method="GET",
                path=_BATCH + "/files",
                name="listFilesInVectorStoreBatch",
                summary="List a batch's files.",
                action=self.batch_files,
                result=VectorStoreFileList,
                statuses=_READS,
                parameters=_LIST,
            ),
        ]

    async def attach(self, request: Request) -> Answer:
        wanted = await read_json(request, _attach, self._max_body)
        return pollable(await self._files.attach(LOCAL, _store(request), wanted))

    async def list(self, request: Request) -> Answer:
        return reply(
            await self._files.list(
                LOCAL,
                _store(request),
                status=_status(request),
                after=query.text(request, "after"),
                before=query.text(request, "before"),
                limit=query.integer(request, "limit", 20, 1, 100),
                order=query.order(request),
            )
        )

    async def get(self, request: Request) -> Answer:
        return pollable(await self._files.get(LOCAL, _store(request), request.path_params["file_id"]))

    async def update(self, request: Request) -> Answer:
        wanted = await read_json(request, _update, self._max_body)
        return pollable(await self._files.update(LOCAL, _store(request), request.path_params["file_id"], wanted))

    async def detach(self, request: Request) -> Answer:
        return reply(await self._files.detach(LOCAL, _store(request), request.path_params["file_id"]))

    async def content(self, request: Request) -> Answer:
        return reply(
            await self._files.content(
                LOCAL,
                _store(request),
                request.path_params["file_id"],
                start=query.integer(request, "page", 0, 0, 2**31 - 1),
                embeddings=query.boolean(request, "include_embeddings"),
                metadata=query.boolean(request, "include_metadata"),
            )
        )

    async def create_batch(self, request: Request) -> Answer:
        wanted = await read_json(request, _batch, self._max_body)
        return pollable(await self._batches.create(LOCAL, _store(request), wanted))

    async def batch(self, request: Request) -> Answer:
        return pollable(await self._batches.get(LOCAL, _store(request), request.path_params["batch_id"]))

    async def cancel_batch(self, request: Request) -> Answer:
        return reply(await self._batches.cancel(LOCAL, _store(request), request.path_params["batch_id"]))

    async def batch_files(self, request: Request) -> Answer:
        return reply(
            await self._batches.files(
                LOCAL,
                _store(request),
                request.path_params["batch_id"],
                status=_status(request),
                after=query.text(request, "after"),
                before=query.text(request, "before"),
                limit=query.integer(request, "limit", 20, 1, 100),
                order=query.order(request),
            )
        )


def _store(request: Request) -> str:
    found: str = request.path_params["vector_store_id"]
    return found


def _status(request: Request) -> FileStatus | None:
    text = request.query_params.get("filter") or None
    for status in _STATUSES:
        if text == status:
            found: FileStatus = status
            return found
    if text is not None:
        raise InvalidRequest(f"'filter' must be one of {', '.join(_STATUSES)}.", param="filter")
    return None
