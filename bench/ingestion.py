"""How near indexing comes to the bare embedding model: 300 text documents through a server, and their chunks through
ONNX Runtime and the tokenizer alone.

    python bench/ingestion.py [--documents 300]

The documents are passages of the standard library's documentation of 50 to 600 words. They are uploaded first; then
the time counts from attaching them to the last one's completion, with reading, chunking, embedding and indexing. The
bare model gets the chunks that the server made, file by file as the server does, in runs of the same size with the same
options. They take turns, a part of the documents each, so that both meet the same machine. What the server spends is
its process's CPU; the processes that read documents are told apart. `run.py` calls this. Linux only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

import httpx2
import numpy
from figures import Figure
from processes import Family, Process, server
from tokenizers import BertWordPieceTokenizer

from treadle.models.minilm import MiniLm
from treadle.models.weights import MINILM, WeightStore
from treadle.vocabularies import vocabulary

SLOWER = 1.1
"""The budget: throughput within 10 % of the bare model's."""

MODEL = "local/all-minilm-l6-v2"
WINDOW, RUN_TOKENS, THREADS, CALL = 254, 512, 2, 32
"""As the server runs it: tokens of a window, padded tokens of a run, threads, and chunks of a call."""
FRAME = (101, 102)
TURNS = 5
POLL_SECONDS = 0.25
"""Twice as often as the official clients ask while a batch is new: asking is no part of indexing."""


def installed() -> bool:
    """Whether the embedded model is there."""
    with tempfile.TemporaryDirectory() as folder:
        return MiniLm(WeightStore(Path(folder))).installed()


def documents(count: int) -> list[str]:
    chance = random.Random(1)
    words = " ".join(topics.topics.values()).split()
    starts = [chance.randrange(len(words) - 600) for _ in range(count)]
    return [" ".join(words[start : start + chance.randint(50, 600)]) for start in starts]


@dataclass(frozen=True)
class Spent:
    """Seconds of wall time, and of CPU in the process and in its children."""

    wall: float = 0.0
    cpu: float = 0.0
    children: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu, self.children + other.children)


class Client:
    """Attaches documents to a store and reads them back."""

    def __init__(self, port: int) -> None:
        self._http = httpx2.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=60)

    def store(self, texts: Sequence[str]) -> tuple[str, list[str]]:
        """A store that has embedded already, and the ids of the texts, which are not in it yet."""
        store = self._asked("POST", "/vector_stores", {"embedding_model": MODEL})["id"]
        return store, [self._upload(f"{number}.txt", text) for number, text in enumerate(texts)]

    def index(self, store: str, files: list[str]) -> None:
        """Attaches the files and waits until all are completed."""
        batch = self._asked("POST", f"/vector_stores/{store}/file_batches", {"file_ids": files})
        while batch["status"] == "in_progress":
            time.sleep(POLL_SECONDS)
            batch = self._asked("GET", f"/vector_stores/{store}/file_batches/{batch['id']}")
        if batch["file_counts"]["completed"] != len(files):
            raise RuntimeError(f"not all files were indexed: {batch['file_counts']}")

    def chunks(self, store: str, file: str) -> list[str]:
        answer = self._asked("GET", f"/vector_stores/{store}/files/{file}/content")
        return [chunk["text"] for chunk in answer["data"]]

    def _upload(self, name: str, text: str) -> str:
        parts = {"file": (name, text.encode(), "text/plain")}
        answer = self._http.post("/files", files=parts, data={"purpose": "assistants"})
        answer.raise_for_status()
        made: str = answer.json()["id"]
        return made

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._http.request(method, path, json=body)
        answer.raise_for_status()
        given: dict[str, Any] = json.loads(answer.content)
        return given


class BareModel:
    """The embedding model without a server around it."""

    def __init__(self, path: Path) -> None:
        words = vocabulary("bert_uncased.txt").decode().splitlines()
        self._tokenizer = BertWordPieceTokenizer({word: number for number, word in enumerate(words)})
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def embed(self, texts: list[str]) -> None:
        windows = []
        for found in self._tokenizer.encode_batch(texts, add_special_tokens=False):
            pieces = max(1, -(-len(found.ids) // WINDOW))
            length = max(1, -(-len(found.ids) // pieces))
            windows += [found.ids[start : start + length] for start in range(0, len(found.ids), length)]
        for run in _runs(sorted(windows, key=len)):
            ids = numpy.zeros((len(run), len(run[-1]) + 2), dtype=numpy.int64)
            for row, window in zip(ids, run, strict=True):
                row[: len(window) + 2] = (FRAME[0], *window, FRAME[1])
            mask = (ids != 0).astype(numpy.int64)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
            states = self._session.run(["last_hidden_state"], inputs)[0]
            sums = numpy.einsum("btd,bt->bd", states, mask.astype(numpy.float32))
            sums /= numpy.linalg.norm(sums, axis=1, keepdims=True)


def _runs(windows: list[list[int]]) -> Iterator[list[list[int]]]:
    """Windows, ascending by length, that are run together."""
    run: list[list[int]] = []
    for window in windows:
        if run and (len(window) + 2) * (len(run) + 1) > RUN_TOKENS:
            yield run
            run = []
        run.append(window)
    if run:
        yield run


def bare(model: BareModel, files: Sequence[list[str]]) -> Spent:
    begun, spent = time.perf_counter(), time.process_time()
    for chunks in files:
        for start in range(0, len(chunks), CALL):
            model.embed(chunks[start : start + CALL])
    return Spent(time.perf_counter() - begun, time.process_time() - spent)


def served(process: Process, client: Client, texts: Sequence[str]) -> tuple[Spent, list[list[str]]]:
    """What indexing the texts took, and the chunks that it made of each."""
    store, files = client.store(texts)
    family = Family(process.pid)
    own, whole, begun = process.cpu_ms() / 1000, family.cpu_seconds(), time.perf_counter()
    client.index(store, files)
    wall, own, whole = time.perf_counter() - begun, process.cpu_ms() / 1000 - own, family.cpu_seconds() - whole
    return Spent(wall, own, max(0.0, whole - own)), [client.chunks(store, file) for file in files]


def measure(quick: bool, count: int = 0) -> tuple[list[Figure], list[str]]:
    """The figures, and what is worth knowing besides. `quick`: few documents, and no wall time, which is noise then."""
    if not installed():
        return [], ["ingestion: not measured, because the embedding model is not installed"]
    texts = documents(count or (15 if quick else 300))
    with tempfile.TemporaryDirectory() as folder, server("http://127.0.0.1:9", Path(folder)) as (process, port):
        client = Client(port)
        _, files = served(process, client, texts[:5])  # the model is loaded, and a reading process has started
        model = BareModel(WeightStore(Path(folder)).find(MINILM))
        bare(model, files)
        chunks, ours, theirs = 0, Spent(), Spent()
        for turn in range(TURNS):
            spent, files = served(process, client, texts[turn::TURNS])
            ours, theirs = ours + spent, theirs + bare(model, files)
            chunks += sum(map(len, files))
    rates = f"{chunks / ours.wall:.1f} chunks/s, of the bare model {chunks / theirs.wall:.1f}"
    costs = f"{ours.cpu:.1f} s of CPU, of the bare model {theirs.cpu:.1f}; reading documents {ours.children:.1f}"
    notes = [f"ingestion: {chunks} chunks of {len(texts)} files, {rates}; {costs}"]
    figures = [Figure("CPU of ingestion / bare model's", ours.cpu / theirs.cpu, SLOWER, "x")]
    if not quick:
        figures.append(Figure("time of ingestion / bare model's", ours.wall / theirs.wall, SLOWER, "x"))
    return figures, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=300)
    figures, notes = measure(False, parser.parse_args().documents)
    for figure in figures:
        print(f"{figure.name:38} {figure.value:8.2f} {figure.unit:2}  budget {figure.budget:g}")
    print(*notes, sep="\n")


if __name__ == "__main__":
    main()
