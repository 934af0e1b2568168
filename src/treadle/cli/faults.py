"""Prints what is wrong with a configuration."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from treadle.settings import Fault


def report(faults: Sequence[Fault]) -> int:
    """One line a fault, on standard error; the exit code, which is 1 if there are any."""
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def warn(notes: Sequence[str]) -> None:
    """One line a note, on standard error: what keeps nothing from working."""
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
