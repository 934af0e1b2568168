"""Finding what messages attach, behind the endpoints: scopes, bounds, missing ports, and what ends when one fails."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from treadle.engine.attachments import MAX_FETCHES, Attachments
from treadle.engine.media import from_data_url, picture_type
from treadle.errors import InvalidRequest, NotFound, StorageFault, ToolFault, UnreadableFile
from treadle.ports import Capabilities, FilePart, FileRow, ImagePart, ModelPart, TextPart
from treadle.scope import LOCAL, Principal, Scope
from treadle.wire.content import InputFile, InputImage
from treadle.wire.items import Item, Message

OTHER = Scope("default", Principal("other"))
SEES = Capabilities()
BLIND = Capabilities(images=False, files=False)
PNG = b"\x89PNG\r\n\x1a\nrest"


class Contents:
    """Files of LOCAL."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("_", "."): content for name, content in files.items()}
        self.opened: list[str] = []
        self.broken = False

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, FileRow]:
        return {name: self._row(name) for name in ids if scope == LOCAL and name in self.files}

    async def open(self, scope: Scope, file_id: str) -> tuple[FileRow, AsyncIterator[bytes]]:
        self.opened.append(file_id)
        return self._row(file_id), self._read(file_id)

    async def keep(self, scope: Scope, filename: str, text: str, media_type: str = "text/plain") -> FileRow:
        raise NotImplementedError

    def _row(self, name: str) -> FileRow:
        kind = "text/plain" if name.endswith("txt") else "image/png"
        size = len(self.files[name])
        return FileRow(id=name, filename=name, purpose="x", bytes=size, created_at=1, media_type=kind)

    async def _read(self, name: str) -> AsyncIterator[bytes]:
        if self.broken:
            raise StorageFault("The disk is gone.")
        yield self.files[name]


class Body:
    def __init__(self, data: bytes, content_type: str) -> None:
        self.data = data
        self.content_type = content_type


class Web:
    """Every address holds the picture; `held` ones never answer, `gone` ones have nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended: list[str] = []

    async def fetch(self, url: str, *, param: str = "url") -> Body:
        self.asked.append(url)
        if "held" in url:
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.append(url)
        if "gone" in url:
            await asyncio.sleep(0)
            raise ToolFault(f"{url} answered 404.")
        return Body(PNG, "image/png")


class Reader:
    async def text(self, source: AsyncIterator[bytes], filename: str, limit: int) -> str:
        read = b"".join([piece async for piece in source]).decode()
        if read == "broken":
            raise UnreadableFile("It is broken.")
        return f"read: {read}"[:limit]

    def chunks(self, *_: Any) -> Any:
        raise NotImplementedError


def said(*parts: InputImage | InputFile, id: str = "msg_1") -> Message:
    return Message(id=id, role="user", content=[*parts])


async def found(
    attachments: Attachments, *items: Item, past: Sequence[Item] = (), can: Capabilities = SEES, scope: Scope = LOCAL
) -> list[ModelPart]:
    inputs = [(item, f"input[{number}]") for number, item in enumerate(items)]
    async with asyncio.timeout(10):
        parts = await attachments.find(scope, inputs, [*past, *items], can)
    return list(parts.values())


async def test_nothing_is_asked_of_anyone_where_there_is_nothing_to_find() -> None:
    assert await found(Attachments(), said(InputImage(image_url="data:image/png;base64,AA=="))) == []


async def test_a_file_of_somebody_else_is_not_there() -> None:
    attachments = Attachments(Contents(a_png=PNG), None, Reader())
    assert isinstance((await found(attachments, said(InputImage(file_id="a.png"))))[0], ImagePart)
    for part in (InputImage(file_id="a.png"), InputFile(file_id="a.png")):
        with pytest.raises(NotFound) as caught:
            await found(attachments, said(part), scope=OTHER)
        assert caught.value.param == "input[0].content[0].file_id"
    [note] = await found(attachments, past=[said(InputImage(file_id="a.png"))], scope=OTHER)
    assert isinstance(note, TextPart), "what is cached for one is not shown to another"
    assert "not found" in note.text


async def test_without_files_every_id_is_unknown() -> None:
    with pytest.raises(NotFound):
        await found(Attachments(), said(InputImage(file_id="a.png")))


async def test_without_a_way_out_addresses_stay_for_the_model_server() -> None:
    parts = InputImage(image_url="https://a.example/x.png"), InputFile(file_url="https://a.example/x.pdf")
    assert await found(Attachments(), said(*parts)) == []


async def test_what_was_read_once_is_not_read_again() -> None:
    contents = Contents(a_png=PNG, b_txt=b"hi")
    attachments = Attachments(contents, None, Reader())
    one = said(InputImage(file_id="a.png", detail="low"), InputFile(file_id="b.txt"))
    two = said(InputImage(file_id="a.png", detail="high"), InputFile(file_id="b.txt"))
    first = await found(attachments, one, can=Capabilities(files=False))
    second = await found(attachments, two, can=Capabilities(files=False))
    assert contents.opened == ["a.png", "b.txt"]
    assert first[1] == second[1] == TextPart("[File: b.txt]\nread: hi\n[End of file: b.txt]")
    assert [part.detail for part in (first[0], second[0]) if isinstance(part, ImagePart)] == ["low", "high"]
    # Another form is another thing.
    assert isinstance((await found(attachments, two))[1], FilePart)


async def test_the_cache_stays_within_its_bound() -> None:
    contents = Contents(**{f"f{number}_png": PNG + bytes(1500) for number in range(10)})
    attachments = Attachments(contents, cached_bytes=10_000)
    for number in (0, 1, 2, 3, 0, 4, 5, 0):
        await found(attachments, said(InputImage(file_id=f"f{number}.png")))
    assert contents.opened == [f"f{number}.png" for number in (0, 1, 2, 3, 4, 5)], "the one that is used stays"
    await found(attachments, said(InputImage(file_id="f1.png")))
    assert contents.opened[-1] == "f1.png"
    assert attachments.cache._bytes <= 10_000


async def test_cached_ones_count_too() -> None:
    attachments = Attachments(Contents(a_png=PNG + bytes(600)), max_bytes=1000)
    picture = InputImage(file_id="a.png")
    await found(attachments, said(picture))
    with pytest.raises(InvalidRequest, match="max_input_bytes"):
        await found(attachments, said(picture, picture))


async def test_when_one_fails_the_others_end() -> None:
    web = Web()
    urls = ["https://a.example/held1", "https://a.example/held2", "https://a.example/gone"]
    with pytest.raises(InvalidRequest) as caught:
        await found(Attachments(None, web), said(*(InputImage(image_url=url) for url in urls)))
    assert caught.value.param == "input[0].content[2].image_url"
    assert sorted(web.ended) == urls[:2]


async def test_no_more_than_some_addresses_are_fetched() -> None:
    web = Web()
    pictures = [InputImage(image_url=f"https://a.example/{number}") for number in range(MAX_FETCHES + 5)]
    with pytest.raises(InvalidRequest, match="No more than"):
        await found(Attachments(None, web), said(*pictures))
    assert len(web.asked) <= MAX_FETCHES
    notes = [
        part for part in await found(Attachments(None, Web()), past=[said(*pictures)]) if isinstance(part, TextPart)
    ]
    assert len(notes) == 5


async def test_a_document_that_cannot_be_read_is_named_now_and_noted_later() -> None:
    attachments = Attachments(Contents(a_txt=b"broken"), None, Reader())
    part = InputFile(file_id="a.txt")
    with pytest.raises(UnreadableFile) as caught:
        await found(attachments, said(part), can=BLIND)
    assert caught.value.param == "input[0].content[0].file_id"
    [note] = await found(attachments, past=[said(part)], can=BLIND)
    assert note == TextPart("[The file that stood here cannot be shown any more: It is broken.]")


async def test_a_fault_of_storage_is_one_wherever_the_file_stands() -> None:
    contents = Contents(a_png=PNG)
    contents.broken = True
    with pytest.raises(StorageFault):
        await found(Attachments(contents), past=[said(InputImage(file_id="a.png"))])


async def test_text_is_text_without_a_reader_of_documents() -> None:
    attachments = Attachments(Contents(a_txt="\ufeffnaïve".encode(), b_png=b"no picture"))
    [text] = await found(attachments, said(InputFile(file_id="a.txt")), can=BLIND)
    assert text == TextPart("[File: a.txt]\nnaïve\n[End of file: a.txt]")
    inline = InputFile(file_data=b64encode(b"%PDF-").decode(), filename="a.pdf")
    with pytest.raises(InvalidRequest, match="nothing here can read it"):
        await found(attachments, said(inline), can=BLIND)


async def test_a_small_window_gets_less_of_a_text() -> None:
    attachments = Attachments(Contents(a_txt=b"x" * 10_000))
    small = Capabilities(images=False, files=False, context_window=1000)
    [text] = await found(attachments, said(InputFile(file_id="a.txt")), can=small)
    assert isinstance(text, TextPart)
    assert "only its first 2000 characters" in text.text
    assert text.text.count("x") < 2010


@pytest.mark.parametrize(
    ("data", "declared", "kind"),
    [
        (PNG, "", "image/png"),
        (b"\xff\xd8\xff\xe0x", "image/png", "image/jpeg"),
        (b"GIF89a", "", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8", "", "image/webp"),
        (b"\x00\x00\x00\x1cftypavif", "image/avif", "image/avif"),
        (b"hello", "image/png", None),
        (b"<svg/>", "image/svg+xml", None),
        (b"", "image/avif", None),
        (b"hello", "text/plain", None),
    ],
)
def test_pictures_are_known_by_their_bytes(data: bytes, declared: str, kind: str | None) -> None:
    assert picture_type(data, declared) == kind


def test_data_urls_come_in_several_forms() -> None:
    assert from_data_url("data:text/plain;charset=utf-8;base64,aGk=") == ("text/plain", b"hi")
    assert from_data_url("DATA:Text/Plain,h%20i") == ("text/plain", b"h i")
    assert from_data_url("aGk=") == ("", b"hi")
    for broken in ("data:text/plain;base64", "data:;base64,a", "a", "hällo"):
        with pytest.raises(InvalidRequest):
            from_data_url(broken)
