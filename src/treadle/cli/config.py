"""`treadle config`: the settings that are in force."""

from __future__ import annotations

from treadle.cli.faults import report, warn
from treadle.settings import load
from treadle.settings.explain import explain


def show(config: str | None, *, explained: bool) -> int:
    """Prints every setting; with `explained`, also where it came from and what it means."""
    loaded = load(config)
    print(f"# file: {loaded.file or 'none'}")
    for line in explain(loaded):
        if explained:
            print(f"{line.path} = {line.value}\n    from: {line.origin}\n    {line.meaning}")
        else:
            print(f"{line.path} = {line.value}")
    for name in loaded.unused if explained else []:
        print(f"# {name} is set but is not a setting of Treadle")
    warn(loaded.notes)
    return report(loaded.faults)
