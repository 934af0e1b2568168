"""Treadle and OGX side by side: the same 1,000 files, the same requests, the same embeddings.

    python bench/side_by_side.py --ogx-python ~/ogx/bin/python      # starts OGX, once with each of its two indexes
    python bench/side_by_side.py --ogx-url http://127.0.0.1:8321 --upstream-port 9001 [--ogx-pid PID]

Both servers ask one scripted model server (bench/upstream.py) for embeddings, so the servers are compared and not
models. Each is given the files by upload, indexes them in batches, and is asked 200 questions one after the other, by
meaning alone and by meaning and words. A question holds words of one passage; it is a hit if that passage's file is
among the first ten. Prints wall time, CPU and memory of the server with its child processes, and times of searches.

An OGX that this script starts needs in its environment, of Python 3.12 or newer: ogx faiss-cpu sqlite-vec chardet pypdf
(no torch). sqlite-vec also needs a Python whose sqlite3 loads extensions. One that runs already needs the model server
as its `remote::openai` provider (OPENAI_BASE_URL=http://127.0.0.1:9001/v1, OPENAI_API_KEY=none), with `bench`
registered as an embedding model of 384 dimensions; CPU and memory are read where `--ogx-pid` names its process.
Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from processes import Family, Process, free_port, server, upstream

from treadle.vocabularies import vocabulary

FILES, QUESTIONS, BATCH, UPLOADERS = 1_000, 200, 100, 8
"""Batches come one after the other: of ten at once, OGX 1.5.0 lost files to its locked database."""

PASSAGE_WORDS = 300
MODEL = "openai/bench"
DIMENSIONS = 384
CHUNKING = {"type": "static", "static": {"max_chunk_size_tokens": 512, "chunk_overlap_tokens": 128}}
MODES = ("vector", "hybrid")
OGX_INDEXES = ("faiss", "sqlite-vec")
PATIENCE = 120.0
"""Seconds that a server may take to start."""

_TIKTOKEN = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"


@dataclass(frozen=True)
class Document:
    name: str
    text: str


@dataclass(frozen=True)
class Question:
    text: str
    file: str
    """The name of the file that answers it."""


@dataclass
class Corpus:
    documents: list[Document] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


def corpus(files: int = FILES, questions: int = QUESTIONS) -> Corpus:
    """Files of one to eight passages, in paragraphs, of English words; the same ones on every machine."""
    chance = random.Random(4)
    pieces = vocabulary("bert_uncased.txt").decode().split()
    words = [word for word in pieces if word.isascii() and word.isalpha() and len(word) > 2]
    chance.shuffle(words)
    common, rare = words[:2_000], words[2_000:]
    weights = [1 / rank for rank in range(1, len(common) + 1)]
    made, asked = Corpus(), list[Question]()
    for number in range(files):
        name = f"document-{number:04}.{'md' if number % 3 == 0 else 'txt'}"
        passages = []
        for _ in range(chance.randint(1, 8)):
            theme = chance.sample(rare, 12)
            passage = chance.choices(common, weights, k=PASSAGE_WORDS - 60) + chance.choices(theme, k=60)
            chance.shuffle(passage)
            passages.append(_paragraphs(passage))
            asked.append(Question(" ".join(chance.sample(theme, 5) + chance.choices(common, weights, k=4)), name))
        heading = f"# Document {number}\n\n" if name.endswith(".md") else ""
        made.documents.append(Document(name, heading + "\n\n".join(passages)))
    made.questions = chance.sample(asked, min(questions, len(asked)))
    return made


def _paragraphs(words: list[str]) -> str:
    """Sentences of twelve words, five to a paragraph."""
    sentences = [" ".join(words[start : start + 12]).capitalize() + "." for start in range(0, len(words), 12)]
    return "\n\n".join(" ".join(sentences[start : start + 5]) for start in range(0, len(sentences), 5))


@dataclass
class Row:
    """What one server needed."""

    name: str
    ingest_seconds: float = 0.0
    ingest_cpu: float | None = None
    memory_mb: float | None = None
    files: int = 0
    p50: dict[str, float] = field(default_factory=dict)
    p95: dict[str, float] = field(default_factory=dict)
    cpu_ms: dict[str, float | None] = field(default_factory=dict)
    hits: dict[str, float] = field(default_factory=dict)


class NotOffered(Exception):
    """The server has no such search."""


class Client:
    """The part of the OpenAI API that both have."""

    def __init__(self, url: str, extra: dict[str, Any]) -> None:
        """`extra` goes into the request that makes a store, beside what both understand."""
        self._http = httpx2.Client(base_url=url, timeout=600, headers={"Authorization": "Bearer none"})
        self._extra = extra

    def store(self) -> str:
        body = {"name": "bench", "embedding_model": MODEL, "embedding_dimension": DIMENSIONS, **self._extra}
        made: str = self._asked("POST", "/v1/vector_stores", body)["id"]
        return made

    def upload(self, document: Document) -> str:
        parts = {"file": (document.name, document.text.encode(), "text/plain")}
        answer = self._http.post("/v1/files", files=parts, data={"purpose": "assistants"})
        answer.raise_for_status()
        made: str = answer.json()["id"]
        return made

    def index(self, store: str, files: list[str]) -> int:
        """Waits until the files are indexed, and gives how many are."""
        path, done = f"/v1/vector_stores/{store}/file_batches", 0
        for start in range(0, len(files), BATCH):
            body = {"file_ids": files[start : start + BATCH], "chunking_strategy": CHUNKING}
            batch = self._asked("POST", path, body)
            while batch["status"] == "in_progress":
                time.sleep(0.25)
                batch = self._asked("GET", f"{path}/{batch['id']}")
            done += batch["file_counts"]["completed"]
        return done

    def search(self, store: str, question: str, mode: str) -> list[str]:
        """The names of the files of what was found."""
        body = {"query": question, "max_num_results": 10, "search_mode": mode}
        answer = self._asked("POST", f"/v1/vector_stores/{store}/search", body)
        return [hit["filename"] for hit in answer["data"]]

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._http.request(method, path, json=body)
        if answer.status_code == 501:
            raise NotOffered(path)
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        given: dict[str, Any] = answer.json()
        return given


def measured(name: str, client: Client, family: Family | None, given: Corpus) -> Row:
    row = Row(name)
    store = client.store()
    spent, begun = family.cpu_seconds() if family else 0.0, time.perf_counter()
    with ThreadPoolExecutor(UPLOADERS) as pool:
        ids = list(pool.map(client.upload, given.documents))
    row.files = client.index(store, ids)
    row.ingest_seconds = time.perf_counter() - begun
    if family:
        row.ingest_cpu = family.cpu_seconds() - spent
    names = dict(zip(ids, (document.name for document in given.documents), strict=True))
    for mode in MODES:
        _search(row, client, store, mode, names, family, given)
    if family:
        row.memory_mb = family.memory_mb()
    return row


def _search(
    row: Row, client: Client, store: str, mode: str, names: dict[str, str], family: Family | None, given: Corpus
) -> None:
    try:
        for question in given.questions[:10]:
            client.search(store, question.text, mode)
    except NotOffered:
        return
    taken, hits = [], 0
    spent = family.cpu_seconds() if family else 0.0
    for question in given.questions:
        begun = time.perf_counter()
        found = client.search(store, question.text, mode)
        taken.append((time.perf_counter() - begun) * 1000)
        # OGX puts the id of the file where its name belongs.
        hits += question.file in {names.get(one, one) for one in found}
    taken.sort()
    row.p50[mode] = statistics.median(taken)
    row.p95[mode] = taken[int(0.95 * (len(taken) - 1))]
    row.cpu_ms[mode] = (family.cpu_seconds() - spent) * 1000 / len(taken) if family else None
    row.hits[mode] = hits / len(taken)


@contextmanager
def ogx(python: str, upstream_url: str, folder: Path) -> Iterator[tuple[Process, int]]:
    """An OGX server over the model server, with nothing but what is measured, and its port."""
    port = free_port()
    config = folder / "config.yaml"
    config.write_text(json.dumps(_config(upstream_url, folder)))  # JSON is YAML
    kept = {k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "_URL")) and k != "PYTHONPATH"}
    env = {**kept, "TIKTOKEN_CACHE_DIR": str(_tiktoken(folder)), "OGX_DISABLE_VERSION_CHECK": "1"}
    command = [str(Path(python).with_name("ogx")), "run", str(config), "--port", str(port), "--insecure"]
    process = Process(command, env, f"http://127.0.0.1:{port}/v1/health", PATIENCE)
    try:
        yield process, port
    finally:
        process.stop()


def _tiktoken(folder: Path) -> Path:
    """A folder where tiktoken finds the encoding that OGX counts with, instead of asking the network for it."""
    cache = folder / "tiktoken"
    cache.mkdir()
    name = hashlib.sha1(_TIKTOKEN.encode(), usedforsecurity=False).hexdigest()
    (cache / name).write_bytes(vocabulary("cl100k_base.tiktoken"))
    return cache


def _config(upstream_url: str, folder: Path) -> dict[str, Any]:
    def kept(name: str) -> dict[str, str]:
        return {"namespace": f"vector_io::{name}", "backend": "kv_default"}

    return {
        "version": 2,
        "distro_name": "bench",
        "apis": ["file_processors", "files", "inference", "vector_io"],
        "providers": {
            "inference": [
                {
                    "provider_id": "openai",
                    "provider_type": "remote::openai",
                    "config": {"api_key": "none", "base_url": upstream_url},
                }
            ],
            "vector_io": [
                {"provider_id": "faiss", "provider_type": "inline::faiss", "config": {"persistence": kept("faiss")}},
                {
                    "provider_id": "sqlite-vec",
                    "provider_type": "inline::sqlite-vec",
                    "config": {"db_path": str(folder / "sqlite_vec.db"), "persistence": kept("sqlite_vec")},
                },
            ],
            "files": [
                {
                    "provider_id": "files",
                    "provider_type": "inline::localfs",
                    "config": {
                        "storage_dir": str(folder / "files"),
                        "metadata_store": {"table_name": "files_metadata", "backend": "sql_default"},
                    },
                }
            ],
            "file_processors": [{"provider_id": "pypdf", "provider_type": "inline::pypdf"}],
        },
        "storage": {
            "backends": {
                "kv_default": {"type": "kv_sqlite", "db_path": str(folder / "kv.db")},
                "sql_default": {"type": "sql_sqlite", "db_path": str(folder / "sql.db")},
            },
            "stores": {
                "metadata": {"namespace": "registry", "backend": "kv_default"},
                "inference": {"table_name": "inference_store", "backend": "sql_default"},
                "conversations": {"table_name": "conversations", "backend": "sql_default"},
                "prompts": {"table_name": "prompts", "backend": "sql_default"},
                "connectors": {"table_name": "connectors", "backend": "sql_default"},
            },
        },
        "registered_resources": {
            "models": [
                {
                    "model_id": "bench",
                    "provider_id": "openai",
                    "provider_model_id": "bench",
                    "model_type": "embedding",
                    "metadata": {"embedding_dimension": DIMENSIONS},
                }
            ]
        },
        "vector_stores": {
            "default_provider_id": OGX_INDEXES[0],
            "default_embedding_model": {"provider_id": "openai", "model_id": "bench"},
        },
    }


def shown(rows: list[Row]) -> str:
    """The rows as a table in Markdown."""

    def number(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    lines = ["| | " + " | ".join(row.name for row in rows) + " |", "| --- |" + " --: |" * len(rows)]
    figures: list[tuple[str, list[str]]] = [
        ("files indexed", [str(row.files) for row in rows]),
        ("upload and indexing, s", [number(row.ingest_seconds, 1) for row in rows]),
        ("CPU of it, s", [number(row.ingest_cpu, 1) for row in rows]),
        ("memory afterwards, MB", [number(row.memory_mb, 0) for row in rows]),
    ]
    for mode in MODES:
        times = [f"{number(row.p50.get(mode), 1)} / {number(row.p95.get(mode), 1)}" for row in rows]
        figures += [
            (f"search by {mode}, p50 / p95, ms", times),
            ("CPU of it, ms", [number(row.cpu_ms.get(mode), 1) for row in rows]),
            ("hit@10", [number(row.hits.get(mode), 3) for row in rows]),
        ]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(values) + " |" for name, values in figures)])


def treadle_row(upstream_url: str, given: Corpus) -> Row:
    with tempfile.TemporaryDirectory() as folder, server(upstream_url, Path(folder)) as (process, port):
        return measured("Treadle", Client(f"http://127.0.0.1:{port}", {}), Family(process.pid), given)


def ogx_row(python: str, index: str, upstream_url: str, given: Corpus) -> Row:
    with tempfile.TemporaryDirectory() as folder, ogx(python, upstream_url, Path(folder)) as (process, port):
        client = Client(f"http://127.0.0.1:{port}", {"provider_id": index})
        return measured(f"OGX, {index}", client, Family(process.pid), given)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ogx-python", help="the Python of an environment that has OGX; it is started")
    parser.add_argument("--ogx-url", help="an OGX that runs")
    parser.add_argument("--ogx-pid", type=int, help="the process of the OGX that runs, if it is on this machine")
    parser.add_argument("--upstream-port", type=int, default=0, help="of the model server that this script starts")
    parser.add_argument("--indexes", nargs="*", default=OGX_INDEXES, help="provider ids of OGX's indexes")
    parser.add_argument("--files", type=int, default=FILES)
    options = parser.parse_args()
    given = corpus(options.files)
    rows: list[Row] = []
    unmeasured = []
    with upstream(options.upstream_port) as (_, url):
        rows.append(treadle_row(url, given))
        for index in options.indexes:
            try:
                if options.ogx_url:
                    family = Family(options.ogx_pid) if options.ogx_pid else None
                    client = Client(options.ogx_url.removesuffix("/v1"), {"provider_id": index})
                    rows.append(measured(f"OGX, {index}", client, family, given))
                elif options.ogx_python:
                    rows.append(ogx_row(options.ogx_python, index, url, given))
            except RuntimeError as error:
                unmeasured.append(f"OGX, {index}, could not be measured: {error}")
    print(shown(rows))
    print(*unmeasured, sep="\n")
    return 1 if unmeasured else 0


if __name__ == "__main__":
    sys.exit(main())
