"""Finds the files below the paths that a user names: each once, under a name that stays the same from run to run."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

MAX_KEY = 512
"""Characters of an attribute, which a path is kept in."""

READABLE = frozenset(
    ".csv .docx .eml .epub .htm .html .json .jsonl .markdown .md .pdf .pptx .rst .tsv .txt .xhtml .xlsx".split()
)
"""Endings of documents. If the server cannot read one of these, that is worth more than a word at the end."""

PICTURES = frozenset(".bmp .gif .jpeg .jpg .png .tif .tiff .webp".split())
"""They can be read if text recognition is installed and there is text in them."""

NO_DOCUMENTS = frozenset(
    # archives and images of disks
    ".7z .apk .bz2 .deb .dmg .gz .img .iso .jar .rar .rpm .tar .tgz .whl .xz .zip .zst "
    # programs
    ".a .class .dll .dylib .exe .lib .msi .o .obj .pyc .pyo .so .wasm "
    # sound and film
    ".aac .avi .flac .m4a .m4v .mid .mkv .mov .mp3 .mp4 .mpeg .mpg .ogg .opus .wav .webm .wma .wmv "
    # data, models, fonts
    ".db .gguf .npy .npz .onnx .parquet .pickle .pkl .pt .pth .safetensors .sqlite .sqlite3 "
    ".eot .otf .ttf .woff .woff2 .ico .psd".split()
)
"""Endings of files that no server reads, so that their bytes need not be sent."""

HIDDEN = "hidden"
EMPTY = "empty"
BROKEN = "linked to nothing"
LOOPS = "linked in a circle"
TAKEN = "linked to what is there anyway"
SPECIAL = "special (a pipe, socket or device)"

Identity = tuple[int, int]
"""What tells that two paths lead to the same file: device and number."""


class Document(msgspec.Struct, frozen=True):
    """A file to index. `key` is its path as it is kept in the store; `named`: the user named it, not its folder."""

    path: Path
    key: str
    named: bool

    @property
    def ending(self) -> str:
        return self.path.suffix.lower()


class Fault(msgspec.Struct, frozen=True):
    """What cannot be looked at, and why."""

    path: str
    reason: str


@dataclass
class Walk:
    """What was found. `skipped` counts reasons, `endings` what was skipped for its name's."""

    documents: list[Document] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)


def walk(paths: Sequence[str], base: Path) -> Walk:
    """The files of these paths, hidden ones below them left out. Links are followed, each file and folder once, and
    by the way without links if there is one. Keys are relative to `base` for what is below it, else whole paths."""
    search = _Search(base.resolve())
    folders = []
    for path in dict.fromkeys(paths):
        try:
            root = _root(path)
            found = root.stat()
        except (OSError, RuntimeError, ValueError) as error:
            search.walk.faults.append(Fault(path, _missing(error)))
            continue
        if stat.S_ISDIR(found.st_mode):
            folders.append(root)
        elif stat.S_ISREG(found.st_mode):
            search.take(root, found, named=True)
        else:
            search.walk.faults.append(Fault(path, "is neither a file nor a folder"))
    for root in folders:
        search.folder(root)
    search.follow()
    return search.walk


class _Search:
    def __init__(self, base: Path) -> None:
        self.walk = Walk()
        self._base = base
        self._folders: set[Identity] = set()
        self._files: set[Identity] = set()
        self._keys: set[str] = set()
        self._links: deque[Path] = deque()

    def folder(self, root: Path) -> None:
        """All below a folder, in order of names; what is a link is kept for `follow`."""
        waiting = [root]
        while waiting:
            path = waiting.pop()
            try:
                identity = _identity(path.stat())
                if identity in self._folders:
                    continue
                self._folders.add(identity)
                with os.scandir(path) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                self.walk.faults.append(Fault(str(path), _reason(error)))
                continue
            below = []
            for entry in found:
                if entry.name.startswith("."):
                    self.walk.skipped[HIDDEN] += 1
                elif entry.is_symlink():
                    self._links.append(Path(entry.path))
                elif entry.is_dir():
                    below.append(Path(entry.path))
                else:
                    self._file(Path(entry.path))
            waiting += reversed(below)

    def follow(self) -> None:
        """Where links lead that has not been reached without them."""
        while self._links:
            path = self._links.popleft()
            try:
                found = path.stat()
                target = path.resolve()
            except (OSError, RuntimeError):
                self.walk.skipped[BROKEN] += 1
                continue
            if target in path.parent.resolve().parents:
                self.walk.skipped[LOOPS] += 1
            elif _identity(found) in (self._folders if stat.S_ISDIR(found.st_mode) else self._files):
                self.walk.skipped[TAKEN] += 1
            elif stat.S_ISDIR(found.st_mode):
                self.folder(path)
            else:
                self._file(path)

    def _file(self, path: Path) -> None:
        """A file that was found, not named: what is surely no document is left out."""
        ending = path.suffix.lower()
        try:
            found = path.stat()
        except OSError as error:
            self.walk.faults.append(Fault(str(path), _reason(error)))
            return
        if not stat.S_ISREG(found.st_mode):
            self.walk.skipped[SPECIAL] += 1
        elif ending in NO_DOCUMENTS:
            self.walk.endings[ending] += 1
        elif not found.st_size:
            self.walk.skipped[EMPTY] += 1
        else:
            self.take(path, found, named=False)

    def take(self, path: Path, found: os.stat_result, *, named: bool) -> None:
        """Unless it was taken already, as by a path that the user named besides its folder."""
        self._files.add(_identity(found))
        key = key_of(path, self._base)
        if key not in self._keys:
            self._keys.add(key)
            self.walk.documents.append(Document(path, key, named))


def key_of(path: Path, base: Path) -> str:
    """The path of a file as it is kept: with `/`, as text, and not too long for an attribute."""
    whole = (path.relative_to(base) if path.is_relative_to(base) else path).as_posix()
    raw = os.fsencode(whole)
    shown = raw.decode("utf-8", "backslashreplace")
    if shown == whole and len(shown) <= MAX_KEY:
        return shown
    # Two files that look alike by now must not be taken for one.
    mark = f"#{hashlib.sha256(raw).hexdigest()[:16]}"
    return shown[-(MAX_KEY - len(mark)) :] + mark


def _root(path: str) -> Path:
    """A path that a user named, whole. Links above it are followed, so that it is told by the same name however the
    user came there."""
    if not path:
        raise ValueError("an empty path names nothing")
    given = Path(path)
    if given.name in ("", ".."):
        return given.resolve()
    return given.parent.resolve() / given.name


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _missing(error: Exception) -> str:
    return "there is no such file or folder" if isinstance(error, FileNotFoundError) else _reason(error)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
