"""The built-in embedding model: all-MiniLM-L6-v2 in 8 bits on ONNX Runtime. 384 dimensions, English."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from treadle.errors import InvalidRequest
from treadle.models.weights import MINILM, ModelNotInstalled, WeightStore, require_module
from treadle.ports import Embedding
from treadle.vocabularies import vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]

MODEL = "all-minilm-l6-v2"
"""The id of the built-in embedding model."""

DIMENSIONS = 384
MAX_TOKENS = 8_192
"""Where texts are cut, as OpenAI's embedding models do."""

_WINDOW = 254
"""Tokens the network reads at a time, besides its two frame tokens: it was tuned on texts of up to 256."""

_MAX_CHARACTERS = 8 * MAX_TOKENS
"""Texts are cut here before they are split into tokens, so that a huge one costs no more than a long one."""

_BATCH_TOKENS = 512
"""Padded tokens of one run. Larger runs were slower on a CPU and took up to 1 GB."""

_START, _END = 101, 102
"""The frame tokens [CLS] and [SEP] in BERT's vocabulary."""


class _Session(Protocol):
    """The part of onnxruntime.InferenceSession used here."""

    def run(self, outputs: list[str], inputs: dict[str, Ints]) -> list[Floats]: ...


class MiniLm:
    """An Embedder. The model is loaded at the first use (0.5 s, about 250 MB) and runs in one thread of its own.

    A text of up to 254 tokens (about 190 English words) gets the vector that the model's authors define. A longer
    one is read in windows of equal length, whose mean is its vector, so that all of it counts; beyond 8,192 tokens
    it is cut. (On documents of 870 tokens that found a passage of the second half in the first five of 64 in 51 %
    of cases, cutting at 512 tokens in 22 %, and it takes no longer.)

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
        loop, work, vectors = asyncio.get_running_loop(), _Work(texts, size), None
        while vectors is None:
            vectors = await loop.run_in_executor(self._worker, self._step, work)
        return Embedding(vectors=vectors, tokens=work.tokens)

    async def close(self) -> None:
        """Frees the model and its thread, after a batch that is running. Further calls of `embed` fail."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._model = None

    def installed(self) -> bool:
        """Whether it could be loaded now. Reads files."""
        try:
            self._weights()
        except ModelNotInstalled:
            return False
        return True

    def _weights(self) -> Path:
        for module in ("numpy", "onnxruntime", "tokenizers"):
            require_module(module, "knowledge")
        return self._store.find(MINILM, self._path)

    def _loaded(self) -> tuple[Tokenizer, _Session]:
        # Only ever called in the one worker thread, so no lock.
        if self._model is None:
            path = self._weights()
            self._model = _splitter(), _session(path, self._threads)
        return self._model

    def _step(self, work: _Work) -> list[list[float]] | None:
        """Runs one batch; the vectors after the last. A question is done in one step, because each change between
        threads costs as much as splitting it into tokens."""
        if work.batches is None:
            work.windows = self._read(work.texts)
            work.batches = _batches([ids for _, ids in work.windows])
        batch = work.batches.pop(0) if work.batches else []
        found = self._run([work.windows[i][1] for i in batch]) if batch else []
        for i, vector in zip(batch, found, strict=True):
            text = work.windows[i][0]
            before = work.sums[text]
            work.sums[text] = vector if before is None else before + vector
        return None if work.batches else _units(work.sums, work.size)

    def _read(self, texts: Sequence[str]) -> list[tuple[int, list[int]]]:
        """The windows to run: the index of the text, and the window's tokens in their frame."""
        splitter, _ = self._loaded()
        # A lone surrogate is no Unicode text for the tokenizer; it becomes a question mark.
        clean = [text[:_MAX_CHARACTERS].encode("utf-8", "replace").decode() for text in texts]
        words = (found.ids[:MAX_TOKENS] for found in splitter.encode_batch_fast(clean, add_special_tokens=False))
        return [(i, [_START, *window, _END]) for i, ids in enumerate(words) for window in _windows(ids)]

    def _run(self, windows: list[list[int]]) -> list[Floats]:
        """The sum of the network's answers to a window's tokens, for each window."""
        import numpy as np

        _, session = self._loaded()
        ids = np.zeros((len(windows), max(map(len, windows))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, window in enumerate(windows):
            ids[row, : len(window)] = window
            mask[row, : len(window)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = session.run(["last_hidden_state"], inputs)[0]
        return list(np.einsum("btd,bt->bd", states, mask.astype(np.float32)))


class _Work:
    """Texts on their way to vectors of `size` numbers. `sums`: by text, over the tokens of the windows that were run.
    `batches`: those still to be run; None before the texts were read."""

    def __init__(self, texts: Sequence[str], size: int) -> None:
        self.texts, self.size = texts, size
        self.windows: list[tuple[int, list[int]]] = []
        self.batches: list[list[int]] | None = None
        self.sums: list[Floats | None] = [None] * len(texts)

    @property
    def tokens(self) -> int:
        return sum(len(ids) for _, ids in self.windows)


def _windows(ids: list[int]) -> list[list[int]]:
    """`ids` in as few pieces of at most `_WINDOW` as possible, of equal length; one empty piece for no ids."""
    pieces = max(1, -(-len(ids) // _WINDOW))
    length = max(1, -(-len(ids) // pieces))
    return [ids[i : i + length] for i in range(0, len(ids), length)] or [[]]


def _units(sums: list[Floats | None], size: int) -> list[list[float]]:
    """Vectors of unit length from sums over tokens: dividing by their number first would change nothing."""
    import numpy as np

    if not sums:
        return []
    rows = np.stack([vector for vector in sums if vector is not None])[:, :size]
    unit: list[list[float]] = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).tolist()
    return unit


def _batches(tokens: list[list[int]]) -> list[list[int]]:
    """Indexes of windows to run together: of similar length, so that little is padded, and bounded in all."""
    batches: list[list[int]] = []
    for index in sorted(range(len(tokens)), key=lambda i: len(tokens[i])):
        if not batches or len(tokens[index]) * (len(batches[-1]) + 1) > _BATCH_TOKENS:
            batches.append([])
        batches[-1].append(index)
    return batches


def _splitter() -> Tokenizer:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    words = vocabulary("bert_uncased.txt").decode().splitlines()
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))  # noqa: S106 - a word of the vocabulary, no password
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def _session(path: Path, threads: int) -> _Session:
    # NumPy first. Onnxruntime begins with a module deep inside of it, and where another thread (the index's) is just
    # importing NumPy from its top, each would wait for the other; Python then lets one go on with half a NumPy.
    importlib.import_module("numpy")
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
