"""What a benchmark gives: a value and the budget that it must stay under."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured value and the budget it must stay under."""

    name: str
    value: float
    budget: float
    unit: str
