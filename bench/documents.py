"""How long documents take to become chunks, through the reading process, without embedding.

    python bench/documents.py

The texts are those of the standard library's documentation (135,000 words); the documents are made by the tests' kit.
Prints, for each format, its size, the seconds of the whole way and of CPU in the reading process, and its memory.
Budget: a PDF of 300 pages in 3 seconds; `run.py` measures that one.
"""

from __future__ import annotations

import asyncio
import html
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

from figures import Figure

sys.path.insert(0, str(Path(__file__).parent.parent))  # the documents are made by the tests' kit

from tests.unit.retrieval.documents_kit import cut, docx, epub, pdf, xlsx
from treadle.retrieval.documents import DocumentReader

WORDS = [word for word in " ".join(topics.topics.values()).split() if word.isascii() and word.isprintable()]
PAGES, PAGE_WORDS = 300, 450
PDF_SECONDS = 3.0
PAGE_TEXTS = [
    " ".join(WORDS[(page * PAGE_WORDS + word) % len(WORDS)] for word in range(PAGE_WORDS)) for page in range(PAGES)
]
ROWS = 50_000


def _word(document: Any) -> None:
    for number, text in enumerate(PAGE_TEXTS):
        document.add_heading(f"Part {number}", 1 + number % 3)
        document.add_paragraph(text)


def _page(first: int, last: int) -> str:
    parts = [f"<h2>Part {n}</h2><p>{html.escape(PAGE_TEXTS[n])}</p>" for n in range(first, min(last, PAGES))]
    return "".join(parts)


DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "300 pages.pdf": lambda: pdf(["\n".join(textwrap.wrap(text, 95)) for text in PAGE_TEXTS]),
    "300 pages.docx": lambda: docx(_word),
    "300 pages.html": lambda: f"<html>{_page(0, PAGES)}</html>".encode(),
    "300 pages.epub": lambda: epub([_page(start, start + 10) for start in range(0, PAGES, 10)]),
    "300 pages.md": lambda: "".join(f"## Part {n}\n\n{text}\n\n" for n, text in enumerate(PAGE_TEXTS)).encode(),
    "50,000 rows.xlsx": lambda: xlsx({"a": [["id", "name"], *([n, f"name {n}"] for n in range(ROWS))]}),
    "50,000 rows.csv": lambda: ("id,name\n" + "".join(f"{n},name {n}\n" for n in range(ROWS))).encode(),
    "50,000 values.json": lambda: json.dumps([{"id": n, "name": f"name {n}"} for n in range(ROWS)]).encode(),
    "19 MB.txt": lambda: ("\n\n".join(PAGE_TEXTS) * 25).encode()[:19_000_000],
}


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) // 1024


@dataclass(frozen=True)
class Cost:
    """Of one document: seconds of the whole way and of CPU in the reading process, and its memory at most."""

    megabytes: float
    seconds: float
    cpu: float
    chunks: int
    peak_mb: int


async def cost(name: str) -> Cost:
    document = DOCUMENTS[name]()
    async with DocumentReader() as reader:
        await cut(reader, b"warm", "a.txt")
        [pid] = reader.pids
        cpu, begun = _cpu(pid), time.perf_counter()
        chunks = await cut(reader, document, name)
        seconds = time.perf_counter() - begun
        return Cost(len(document) / 1e6, seconds, _cpu(pid) - cpu, len(chunks), _peak_mb(pid))


def measure(quick: bool) -> tuple[list[Figure], list[str]]:
    """The figure of the PDF, and what is worth knowing besides."""
    found = [asyncio.run(cost("300 pages.pdf")) for _ in range(1 if quick else 3)]
    best = min(found, key=lambda one: one.seconds)
    note = f"a PDF of {PAGES} pages: {best.cpu:.2f} s of CPU, {best.chunks} chunks, {best.peak_mb} MB"
    return [Figure(f"a PDF of {PAGES} pages to chunks", best.seconds, PDF_SECONDS, "s")], [note]


async def main() -> None:
    print(f"{'document':20} {'MB':>6} {'seconds':>8} {'CPU':>6} {'chunks':>7} {'peak MB':>8}")
    for name in DOCUMENTS:
        one = await cost(name)
        print(f"{name:20} {one.megabytes:6.2f} {one.seconds:8.2f} {one.cpu:6.2f} {one.chunks:7} {one.peak_mb:8}")


if __name__ == "__main__":
    asyncio.run(main())
