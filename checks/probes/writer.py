"""The file a probe writes: one JSON line before each risky call and one after, so a hang names itself.

Apart from `lines`, because a probe starts faster without what reading needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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
        self._line({"done": True})


Body = Callable[[Writer, tuple[str, ...]], None]


def run(body: Body, argv: list[str]) -> int:
    """The frame of every probe's `main`: argv is the output file, then the probe's own words."""
    writer = Writer(argv[0])
    body(writer, tuple(argv[1:]))
    writer.done()
    return 0
