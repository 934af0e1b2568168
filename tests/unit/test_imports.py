"""Imports point downward: the layer table as data, checked on the syntax tree, so that no import can hide.

Imports inside functions and under TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "treadle"

FOUNDATION = {"errors", "ids", "ports", "scope", "vocabularies", "wire"}
ADAPTERS = {"access", "backends", "models", "retrieval", "store", "telemetry", "tools"}
ENGINE = FOUNDATION | {"engine"}
USE_CASES = ENGINE | {"api"}
PUBLIC = {"__init__"}  # the version

# part of the package -> parts it may import; every part may import itself
LAYERS: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    **dict.fromkeys(FOUNDATION, FOUNDATION),
    "settings": FOUNDATION | {"plugins"},  # a plug-in's section is checked with the plug-in's own class
    **dict.fromkeys(ADAPTERS, FOUNDATION),
    "engine": FOUNDATION,
    "api": ENGINE,
    "http": USE_CASES | {"settings"},
    "jobs": USE_CASES,
    "client": USE_CASES | {"app", "settings"},  # binds the official client to the composed app
    "plugins": FOUNDATION,
    "cli": USE_CASES | {"app", "client", "settings", "plugins"},
}
EVERYTHING = {"app", "testing"}  # the composition root, and the kit that drives it

# Single modules that may be imported across the table: who -> module, each for a reason.
EXCEPTIONS: dict[str, set[str]] = {
    # The vendor table is plain data; a provider section is checked against it and completed from it.
    "settings": {"models.vendors"},
    # `go` looks for vendors' servers; `setup` installs weights before there is anything to compose.
    "cli": {"models.vendors", "models.weights"},
}


def part_of(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST, excepted: set[str]) -> set[str]:
    """The parts of the package that a module imports; a bare `import treadle` counts as its `__init__`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the layer they reach"
            module = node.module or ""
            names.update(f"{module}.{alias.name}" if module == "treadle" else module for alias in node.names)
    names -= {f"treadle.{module}" for module in excepted}
    parts = {name.split(".")[1] if "." in name else "__init__" for name in names if name.split(".")[0] == "treadle"}
    return {"__init__" if part.startswith("__") else part for part in parts}


def faults(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        part = part_of(path, root)
        if part in EVERYTHING:
            continue
        if part not in LAYERS:
            found.append(f"{path.relative_to(root)}: `{part}` has no row in the layer table")
            continue
        forbidden = (
            imported_parts(ast.parse(path.read_bytes()), EXCEPTIONS.get(part, set())) - LAYERS[part] - {part} - PUBLIC
        )
        found.extend(f"{path.relative_to(root)}: {part} may not import {name}" for name in sorted(forbidden))
    return found


def test_imports_point_downward() -> None:
    assert faults(SOURCE) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engine/loop.py", "from treadle.store.threads import Threads"),
        ("models/router.py", "def f() -> None:\n    import treadle.tools.function"),
        ("store/db.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from treadle import settings"),
        ("wire/items.py", "from treadle.engine import loop"),
        ("api/responses.py", "from treadle.http.errors import f"),
        ("newcomer/x.py", "x = 1"),
        ("settings/x.py", "from treadle.models.vendors import vendor\nfrom treadle.models.router import Router"),
        ("settings/x.py", "from treadle.models import vendors"),
    ],
)
def test_an_upward_or_sideways_import_is_found(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(text)
    assert len(faults(tmp_path)) == 1


def test_any_module_may_be_the_first_that_is_imported() -> None:
    """What can be imported only behind others works until somebody sorts the imports of a program anew."""
    code = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted(root.rglob("*.py")):
    part = path.relative_to(root).parts[0]
    if part in ("wire", "ports", "engine", "api", "errors.py", "ids.py", "scope.py"):
        name = ".".join(("treadle", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for loaded in [one for one in sys.modules if one.partition(".")[0] == "treadle"]:
            del sys.modules[loaded]
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(name, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(SOURCE)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == ""
