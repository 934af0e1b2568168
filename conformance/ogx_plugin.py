"""A pytest plug-in for OGX's tests of vector stores: they know their own indexes by name and skip everything else.

The tests run once, under the name of OGX's default index, whatever index the server has.
"""

from __future__ import annotations

import re
import sys
from typing import Any

KNOWN = "sqlite-vec"
"""An index of OGX that supports all that is tested."""

_PARAMETER = re.compile(r"vector_io=([a-z-]+?)-(?:emb=|openai/|local/|txt=|None)")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keeps one of the parameters, and lets nothing be skipped for the name of the index."""
    others = [item for item in items if (found := _PARAMETER.search(item.name)) and found.group(1) != KNOWN]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    for module in list(sys.modules.values()):
        for name in dir(module) if getattr(module, "__name__", "").startswith("tests.integration") else ():
            if name.startswith("skip_if_provider_doesnt_support"):
                setattr(module, name, lambda *_, **__: None)
            elif name == "get_vector_io_provider_ids":
                setattr(module, name, lambda _: [KNOWN])
