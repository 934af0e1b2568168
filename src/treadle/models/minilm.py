"""The built-in embedding model: all-MiniLM-L6-v2 in 8 bits on ONNX Runtime. 384 dimensions, English."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from treadle.errors import InvalidRequest
from treadle.models.weights import MINILM, WeightStore, require_module, vocabulary
from treadle.ports import Embedding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]

MODEL = "all-minilm-l6-v2"
"""The id of the built-in embedding model."""

DIMENSIONS = 384
MAX_TOKENS = 512
"""Where texts are cut, the two frame tokens included: the positions the network has."""

_MAX_CHARACTERS = 65_536
"""Texts are cut here before they are split into tokens, so that a huge one costs no more than a long one."""

_BATCH_TOKENS = 512
"""Padded tokens of one run. Larger runs were slower on a CPU and took up to 1 GB."""


class _Session(Protocol):
    """The part of onnxruntime.InferenceSession used here."""

    def run(self, outputs: list[str], inputs: dict[str, Ints]) -> list[Floats]: ...


class MiniLm:
    """An Embedder. The model is loaded at the first use (0.5 s, about 250 MB) and runs in one thread of its own.

    Texts beyond 512 tokens (about 380 English words) are cut; what follows does not count towards the vector.
    Needs the extra `knowledge`; without it, or without the weights, `embed` raises ModelNotInstalled.
    """

    dimensions = DIMENSIONS

    def __init__(self, store: WeightStore, *, path: Path | None = None, threads: int = 2) -> None:
        self._store = store
        self._path = path
        self._threads = threads
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="minilm")
        self._model: tuple[Tokenizer, _Session] | None = None

    async def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> Embedding:
        """See the port. Fewer `dimensions` are the first ones, brought back to unit length.

        A cancelled call ends after the batch that is running; concurrent calls take turns batch by batch.
        """
        size = DIMENSIONS if dimensions is None else dimensions
        if not 1 <= size <= DIMENSIONS:
            raise InvalidRequest(
                f"This embedding model gives 1 to {DIMENSIONS} dimensions, not {size}.", param="dimensions"
            )
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(self._worker, self._split, texts)
        vectors: list[list[float]] = [[]] * len(tokens)
        for batch in _batches(tokens):
            found = await loop.run_in_executor(self._worker, self._encode, [tokens[i] for i in batch], size)
            for i, vector in zip(batch, found, strict=True):
                vectors[i] = vector
        return Embedding(vectors=vectors, tokens=sum(map(len, tokens)))

    async def close(self) -> None:
        """Frees the model and its thread, after a batch that is running. Further calls of `embed` fail."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._model = None

    def _loaded(self) -> tuple[Tokenizer, _Session]:
        # Only ever called in the one worker thread, so no lock.
        if self._model is None:
            for module in ("numpy", "onnxruntime", "tokenizers"):
                require_module(module, "knowledge")
            path = self._store.find(MINILM, self._path)
            self._model = _splitter(), _session(path, self._threads)
        return self._model

    def _split(self, texts: Sequence[str]) -> list[list[int]]:
        splitter, _ = self._loaded()
        # A lone surrogate is no Unicode text for the tokenizer; it becomes a question mark.
        clean = [text[:_MAX_CHARACTERS].encode("utf-8", "replace").decode() for text in texts]
        return [words.ids for words in splitter.encode_batch_fast(clean)]

    def _encode(self, tokens: list[list[int]], size: int) -> list[list[float]]:
        import numpy as np

        _, session = self._loaded()
        width = max(map(len, tokens))
        ids = np.zeros((len(tokens), width), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = session.run(["last_hidden_state"], inputs)[0]
        # The mean over a text's own tokens; its length does not matter, since it is normalised away.
        pooled = np.einsum("btd,bt->bd", states, mask.astype(np.float32))[:, :size]
        lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
        unit: list[list[float]] = (pooled / np.maximum(lengths, 1e-12)).tolist()
        return unit


def _batches(tokens: list[list[int]]) -> Iterator[list[int]]:
    """Indexes of texts to run together: of similar length, so that little is padded, and bounded in all."""
    batch: list[int] = []
    for index in sorted(range(len(tokens)), key=lambda i: len(tokens[i])):
        if batch and len(tokens[index]) * (len(batch) + 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _splitter() -> Tokenizer:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    words = vocabulary("bert_uncased.txt").decode().splitlines()
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))  # noqa: S106 - a word of the vocabulary, no password
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    frame = [(mark, ids[mark]) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _session(path: Path, threads: int) -> _Session:
    # By name, because onnxruntime carries no types.
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Without these, memory once used is never given back and idle threads spin on the event loop's cores.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session: _Session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session
