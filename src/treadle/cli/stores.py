"""Vector stores and their files, as commands use them over the API. Fields that a command does not need are not read,
so that other servers of the same API will do as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from treadle.cli.channel import Body, Channel, Reply

T = TypeVar("T")

_JSON = "application/json"
_PAGE = 100

Value = str | int | float | bool
Attributes = Mapping[str, Value]


class Refused(Exception):
    """The server says no. `code` and `message` are its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Store(msgspec.Struct):
    id: str
    name: str | None = None
    created_at: int = 0
    status: str = "completed"


class FileError(msgspec.Struct):
    code: str
    message: str


class StoreFile(msgspec.Struct):
    """A File in a store, by the File's id."""

    id: str
    status: str
    last_error: FileError | None = None
    attributes: dict[str, Value] | None = None
    chunking_strategy: dict[str, object] | None = None
    chunks_done: int = 0
    poll_after: float = 0.5
    """Seconds after which to ask again; from the reply's header."""


class Passage(msgspec.Struct):
    file_id: str
    score: float
    content: list[dict[str, object]]
    filename: str = ""
    attributes: dict[str, Value] | None = None
    page: int | None = None
    section: str | None = None


class Found(msgspec.Struct):
    data: list[Passage]


class _Page(msgspec.Struct, Generic[T]):
    data: list[T]
    has_more: bool = False


class _Id(msgspec.Struct):
    id: str


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


class Stores:
    """The API over a channel. Every method raises Refused for what the server refuses, and Unreachable."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def all(self) -> list[Store]:
        return [store async for store in self._listed("/v1/vector_stores", _Page[Store])]

    async def get(self, store: str) -> Store:
        return await self._ask("GET", _store(store), Store)

    async def create(self, name: str) -> Store:
        return await self._ask("POST", "/v1/vector_stores", Store, {"name": name})

    async def delete(self, store: str) -> None:
        await self._ask("DELETE", _store(store), msgspec.Raw)

    async def files(self, store: str) -> list[StoreFile]:
        return [file async for file in self._listed(f"{_store(store)}/files", _Page[StoreFile])]

    async def file(self, store: str, file: str) -> StoreFile:
        return await self._file("GET", f"{_store(store)}/files/{quote(file, safe='')}")

    async def attach(
        self, store: str, file: str, attributes: Attributes, chunking: Mapping[str, object] | None
    ) -> StoreFile:
        """`chunking` are the rules of the static strategy; None: the server's own."""
        body: dict[str, object] = {"file_id": file, "attributes": attributes}
        if chunking is not None:
            body["chunking_strategy"] = {"type": "static", "static": chunking}
        return await self._file("POST", f"{_store(store)}/files", body)

    async def set_attributes(self, store: str, file: str, attributes: Attributes) -> StoreFile:
        return await self._file("POST", f"{_store(store)}/files/{quote(file, safe='')}", {"attributes": attributes})

    async def upload(self, form: Body) -> str:
        """The id of the new File."""
        found = _read(await self._channel.send("POST", "/v1/files", form), "POST", "/v1/files", _Id)
        return found.id

    async def delete_file(self, file: str) -> None:
        """Takes a File out of everything. That it is gone already is no fault."""
        try:
            await self._ask("DELETE", f"/v1/files/{quote(file, safe='')}", msgspec.Raw)
        except Refused as refused:
            if refused.status != 404:
                raise

    async def search(self, store: str, query: Mapping[str, object]) -> bytes:
        """The server's answer as it came; `Found` reads it."""
        return bytes(await self._ask("POST", f"{_store(store)}/search", msgspec.Raw, query))

    async def _file(self, method: str, path: str, body: Mapping[str, object] | None = None) -> StoreFile:
        reply = await self._channel.send(method, path, _json(body))
        found = _read(reply, method, path, StoreFile)
        after = reply.headers.get("openai-poll-after-ms", "")
        if after.isdigit():
            found.poll_after = int(after) / 1000
        return found

    async def _ask(self, method: str, path: str, kind: type[T], body: Mapping[str, object] | None = None) -> T:
        return _read(await self._channel.send(method, path, _json(body)), method, path, kind)

    async def _listed(self, path: str, kind: type[_Page[T]]) -> AsyncIterator[T]:
        after = ""
        while True:
            query = urlencode({"limit": _PAGE, "order": "asc"} | ({"after": after} if after else {}))
            page = await self._ask("GET", f"{path}?{query}", kind)
            for one in page.data:
                yield one
            if not page.has_more or not page.data:
                return
            after = str(getattr(page.data[-1], "id", ""))


def _store(store: str) -> str:
    return f"/v1/vector_stores/{quote(store, safe='')}"


def _json(body: Mapping[str, object] | None) -> Body | None:
    if body is None:
        return None
    encoded = msgspec.json.encode(body)

    async def parts() -> AsyncIterator[bytes]:
        yield encoded

    return Body(_JSON, len(encoded), parts)


def _read(reply: Reply, method: str, path: str, kind: type[T]) -> T:
    asked = f"{method} {path.partition('?')[0]}"
    if reply.status >= 300:
        raise _refused(reply, asked)
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused(reply.status, "", f"the answer to {asked} is not what this API answers") from None


def _refused(reply: Reply, asked: str) -> Refused:
    try:
        error = msgspec.json.decode(reply.body, type=_Envelope).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = _Error()
    message = error.message or f"it answers HTTP {reply.status} to {asked}"
    if 300 <= reply.status < 400:
        message = f"it answers {asked} with a redirect to {reply.headers.get('location', 'somewhere else')}"
    return Refused(reply.status, error.code or "", message)
