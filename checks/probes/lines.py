"""What the lines of a probe's file mean: readings, and how the probe ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer: `rc` 0 and a value, or the library's return code (an errno for files) and its text."""

    rc: int
    value: Any = None
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.rc == 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a probe ended."""

    how: str
    """`done`, `hung`, `crashed` or `not run`."""
    call: str = ""
    """The call that was under way."""
    gpu: int | None = None
    seconds: float = 0.0
    """How long that call had been under way, or the probe ran."""
    detail: str = ""
    """Exit status and last words, for a crash."""
    pid: int = 0
    """Process id of a probe that could not even be killed."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Everything one probe learnt."""

    readings: dict[tuple[str, int | None], Reading]
    endings: tuple[Ending, ...]

    def get(self, key: str, gpu: int | None = None) -> Reading | None:
        """The reading, or None when the probe never got there."""
        return self.readings.get((key, gpu))

    def value(self, key: str, gpu: int | None = None, otherwise: Any = None) -> Any:
        """The value of a successful reading, else `otherwise`."""
        reading = self.readings.get((key, gpu))
        return reading.value if reading is not None and reading.ok else otherwise

    @property
    def gpus(self) -> tuple[int, ...]:
        """Every GPU index that has a reading."""
        return tuple(sorted({gpu for _, gpu in self.readings if gpu is not None}))

    @property
    def trouble(self) -> tuple[Ending, ...]:
        """The endings that were not orderly."""
        return tuple(ending for ending in self.endings if ending.how != "done")


NOTHING = Reads({}, (Ending("not run"),))


def parse(data: bytes) -> tuple[dict[tuple[str, int | None], Reading], tuple[str, int | None], bool]:
    """(readings, the call under way, whether the probe finished). A torn last line is left out."""
    readings: dict[tuple[str, int | None], Reading] = {}
    under_way: tuple[str, int | None] = ("start", None)
    finished = False
    for line in data.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict):
            continue
        if "call" in entry:
            under_way = (str(entry["call"]), entry.get("gpu"))
        elif "key" in entry:
            readings[(str(entry["key"]), entry.get("gpu"))] = Reading(
                int(entry.get("rc", 0)), entry.get("value"), str(entry.get("text", ""))
            )
        finished = finished or bool(entry.get("done"))
    return readings, under_way, finished
