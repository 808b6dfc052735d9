"""Read the Prometheus text format: sample name -> ((labels, value), ...)."""

from __future__ import annotations

import re
from collections.abc import Mapping

Samples = Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

_LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')


def parse(text: str) -> Samples:
    """All samples of an exposition; comments and lines that are none are left out, never an exception."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if line.startswith("#") or match is None:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        found.setdefault(name, []).append((dict(_LABEL.findall(labels or "")), number))
    return {name: tuple(samples) for name, samples in found.items()}


def total(samples: Samples, name: str) -> float | None:
    """The sum over all label sets of `name`; None when it does not occur."""
    rows = samples.get(name)
    return sum(value for _, value in rows) if rows else None


def by_label(samples: Samples, name: str, label: str) -> tuple[float, ...]:
    """Values of `name` ordered by an integer label (for example `position`), summed over the others."""
    sums: dict[int, float] = {}
    for labels, value in samples.get(name, ()):
        if labels.get(label, "").isdigit():
            sums[int(labels[label])] = sums.get(int(labels[label]), 0.0) + value
    return tuple(sums[position] for position in sorted(sums))
