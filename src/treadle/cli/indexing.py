"""Brings one file after another into a vector store, so that the store holds each in its newest version, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import BinaryIO, Literal

import msgspec

from treadle.cli.channel import Unreachable
from treadle.cli.form import Upload, digest_of
from treadle.cli.given import PATH, SHA256, Value
from treadle.cli.stores import Refused, StoreFile, Stores
from treadle.cli.walk import PICTURES, READABLE, Document

Kind = Literal["indexed", "replaced", "unchanged", "failed", "skipped"]

_CLEANING_SECONDS = 5.0
_SHORTEST_POLL, _LONGEST_POLL = 0.05, 5.0
_CONSTANT_REFUSALS = (401, 403, 503)
_UNSUPPORTED, _INVALID = "unsupported_file", "invalid_file"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a document. `code` and `message` say why it failed or was skipped."""

    path: str
    status: Kind
    file_id: str | None = None
    code: str = ""
    message: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """How files are to be in the store: attributes besides our own, and sizes of chunks unless the server's will do."""

    attributes: Mapping[str, Value]
    chunking: Mapping[str, int] | None


class _Failed(Exception):
    """The server could not index it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Indexer:
    """For one store, whose `files` are known. `told` hears how many chunks of a document (by key) are done."""

    def __init__(
        self,
        stores: Stores,
        store: str,
        wanted: Wanted,
        files: Iterable[StoreFile],
        told: Callable[[str, int], None],
    ) -> None:
        self._stores = stores
        self._store = store
        self._wanted = wanted
        self._told = told
        self._there: dict[str, list[StoreFile]] = {}
        for file in files:
            if isinstance(path := (file.attributes or {}).get(PATH), str):
                self._there.setdefault(path, []).append(file)
        self.underway: set[str] = set()
        """Keys of documents that the server has and is not done with."""

    async def index(self, document: Document) -> Outcome:
        """Unreachable, and Refused if the server would refuse every other file too."""
        try:
            with document.path.open("rb") as file:
                return await self._index(document, file)
        except OSError as error:
            return Outcome(path=document.key, status="failed", code="unreadable", message=error.strerror or str(error))
        except _Failed as fault:
            status: Kind = "skipped" if _is_no_document(document, fault.code) else "failed"
            return Outcome(path=document.key, status=status, code=fault.code, message=fault.message)
        except Refused as refused:
            if refused.status in _CONSTANT_REFUSALS:
                raise
            return Outcome(path=document.key, status="failed", code=refused.code, message=refused.message)

    async def _index(self, document: Document, file: BinaryIO) -> Outcome:
        earlier = self._there.get(document.key, [])
        if not earlier:
            found = await self._add(document, file)
            return Outcome(path=document.key, status="indexed", file_id=found.id)
        digest = await asyncio.to_thread(digest_of, file)
        same = _newest(earlier, digest)
        if same is None:
            found, status = await self._add(document, file), _replacing(earlier)
        else:
            found, status = await self._renew(document, same)
        for old in earlier:
            if old.id != found.id:
                await self._stores.delete_file(old.id)
        return Outcome(path=document.key, status=status, file_id=found.id)

    async def _add(self, document: Document, file: BinaryIO) -> StoreFile:
        upload = Upload(file, document.path.name)
        file_id = await self._stores.upload(upload.body)
        kept = False
        try:
            if upload.fault is not None:
                raise upload.fault
            attributes = {**self._wanted.attributes, PATH: document.key, SHA256: upload.digest}
            found = await self._stores.attach(self._store, file_id, attributes, self._wanted.chunking)
            kept = True  # by the server, even if nobody waits for it
            try:
                return await self._settled(document, found)
            except _Failed:
                kept = False
                raise
        finally:
            if not kept:
                await self._take_back(file_id)

    async def _renew(self, document: Document, same: StoreFile) -> tuple[StoreFile, Kind]:
        """A file that is there with the same content: cut anew or given other attributes if that is wanted."""
        attributes = dict(same.attributes or {})
        wanted = {**attributes, **self._wanted.attributes}
        status: Kind = "indexed" if same.status == "in_progress" else "unchanged"
        found = same
        if self._is_cut_otherwise(same):
            status = "replaced"
            found = await self._stores.attach(self._store, same.id, wanted, self._wanted.chunking)
        elif _encoded(wanted) != _encoded(attributes):
            found = await self._stores.set_attributes(self._store, same.id, wanted)
            status = "replaced" if status == "unchanged" else status
        try:
            return await self._settled(document, found), status
        except _Failed:
            if same.status == "in_progress":
                await self._take_back(same.id)
            raise

    async def _settled(self, document: Document, file: StoreFile) -> StoreFile:
        """The file once the server is done with it. _Failed if it could not be indexed."""
        self.underway.add(document.key)
        while file.status == "in_progress":
            self._told(document.key, file.chunks_done)
            await asyncio.sleep(min(max(file.poll_after, _SHORTEST_POLL), _LONGEST_POLL))
            try:
                file = await self._stores.file(self._store, file.id)
            except Refused:
                self.underway.discard(document.key)
                raise
        self.underway.discard(document.key)
        if file.status == "completed":
            return file
        if file.last_error is None:
            raise _Failed(file.status, f"the server says that it is {file.status}")
        raise _Failed(file.last_error.code, file.last_error.message)

    async def _take_back(self, file_id: str) -> None:
        with suppress(Refused, Unreachable, TimeoutError):
            async with asyncio.timeout(_CLEANING_SECONDS):
                await self._stores.delete_file(file_id)

    def _is_cut_otherwise(self, file: StoreFile) -> bool:
        if self._wanted.chunking is None:
            return False
        return (file.chunking_strategy or {}).get("static") != self._wanted.chunking


class Monotony:
    """Notices that files fail for one reason that is not theirs, as when the embedding model is away."""

    def __init__(self, most: int = 10) -> None:
        self._most = most
        self._reasons: Counter[str] = Counter()

    def is_reached(self, outcome: Outcome) -> bool:
        """Whether `most` outcomes in a row were failures of this kind."""
        if outcome.status != "failed" or outcome.code in (_UNSUPPORTED, _INVALID, "unreadable"):
            self._reasons.clear()
            return False
        self._reasons[outcome.message] += 1
        return self._reasons[outcome.message] >= self._most


def _newest(files: list[StoreFile], digest: str) -> StoreFile | None:
    """The one with this content that is searchable, or else will be."""
    same = [file for file in files if (file.attributes or {}).get(SHA256) == digest]
    for status in ("completed", "in_progress"):
        for file in reversed(same):
            if file.status == status:
                return file
    return None


def _replacing(earlier: list[StoreFile]) -> Kind:
    return "replaced" if any(file.status == "completed" for file in earlier) else "indexed"


def _is_no_document(document: Document, code: str) -> bool:
    """A folder may hold files that are none, and pictures without text, without anything being wrong."""
    if document.named or document.ending in READABLE:
        return False
    return code == _UNSUPPORTED or (code == _INVALID and document.ending in PICTURES)


def _encoded(attributes: Mapping[str, Value]) -> bytes:
    """For comparing: 1 is not true."""
    return msgspec.json.encode(attributes, order="sorted")
