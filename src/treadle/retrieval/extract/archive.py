"""ZIP archives that are documents: opened within bounds, and their XML as a stream of events."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self
from xml.parsers import expat

from treadle.errors import UnreadableFile
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.faults import damaged, encrypted

_MAX_MEMBERS = 50_000
_BIG = 16 * 1024 * 1024
_MAX_RATIO = 300
"""What a big member may unpack to, times its packed size. XML of real documents stays below 50."""
_PART = 64 * 1024
_MAX_DEPTH = 10_000

Attributes = dict[str, str]
Event = tuple[str, str, Attributes]
"""("start", name, attributes), ("end", name, {}) or ("text", characters, {}); names without their namespace, but
references to other members as `r:id`."""


class Archive:
    """The members of a document. All methods raise UnreadableFile for what is damaged, locked or a trap."""

    def __init__(self, document: Document, kind: str) -> None:
        self._kind = kind
        try:
            self._zip = zipfile.ZipFile(document.path)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as fault:
            raise damaged(kind) from fault
        members = self._zip.infolist()
        self._names = {member.filename for member in members}
        try:
            self._check(members, document.bounds.unpacked_mb)
        except BaseException:
            self._zip.close()
            raise

    def _check(self, members: list[zipfile.ZipInfo], unpacked_mb: int) -> None:
        if len(members) > _MAX_MEMBERS:
            raise UnreadableFile(f"The {self._kind} has more than {_MAX_MEMBERS:,} parts.")
        if sum(member.file_size for member in members) > unpacked_mb << 20:
            raise UnreadableFile(f"The {self._kind} unpacks to more than allowed ({unpacked_mb} MB).")
        for member in members:
            if member.file_size > max(_BIG, _MAX_RATIO * member.compress_size):
                raise UnreadableFile(f"The {self._kind} is packed so tightly that it is taken for a trap.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def names(self) -> list[str]:
        return sorted(self._names)

    def read(self, name: str) -> bytes:
        return b"".join(self._parts(name))

    def events(self, name: str) -> Iterator[Event]:
        """What an XML member holds, in order. Entities of its own are refused: they serve attacks only."""
        found: list[Event] = []
        parser = _parser(found)
        try:
            for part in self._parts(name):
                parser.Parse(part, False)
                yield from found
                found.clear()
            parser.Parse(b"", True)
        except expat.ExpatError as fault:
            raise damaged(self._kind, f"{name} is not well-formed XML") from fault
        except _Refused as fault:
            raise UnreadableFile(f"The {self._kind} is not safe to read: {fault}.") from fault
        yield from found

    def related(self, name: str) -> dict[str, tuple[str, str]]:
        """What a member refers to: by id, the last word of its type and the member's name (Office)."""
        folder, file = posixpath.split(name)
        relations = f"{folder}/_rels/{file}.rels"
        if relations not in self:
            return {}
        return {
            attributes["Id"]: (
                attributes.get("Type", "").rsplit("/", 1)[-1],
                resolved(folder, attributes.get("Target", "")),
            )
            for kind, tag, attributes in self.events(relations)
            if kind == "start" and tag == "Relationship" and "Id" in attributes
        }

    def _parts(self, name: str) -> Iterator[bytes]:
        try:
            with self._open(name) as member:
                while part := member.read(_PART):
                    yield part
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as fault:
            raise damaged(self._kind, f"{name} cannot be unpacked") from fault

    def _open(self, name: str) -> IO[bytes]:
        try:
            return self._zip.open(name)
        except KeyError as fault:
            raise damaged(self._kind, f"{name} is missing") from fault
        except RuntimeError as fault:
            raise encrypted(self._kind) from fault


def resolved(folder: str, target: str) -> str:
    """The name of the member that `target` means as seen from `folder`."""
    path = target if target.startswith("/") else f"/{folder}/{target}"
    return posixpath.normpath(path).lstrip("/")


class _Refused(Exception):
    """XML that does what no document does."""


def _parser(found: list[Event]) -> expat.XMLParserType:
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.buffer_size = _PART
    depth = 0

    def start(name: str, attributes: Attributes) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise _Refused("its XML is nested too deeply")
        found.append(("start", _local(name), {_attribute(key): value for key, value in attributes.items()}))

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        found.append(("end", _local(name), {}))

    def refuse(*_: object) -> None:
        raise _Refused("its XML declares entities")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda data: found.append(("text", data, {}))
    parser.EntityDeclHandler = refuse
    return parser


def _local(name: str) -> str:
    return name.rsplit(" ", 1)[-1]


def _attribute(name: str) -> str:
    """References keep a prefix: Office has ids beside them that are called the same."""
    space, _, local = name.rpartition(" ")
    return f"r:{local}" if space.endswith("/relationships") else local
