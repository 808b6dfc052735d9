"""Median, spread and a bootstrap confidence interval of few numbers."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Spread:
    """A number of measured values in their own unit."""

    count: int
    median: float
    low: float
    """The least value."""
    high: float
    """The greatest value."""
    ci_low: float
    """Lower end of the 95 % bootstrap interval of the median; equals `low` for fewer than 3 values."""
    ci_high: float

    @property
    def width_pct(self) -> float:
        """Width of the interval in percent of the median."""
        return 100.0 * (self.ci_high - self.ci_low) / self.median if self.median else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})


def bootstrap(values: Sequence[float], *, rounds: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the median. The same values give the same interval (a fixed seed)."""
    if len(values) < 3:
        return min(values), max(values)
    draw = random.Random(1)  # noqa: S311
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(rounds))
    cut = (1.0 - level) / 2.0
    return medians[int(cut * rounds)], medians[min(rounds - 1, int((1.0 - cut) * rounds))]


def spread(values: Sequence[float]) -> Spread | None:
    """None for no values: a median of nothing is not zero."""
    if not values:
        return None
    ci_low, ci_high = bootstrap(values)
    return Spread(len(values), statistics.median(values), min(values), max(values), ci_low, ci_high)


def rank(values: Sequence[float], share: float) -> float:
    """The percentile by nearest rank: always one of the values. `share` is 0.99 for the 99th; `values` not empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
