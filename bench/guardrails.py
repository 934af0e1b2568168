"""What guardrails with rules cost for each streamed token, as CPU of the server's process.

`run.py` calls this; it also runs alone:

    python bench/guardrails.py
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import Figure
from load import drive
from processes import Process, server, upstream

MODEL = "bench"
TOKENS, TOGETHER = 500, 16
RULES = {
    "TREADLE_GUARDRAILS__WORDS": "mandrake,dark art",
    "TREADLE_GUARDRAILS__SECRETS": "true",
    "TREADLE_GUARDRAILS__PERSONAL_DATA": "true",
}


async def _cost(process: Process, port: int, count: int) -> float:
    """Microseconds of CPU for each token."""
    before = process.cpu_ms()
    await drive(port, {"model": MODEL, "input": f"!n={TOKENS}", "stream": True}, count=count, together=TOGETHER)
    return (process.cpu_ms() - before) * 1000 / count / TOKENS


async def _measure(quick: bool) -> tuple[list[Figure], list[str]]:
    count, rounds = (32, 1) if quick else (64, 5)
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as two,
        upstream() as (_, url),
        server(url, Path(one)) as plain,
        server(url, Path(two), RULES) as guarded,
    ):
        for process, port in (plain, guarded):
            await _cost(process, port, TOGETHER)
        ratios, costs = [], []
        for _ in range(rounds):
            without, with_rules = await _cost(*plain, count), await _cost(*guarded, count)
            ratios.append(with_rules / without)
            costs.append(f"{without:.1f} and {with_rules:.1f}")
    notes = [f"guardrails: us of CPU per token without and with them: {', '.join(costs)}"]
    return [Figure("CPU per guarded token / plain", statistics.median(ratios), 1.25, "x")], notes


def measure(quick: bool) -> tuple[list[Figure], list[str]]:
    return asyncio.run(_measure(quick))


if __name__ == "__main__":
    figures, notes = measure(quick=False)
    for figure in figures:
        print(f"{figure.name:38} {figure.value:8.2f} {figure.unit:2}  budget {figure.budget:g}")
    print(*notes, sep="\n")
