"""The built-in embedding model, with its real weights."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.errors import InvalidRequest
from treadle.models.minilm import MiniLm
from treadle.models.weights import MINILM, ModelNotInstalled, WeightStore

MISSING = [name for name in ("numpy", "onnxruntime", "tokenizers") if importlib.util.find_spec(name) is None]
if importlib.util.find_spec(MINILM.file.split("/", maxsplit=1)[0]) is None:
    MISSING.append(MINILM.package)
needs_model = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (run `treadle setup`)")


@pytest.fixture
async def minilm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MiniLm]:
    # One folder for all tests, so that the weights are hashed once.
    embedder = MiniLm(WeightStore(tmp_path_factory.getbasetemp() / "minilm"))
    yield embedder
    await embedder.close()


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


@needs_model
async def test_vectors_have_unit_length_and_mean_something(minilm: MiniLm) -> None:
    found = await minilm.embed(["How do I bake bread?", "A recipe for a loaf", "The stock market fell today"])
    bread, loaf, stocks = found.vectors
    assert [len(v) for v in found.vectors] == [384] * 3
    assert all(math.isclose(math.hypot(*v), 1, abs_tol=1e-5) for v in found.vectors)
    assert cosine(bread, loaf) > cosine(bread, stocks) + 0.3


@needs_model
async def test_similarities_are_those_of_the_full_precision_model(minilm: MiniLm) -> None:
    # The four cosines that the model's documentation gives for this pair of lists (fp32).
    found = await minilm.embed(["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."])
    sun, sunny, stadium = found.vectors
    assert cosine(sun, sunny) == pytest.approx(0.6660, abs=0.02)
    assert cosine(sun, stadium) == pytest.approx(0.1046, abs=0.02)
    assert cosine(sunny, stadium) == pytest.approx(0.1411, abs=0.02)


@needs_model
async def test_a_batch_keeps_the_order_of_its_texts(minilm: MiniLm) -> None:
    topics = ["bread", "planets", "violins", "taxes", "whales", "chess"]
    texts = [" ".join([topic] * (1 + 37 * i % 90)) for i, topic in enumerate(topics)]
    together = (await minilm.embed(texts)).vectors
    for text, vector in zip(texts, together, strict=True):
        alone = (await minilm.embed([text])).vectors[0]
        assert cosine(alone, vector) > 0.98


@needs_model
async def test_tokens_are_those_the_model_read(minilm: MiniLm) -> None:
    # Two words, and the two frame tokens of each text.
    assert (await minilm.embed(["hello world"])).tokens == 4
    assert (await minilm.embed(["hello world", ""])).tokens == 6


@needs_model
async def test_accents_and_case_are_folded_as_the_model_expects(minilm: MiniLm) -> None:
    found = await minilm.embed(["Café MÜNCHEN", "cafe munchen"])
    assert cosine(*found.vectors) > 0.9999


@needs_model
async def test_fewer_dimensions_are_the_first_ones_at_unit_length(minilm: MiniLm) -> None:
    whole = (await minilm.embed(["a short text"])).vectors[0]
    part = (await minilm.embed(["a short text"], dimensions=64)).vectors[0]
    assert len(part) == 64
    assert math.isclose(math.hypot(*part), 1, abs_tol=1e-5)
    assert cosine(whole[:64], part) > 0.9999


@pytest.mark.parametrize("size", [0, -1, 385])
async def test_a_size_it_cannot_give_is_refused_by_name(minilm: MiniLm, size: int) -> None:
    with pytest.raises(InvalidRequest, match="1 to 384") as caught:
        await minilm.embed(["text"], dimensions=size)
    assert caught.value.param == "dimensions"


@needs_model
async def test_every_part_of_a_long_text_counts(minilm: MiniLm) -> None:
    filler = "The committee discussed the budget of the coming year. " * 40
    plain, late, query = (await minilm.embed([filler, filler + "Whales are mammals. " * 40, "sea mammals"])).vectors
    assert cosine(late, query) > cosine(plain, query) + 0.1


@needs_model
async def test_a_text_one_window_long_is_read_in_one(minilm: MiniLm) -> None:
    assert (await minilm.embed(["word " * 254])).tokens == 256
    assert (await minilm.embed(["word " * 255])).tokens == 259


@needs_model
async def test_a_very_long_text_is_cut_at_8192_tokens(minilm: MiniLm) -> None:
    found = await minilm.embed(["word " * 9_000])
    assert found.tokens == 8_192 + 2 * 33


@needs_model
async def test_no_texts_give_no_vectors(minilm: MiniLm) -> None:
    assert (await minilm.embed([])).vectors == []


@needs_model
async def test_a_huge_text_costs_no_more_than_a_long_one(minilm: MiniLm) -> None:
    await minilm.embed(["warm"])
    start = time.process_time()
    assert (await minilm.embed(["word " * 2_000_000])).tokens == 8_192 + 2 * 33
    assert time.process_time() - start < 15


@needs_model
@pytest.mark.parametrize("text", ["", "   ", "\x00", "a\ud800b", "x" * 300, "🦜"])
async def test_odd_texts_still_give_a_vector(minilm: MiniLm, text: str) -> None:
    (vector,) = (await minilm.embed([text])).vectors
    assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-5)


@needs_model
async def test_the_event_loop_runs_on_while_texts_are_embedded(minilm: MiniLm) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await minilm.embed(["some words to embed " * 20] * 40)
    ticking.cancel()
    assert ticks > 20


@needs_model
async def test_a_cancelled_call_does_not_hold_up_the_next(minilm: MiniLm) -> None:
    await minilm.embed(["warm"])
    long = asyncio.create_task(minilm.embed(["some words to embed " * 60] * 500))
    await asyncio.sleep(0.3)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    # All of it takes over half a minute.
    async with asyncio.timeout(8):
        await minilm.embed(["short"])


@needs_model
async def test_calls_at_once_take_turns(minilm: MiniLm) -> None:
    await minilm.embed(["warm"])
    long = asyncio.create_task(minilm.embed(["some words to embed " * 60] * 60))
    await asyncio.sleep(0.05)
    await minilm.embed(["short"])
    assert not long.done()
    assert len((await long).vectors) == 60


@needs_model
async def test_weights_named_by_the_operator_must_exist(tmp_path: Path) -> None:
    embedder = MiniLm(WeightStore(tmp_path), path=tmp_path / "none.onnx")
    with pytest.raises(ModelNotInstalled, match=r"none\.onnx"):
        await embedder.embed(["text"])


def test_importing_the_module_loads_no_numeric_library() -> None:
    program = (
        "import sys, treadle.models.minilm; sys.exit(bool({'numpy', 'onnxruntime', 'tokenizers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=20).returncode == 0


@needs_model
def test_numpy_is_imported_from_its_top_before_onnxruntime_imports_its_inside(tmp_path: Path) -> None:
    """Another thread may be importing it, and two imports that meet half way end with an ImportError."""
    program = """
import asyncio, sys
from pathlib import Path

asked = []

class Watch:
    def find_spec(self, name, path=None, target=None):
        asked.append(name)

sys.meta_path.insert(0, Watch())
from treadle.models.minilm import MiniLm
from treadle.models.weights import WeightStore
assert "numpy" not in asked
asyncio.run(MiniLm(WeightStore(Path(sys.argv[1]))).embed(["text"]))
assert asked.index("numpy") < asked.index("onnxruntime"), "onnxruntime came first"
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=30)
