"""Images and files that messages hold by id, by address or inline, turned into what the model takes.

Found before rendering, so that the renderer stays synchronous and total. What is stored stays as the client sent it;
every turn finds it anew. In this turn's own input a thing that cannot be had is the caller's mistake. In the history it
becomes a visible note: a thread must go on after a file was deleted or a page has gone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from treadle.engine.media import NO_IMAGE, NOWHERE_ELSE, Place, data_url, from_data_url, picture_type
from treadle.errors import InvalidRequest, NotFound, TooLarge, ToolFault, UnsupportedFile
from treadle.ports import (
    Capabilities,
    Extractor,
    Fetcher,
    FileContents,
    FilePart,
    FileRow,
    ImagePart,
    ModelPart,
    TextPart,
)
from treadle.scope import Scope
from treadle.wire.content import InputFile, InputImage
from treadle.wire.files import clean_filename, media_type_of
from treadle.wire.items import CallOutput, Item, Message

T = TypeVar("T")

MAX_BYTES = 52_428_800
CACHED_BYTES = 67_108_864
AT_ONCE = 8
MAX_FETCHES = 64
"""Addresses that are fetched for one turn."""
MAX_TEXT = 400_000
"""Characters of one file's text, about 100,000 tokens; for a model that takes less in all, half of what it takes."""
_OFF_LOOP = 262_144
"""Bytes from which on coding is done in a thread."""


@dataclass(slots=True)
class _Reference:
    """A part that has to be found. `at` is its path in the request; None: it is in the history."""

    place: Place
    part: InputImage | InputFile
    at: str | None

    @property
    def file_id(self) -> str:
        return "" if self.url else self.part.file_id or ""

    @property
    def url(self) -> str:
        """A data URL, base64, or an address."""
        if isinstance(self.part, InputImage):
            return self.part.image_url or ""
        return self.part.file_data or self.part.file_url or ""

    @property
    def remote(self) -> bool:
        is_data = isinstance(self.part, InputFile) and bool(self.part.file_data)
        return bool(self.url) and not is_data and self.url[:5].lower() != "data:"

    @property
    def field(self) -> str:
        if self.file_id:
            return "file_id"
        if isinstance(self.part, InputImage):
            return "image_url"
        return "file_data" if self.part.file_data else "file_url"


@dataclass(slots=True)
class _Found:
    """The bytes behind a reference, not yet read."""

    name: str
    kind: str
    open: Callable[[], AsyncIterator[bytes]]
    size: int


class Attachments:
    """What finds them. The ports that need a running loop are set when the server starts."""

    def __init__(
        self,
        contents: FileContents | None = None,
        fetcher: Fetcher | None = None,
        extractor: Extractor | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        cached_bytes: int = CACHED_BYTES,
    ) -> None:
        """`max_bytes` of all that one turn shows the model as pictures and files; `cached_bytes` of what was found for
        earlier turns."""
        self.contents = contents
        self.fetcher = fetcher
        self.extractor = extractor
        self.max_bytes = max_bytes
        self.cache = _Cache(cached_bytes)

    async def find(
        self,
        scope: Scope,
        inputs: Sequence[tuple[Item, str]],
        shown: Iterable[Item],
        can: Capabilities,
        places: Mapping[Place, str] = NOWHERE_ELSE,
    ) -> dict[Place, ModelPart]:
        """The parts of `shown` that are not to be rendered as they are, by item and number. `inputs` are items of this
        turn with their paths, `places` those of parts that stand elsewhere in the request. InvalidRequest, NotFound or
        TooLarge, naming the field, for one that cannot be had."""
        paths = {item.id: at for item, at in inputs}
        found = [one for item in shown for one in _references(item, paths, places) if self._needed(one, can)]
        if not found:
            return {}
        wanted = {one.file_id for one in found if one.file_id}
        rows = await self.contents.find(scope, [*wanted]) if wanted and self.contents is not None else {}
        turn = _Finding(self, scope, rows, can)
        own = [one for one in found if one.at is not None]
        parts = await _together([turn.part(one) for one in own])
        # The newest first, so that what does not fit any more is old.
        past = [one for one in reversed(found) if one.at is None]
        parts += await _together([turn.past(one) for one in past])
        return {one.place: part for one, part in zip([*own, *past], parts, strict=True) if part is not None}

    def _needed(self, one: _Reference, can: Capabilities) -> bool:
        if one.file_id:
            return True
        if isinstance(one.part, InputImage):
            return one.remote and can.images and self.fetcher is not None
        return not one.remote or self.fetcher is not None


class _Finding:
    """One turn's look for its attachments."""

    def __init__(self, given: Attachments, scope: Scope, rows: dict[str, FileRow], can: Capabilities) -> None:
        self._given = given
        self._scope = scope
        self._rows = rows
        self._can = can
        self._bytes = 0
        self._fetches = 0
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def past(self, one: _Reference) -> ModelPart | None:
        """Like `part`, but what cannot be had is a note."""
        try:
            return await self.part(one)
        except InvalidRequest as fault:
            what = "image" if isinstance(one.part, InputImage) else "file"
            return TextPart(f"[The {what} that stood here cannot be shown any more: {fault.message}]")

    async def part(self, one: _Reference) -> ModelPart | None:
        """What the model is shown; None to render the part as it is."""
        try:
            async with self._slots:
                return await self._cached(one)
        except ToolFault as fault:
            what = "image" if isinstance(one.part, InputImage) else "file"
            raise InvalidRequest(
                fault.message, param=f"{one.at}.{one.field}", code=f"failed_to_download_{what}"
            ) from None
        except InvalidRequest as fault:
            fault.param = f"{one.at}.{one.field}"
            raise

    async def _cached(self, one: _Reference) -> ModelPart | None:
        """From the cache, if the file is still the caller's. What an address holds may change: a new message means what
        is there now, an old one what was there then."""
        if one.file_id and one.file_id not in self._rows:
            raise NotFound(f"File '{one.file_id[:128]}' not found.")
        form = (isinstance(one.part, InputImage), self._can.images, self._can.files, self._text_limit())
        key = (self._scope.tenant, self._scope.owner, form, one.file_id or (*one.place, one.url))
        known = self._given.cache.get(key) if one.file_id or (one.remote and one.at is None) else None
        if known is None:
            part = await (self._image(one) if isinstance(one.part, InputImage) else self._file(one, one.part))
            if part is not None and (one.file_id or one.remote):
                self._given.cache.put(key, part)
            return part
        self._charge(_size(known) * 3 // 4 if not isinstance(known, TextPart) else 0)
        if isinstance(known, ImagePart) and isinstance(one.part, InputImage):
            return ImagePart(known.url, one.part.detail)
        return known

    async def _image(self, one: _Reference) -> ModelPart | None:
        if not self._can.images:
            return None
        assert isinstance(one.part, InputImage)
        source = await self._open(one)
        data = await self._read(source)
        if not data:
            raise InvalidRequest("The image is empty.", code="empty_image_file")
        kind = picture_type(data, source.kind)
        if kind is None:
            raise InvalidRequest(
                f"'{source.name}' is no image that models take; send PNG, JPEG, WebP or GIF.",
                code="unsupported_image_media_type",
            )
        return ImagePart(await _coded(data, kind), one.part.detail)

    async def _file(self, one: _Reference, part: InputFile) -> ModelPart | None:
        if part.file_data and part.file_data[:5].lower() == "data:":
            if self._can.images and part.file_data[5:11].lower() == "image/":
                return ImagePart(part.file_data)
            if self._can.files:
                return None  # as it is
        source = await self._open(one)
        if source.kind.startswith("image/"):
            return await self._pictured(source)
        if not self._can.files:
            return TextPart(await self._text(source))
        return FilePart(await _coded(await self._read(source), source.kind), source.name)

    async def _pictured(self, source: _Found) -> ModelPart:
        """A picture that came as a file."""
        if self._can.images:
            data = await self._read(source)
            if (kind := picture_type(data, source.kind)) is not None:
                return ImagePart(await _coded(data, kind))
            raise InvalidRequest(f"'{source.name}' is no image.", code="unsupported_image_media_type")
        if self._can.files:
            return FilePart(await _coded(await self._read(source), source.kind), source.name)
        try:
            return TextPart(await self._text(source))
        except UnsupportedFile:
            return TextPart(NO_IMAGE)

    async def _open(self, one: _Reference) -> _Found:
        if one.file_id:
            contents, row = self._given.contents, self._rows[one.file_id]
            assert contents is not None
            _, pieces = await contents.open(self._scope, row.id)
            return _Found(row.filename, row.media_type, lambda: pieces, row.bytes)
        name = clean_filename(one.part.filename or "") if isinstance(one.part, InputFile) else "image"
        if not one.remote:
            kind, data = await _off_loop(len(one.url), lambda: from_data_url(one.url))
            return _Found(name, kind or media_type_of(name), lambda: _whole(data), len(data))
        return await self._fetched(one, name)

    async def _fetched(self, one: _Reference, name: str) -> _Found:
        fetcher = self._given.fetcher
        assert fetcher is not None
        self._fetches += 1
        if self._fetches > MAX_FETCHES:
            raise InvalidRequest(f"No more than {MAX_FETCHES} addresses are fetched for one response.")
        body = await fetcher.fetch(one.url, param=one.field)
        data = body.data
        if not (isinstance(one.part, InputFile) and one.part.filename):
            name = clean_filename(unquote(PurePosixPath(urlsplit(one.url).path).name))
        kind = body.content_type
        if kind in ("", "application/octet-stream", "binary/octet-stream"):
            kind = media_type_of(name)
        return _Found(name, kind, lambda: _whole(data), len(data))

    async def _read(self, source: _Found) -> bytes:
        self._charge(source.size)
        return b"".join([piece async for piece in source.open()])

    def _charge(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._given.max_bytes:
            raise TooLarge(
                f"The images and files of this request have more than {self._given.max_bytes} bytes together "
                "(files.max_input_bytes)."
            )

    async def _text(self, source: _Found) -> str:
        """The file's text under its name. It is the user's own: it is not marked as data from outside."""
        limit = self._text_limit()
        pieces = source.open()
        try:
            if (extractor := self._given.extractor) is not None:
                text = await extractor.text(pieces, source.name, limit + 1)
            else:
                text = await _plain_text(source, pieces, limit + 1)
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        if len(text) > limit:
            text = f"{text[:limit]}\n[The file goes on; only its first {limit} characters are shown.]"
        return f"[File: {source.name}]\n{text}\n[End of file: {source.name}]"

    def _text_limit(self) -> int:
        window = self._can.context_window
        return MAX_TEXT if window is None else min(MAX_TEXT, 2 * window)


class _Cache:
    """What was found for earlier turns, the least used first to go."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[object, ModelPart] = OrderedDict()

    def get(self, key: object) -> ModelPart | None:
        part = self._kept.get(key)
        if part is not None:
            self._kept.move_to_end(key)
        return part

    def put(self, key: object, part: ModelPart) -> None:
        if (known := self._kept.pop(key, None)) is not None:
            self._bytes -= _size(known)
        if _size(part) > self._max // 4:
            return
        self._kept[key] = part
        self._bytes += _size(part)
        while self._bytes > self._max:
            _, old = self._kept.popitem(last=False)
            self._bytes -= _size(old)


def _size(part: ModelPart) -> int:
    match part:
        case TextPart(text):
            return len(text)
        case ImagePart(url):
            return len(url)
        case _:
            return len(part.data)


def _references(item: Item, paths: dict[str | None, str], places: Mapping[Place, str]) -> list[_Reference]:
    """The images and files of an item; its id is set, as of all that were decoded."""
    if isinstance(item, Message):
        field, parts = "content", item.content
    elif isinstance(item, CallOutput):
        field, parts = "output", item.output
    else:
        return []
    at = paths.get(item.id)
    found = [((item.id or "", index), part) for index, part in enumerate(parts)]
    return [
        _Reference(place, part, None if at is None else places.get(place) or f"{at}.{field}[{place[1]}]")
        for place, part in found
        if isinstance(part, InputImage | InputFile)
    ]


async def _together(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results in order. What still runs when one fails is ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _whole(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


async def _plain_text(source: _Found, pieces: AsyncIterator[bytes], limit: int) -> str:
    """The text of a file that is nothing but text, where nothing is there to read others."""
    if not source.kind.startswith("text/") and source.kind not in ("application/json", "application/jsonl"):
        raise UnsupportedFile(f"'{source.name}' is no text, this model takes no files, and nothing here can read it.")
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > 4 * limit:
            break
    return data.decode("utf-8-sig", "replace")[:limit]


async def _coded(data: bytes, kind: str) -> str:
    return await _off_loop(len(data), lambda: data_url(kind, data))


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size < _OFF_LOOP else await asyncio.to_thread(work)
