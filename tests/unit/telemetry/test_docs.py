"""docs/telemetry.md as written: its example runs, and its names are the real ones."""

from __future__ import annotations

import re
from pathlib import Path

from treadle.settings import load
from treadle.telemetry import names

PAGE = Path(__file__).parents[3] / "docs" / "telemetry.md"


def test_the_example_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = {"settings": load(environ={}, overrides={"data_dir": str(tmp_path)}).require()}
    exec(block, found)
    assert callable(found["app"])


def test_every_attribute_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    real = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    documented = set(re.findall(r"`([a-z_.]+)`", text))
    unsaid = {name for name in real if name not in documented and name.removeprefix("gen_ai.usage") not in documented}
    # Those of every span of a kind, and the settings of a model call beyond the one that stands for them.
    assert unsaid - {names.OPERATION} <= {name for name in real if name.startswith("gen_ai.request.")}
