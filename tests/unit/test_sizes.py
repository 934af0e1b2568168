"""The size ratchet: no file over 500 lines, no function over 100; exceptions may only shrink."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "treadle"
FILE_LINES = 500
FUNCTION_LINES = 100

# "path" or "path::function" -> lines it is allowed, the reason beside it. Entries shrink and go; none may be added.
BASELINE: dict[str, int] = {}


def sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Name of each file and function -> (its lines, its limit)."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        found[name] = (len(text.splitlines()), FILE_LINES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                found[f"{name}::{node.name}:{node.lineno}"] = (node.end_lineno - node.lineno + 1, FUNCTION_LINES)
    return found


def faults(root: Path, baseline: dict[str, int]) -> list[str]:
    found, used = [], set()
    for name, (lines, limit) in sizes(root).items():
        key = name.rsplit(":", 1)[0] if "::" in name else name
        if lines <= limit:
            continue
        used.add(key)
        if key not in baseline:
            found.append(f"{name} has {lines} lines; split it, the limit is {limit}")
        elif lines != baseline[key]:
            verb = "grew" if lines > baseline[key] else "shrank: lower its baseline"
            found.append(f"{name} {verb} ({baseline[key]} -> {lines})")
    return found + [
        f"{key} is within the limit now: drop it from the baseline" for key in sorted(baseline.keys() - used)
    ]


def test_files_and_functions_stay_small() -> None:
    assert faults(SOURCE, BASELINE) == []


def test_a_long_file_and_a_long_function_are_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "deep.py").write_text("def f():\n" + "    x = 1\n" * 100)
    assert faults(tmp_path, {}) == [
        "deep.py::f:1 has 101 lines; split it, the limit is 100",
        "long.py has 501 lines; split it, the limit is 500",
    ]


def test_the_baseline_may_only_shrink(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * 510)
    assert faults(tmp_path, {"long.py": 510}) == []
    assert faults(tmp_path, {"long.py": 505}) == ["long.py grew (505 -> 510)"]
    assert faults(tmp_path, {"long.py": 600}) == ["long.py shrank: lower its baseline (600 -> 510)"]
    assert faults(tmp_path, {"long.py": 510, "gone.py": 600}) == [
        "gone.py is within the limit now: drop it from the baseline"
    ]
