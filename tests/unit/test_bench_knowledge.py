"""What the speed benches of knowledge count: their corpora, their runs, and the table that they print."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import ingestion
import search_http
import side_by_side
import upstream
from processes import Family


def test_scripted_embeddings_are_unit_vectors_that_share_what_texts_share() -> None:
    first, alike, other = map(
        upstream.embedding, ("harbour lantern compass", "compass of a lantern", "entirely different subject")
    )
    assert [len(first), math.hypot(*first)] == [upstream.DIMENSIONS, pytest.approx(1)]
    assert _product(first, alike) > 0.5 > abs(_product(first, other))
    assert first == upstream.embedding("Lantern, harbour; compass!")
    assert math.hypot(*upstream.embedding("a")) == pytest.approx(1)


def _product(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_both_servers_get_the_same_files_and_questions_on_every_machine() -> None:
    made, again = side_by_side.corpus(20, 15), side_by_side.corpus(20, 15)
    assert made == again
    assert len({document.name for document in made.documents}) == 20
    assert len(made.questions) == 15
    texts = {document.name: set(document.text.lower().replace(".", "").split()) for document in made.documents}
    for question in made.questions:
        assert len(texts[question.file] & {*question.text.split()}) >= 5


def test_a_table_has_a_column_for_each_server_and_a_dash_for_what_it_does_not_offer() -> None:
    whole = side_by_side.Row(
        "Treadle", 1.0, 2.0, 3.0, 4, {"vector": 5.0}, {"vector": 6.0}, {"vector": 7.0}, {"vector": 0.5}
    )
    lines = side_by_side.shown([whole, side_by_side.Row("OGX")]).splitlines()
    assert lines[0] == "| | Treadle | OGX |"
    assert all(line.count("|") == 4 for line in lines)
    assert "| search by vector, p50 / p95, ms | 5.0 / 6.0 | – / – |" in lines
    assert "| upload and indexing, s | 1.0 | 0.0 |" in lines


def test_nearest_chunks_are_those_of_a_plain_product_within_the_filter() -> None:
    corpus = search_http.Corpus(chunks=600, files=60, words=10)
    [question] = corpus.questions(1)
    wanted = upstream.embedding(question)
    scores = {
        f"file-{row // 10:06}/{row % 10}": float(corpus.vectors[row] @ wanted)
        for row in range(600)
        if corpus.group(row // 10) < 15
    }
    assert corpus.nearest(question, 15) == set(sorted(scores, key=lambda place: -scores[place])[: search_http.LIMIT])


def test_the_bare_model_runs_windows_of_similar_length_within_a_bound() -> None:
    windows = [[1] * length for length in sorted((3, 250, 254, 10, 120, 8, 200))]
    runs = list(ingestion._runs(windows))
    assert [window for run in runs for window in run] == windows
    assert all(len(run) == 1 or (len(run[-1]) + 2) * len(run) <= ingestion.RUN_TOKENS for run in runs)
    assert len(runs) < len(windows)


@pytest.mark.skipif(not Path(f"/proc/{os.getpid()}/smaps_rollup").exists(), reason="needs /proc of Linux")
def test_what_children_spend_counts_after_they_have_ended() -> None:
    family = Family(os.getpid())
    before = family.cpu_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True, timeout=20)
    assert family.cpu_seconds() - before >= 0.29
    assert family.memory_mb() > 5
