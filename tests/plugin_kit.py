"""Tiny distributions for tests: a module and the metadata that an installer would have written, on `sys.path`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

TOOL = """
import msgspec
from treadle.ports import ModelFunction, ToolOutcome


class {cls}:
    class Config(msgspec.Struct, forbid_unknown_fields=True):
        greeting: str = "hello"

    exclusive = False

    def __init__(self, config, services):
        self.config, self.services = config, services

    @classmethod
    async def open(cls, config, services):
        return cls(config, services)

    def declare(self, declaration):
        return [ModelFunction(name="greet")]

    async def run(self, name, arguments, scope):
        return ToolOutcome(self.config.greeting)
"""


def installed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    name: str = "acme-tools",
    version: str = "1.2.0",
    module: str = "acme_tools",
) -> Path:
    """Puts a distribution into a folder of its own and the folder on the path. A module that another test had under
    the same name is forgotten. The folder is for the `PYTHONPATH` of other processes."""
    site = folder / f"site-{name}"
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
    return site
