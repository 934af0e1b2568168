"""`/v1/files`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import get_args
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from treadle.api.files import FileService
from treadle.errors import InvalidRequest
from treadle.http import query
from treadle.http.endpoints import Answer, Endpoint, Parameter
from treadle.http.multipart import MULTIPART, Part, parts_of
from treadle.http.replies import reply
from treadle.http.routes.parameters import AFTER, ORDER
from treadle.scope import LOCAL
from treadle.wire.base import refuse
from treadle.wire.files import PURPOSES, CreateFile, File, FileDeleted, FileList, Purpose

FILES = "/v1/files"
_ONE = FILES + "/{file_id}"
_OVERHEAD = 1_048_576
"""Bytes that a form may have besides its file."""
_MAX_LISTED = 10_000
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_ANYTHING = "*/*"

_FORM: dict[str, object] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "The file, with its name."},
        "purpose": {"type": "string", "enum": list(get_args(Purpose)), "description": "What it is for."},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": 3600,
            "maximum": 2592000,
            "description": "How long the file lives. Both fields may come as one, `expires_after`, with a JSON object.",
        },
    },
    "required": ["file", "purpose"],
}
_PURPOSE = Parameter(
    name="purpose",
    schema={"type": "string", "enum": sorted(PURPOSES)},
    description="Show files for this purpose only.",
)
_LIMIT = Parameter(
    name="limit", schema={"type": "integer", "minimum": 1, "maximum": _MAX_LISTED, "default": _MAX_LISTED}
)


class FileRoutes:
    """Endpoints over the use cases of files."""

    def __init__(self, service: FileService) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path=FILES,
                name="createFile",
                summary="Upload a file.",
                action=self.create,
                body=_FORM,
                takes=MULTIPART,
                result=File,
                statuses=(413, 415, 503),
            ),
            Endpoint(
                method="GET",
                path=FILES,
                name="listFiles",
                summary="List files.",
                action=self.list,
                result=FileList,
                statuses=(400, 503),
                parameters=(AFTER, _LIMIT, ORDER, _PURPOSE),
            ),
            Endpoint(
                method="GET",
                path=_ONE,
                name="retrieveFile",
                summary="Retrieve a file, without its content.",
                action=self.get,
                result=File,
                statuses=(400, 404, 503),
            ),
            Endpoint(
                method="DELETE",
                path=_ONE,
                name="deleteFile",
                summary="Delete a file, in vector stores too.",
                action=self.delete,
                result=FileDeleted,
                statuses=(400, 404, 503),
            ),
            Endpoint(
                method="GET",
                path=_ONE + "/content",
                name="downloadFile",
                summary="Retrieve a file's content.",
                action=self.content,
                produces=_ANYTHING,
                statuses=(400, 404, 503),
            ),
        ]

    async def create(self, request: Request) -> Answer:
        form = _Form()
        async with (
            self._service.upload(LOCAL) as upload,
            aclosing(parts_of(request, self._service.max_bytes + _OVERHEAD)) as parts,
        ):
            async for part in parts:
                if part.name != "file":
                    await form.take(part)
                    continue
                if part.filename is None:
                    raise InvalidRequest("'file' must be a file: it has no filename.", param="file")
                form.check()  # what is known to be wrong is said before the bytes have come
                async with aclosing(part.content()) as content:
                    await upload.receive(part.filename, content)
            return reply(await upload.complete(form.whole()))

    async def list(self, request: Request) -> Answer:
        purpose = query.text(request, "purpose")
        if purpose is not None and purpose not in PURPOSES:
            raise InvalidRequest(f"'purpose' must be one of {', '.join(sorted(PURPOSES))}.", param="purpose")
        return reply(
            await self._service.list(
                LOCAL,
                after=query.text(request, "after"),
                limit=query.integer(request, "limit", _MAX_LISTED, 1, _MAX_LISTED),
                order=query.order(request),
                purpose=purpose,
            )
        )

    async def get(self, request: Request) -> Answer:
        return reply(await self._service.get(LOCAL, _id(request)))

    async def delete(self, request: Request) -> Answer:
        return reply(await self._service.delete(LOCAL, _id(request)))

    async def content(self, request: Request) -> Answer:
        row, content = await self._service.open(LOCAL, _id(request))
        headers = {
            "content-type": row.media_type,
            "content-length": str(row.bytes),
            "content-disposition": disposition(row.filename),
            # What somebody uploaded is never a page of this server's, whatever it claims to be.
            "x-content-type-options": "nosniff",
            "content-security-policy": "default-src 'none'; sandbox",
            "cache-control": "private, no-store",
        }
        if request.method == "HEAD":
            return Response(headers=headers)
        # Read before the head is sent, so that a blob that is gone is still a 404.
        first = await anext(content, b"")
        return _Download(first, content, headers)


class _Form:
    """The fields of the form that are not the file."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    async def take(self, part: Part) -> None:
        """Reads a field. Fields of other names are skipped, as everywhere."""
        if part.name not in ("purpose", "expires_after", "expires_after[anchor]", "expires_after[seconds]"):
            return
        if part.name in self._fields:
            raise InvalidRequest(f"'{part.name}' is there more than once.", param=part.name)
        if text := (await part.text()).strip():
            self._fields[part.name] = text

    def check(self) -> None:
        if "purpose" in self._fields:
            self.whole()

    def whole(self) -> CreateFile:
        """The typed form. InvalidRequest, naming the field, for what is missing or wrong."""
        found: dict[str, object] = {}
        if (purpose := self._fields.get("purpose")) is not None:
            found["purpose"] = purpose
        expiry = {
            name: self._fields[f"expires_after[{name}]"]
            for name in ("anchor", "seconds")
            if f"expires_after[{name}]" in self._fields
        }
        if expiry:
            found["expires_after"] = expiry
        elif (text := self._fields.get("expires_after")) is not None:
            found["expires_after"] = _from_json(text, "expires_after")
        try:
            return msgspec.convert(found, CreateFile, strict=False)
        except msgspec.ValidationError as error:
            raise refuse(str(error)) from None


def disposition(filename: str) -> str:
    """To be saved, never to be shown in the page: RFC 6266, with a plain name for old clients."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%;' else "_" for char in filename)
    value = f'attachment; filename="{plain}"'
    return value if plain == filename else f"{value}; filename*=UTF-8''{quote(filename, safe='')}"


class _Download(StreamingResponse):
    """Passes the content on, and lets go of it at once when the client leaves."""

    def __init__(self, first: bytes, rest: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(_continued(first, rest), headers=headers)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if isinstance(self._rest, AsyncGenerator):
                await self._rest.aclose()


async def _continued(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in rest:
        yield piece


def _from_json(text: str, at: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(f"Invalid value for '{at}': it must be a JSON object.", param=at) from None


def _id(request: Request) -> str:
    found: str = request.path_params["file_id"]
    if not _ID.match(found):
        raise InvalidRequest("Invalid 'file_id': ids have letters, digits, '-' and '_' only.", param="file_id")
    return found
