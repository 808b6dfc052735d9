"""The file a probe writes: one JSON line before each risky call and one after, so a hang names itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Writer:
    """Appends lines with one write(2) each: what was learnt stays in the file however the process ends."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _line(self, value: dict[str, Any]) -> None:
        # Bytes and other foreign values of a broken library become text: a probe must not die of its own output.
        os.write(self._fd, json.dumps(value, default=str).encode() + b"\n")

    def calling(self, call: str, gpu: int | None = None) -> None:
        """The next thing done is this call."""
        self._line({"call": call, "gpu": gpu})

    def result(self, key: str, gpu: int | None = None, *, value: Any = None, rc: int = 0, text: str = "") -> None:
        """What a call gave: a value, or a return code other than 0 with its text."""
        self._line({"key": key, "gpu": gpu, "rc": rc, "value": value, "text": text})

    def done(self) -> None:
        """Everything was asked; without this line the probe did not come to its end."""
        self._line({"done": True, "at": time.monotonic()})


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


Body = Callable[[Writer, tuple[str, ...]], None]


def run(body: Body, argv: list[str]) -> int:
    """The frame of every probe's `main`: argv is the output file, then the probe's own words."""
    writer = Writer(argv[0])
    body(writer, tuple(argv[1:]))
    writer.done()
    return 0
