"""The diary of every run: what was observed, planned, applied and verified, with times, one JSON object a line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuctl import dirs

KEEP: Final = 50
"""Journals kept per container; older ones are removed."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the newest earlier journal of a container says."""

    path: Path
    finished: bool
    stage: str
    """The last stage it had begun."""


class Journal:
    """An append-only file; each line is on disk before the next thing happens."""

    def __init__(self, path: Path, *, start: Mapping[str, Any]) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._began = time.monotonic()
        self.write("start", **start)

    def write(self, what: str, **fields: Any) -> None:
        """Append one entry: wall-clock time in seconds, seconds since the start, then the fields."""
        entry = {"t": round(time.time(), 3), "s": round(time.monotonic() - self._began, 3), "what": what, **fields}
        os.write(self._fd, json.dumps(entry, separators=(",", ":"), default=str).encode() + b"\n")

    def end(self, outcome: str, **fields: Any) -> None:
        """The last entry; a journal without it belongs to a run that was killed."""
        self.write("end", outcome=outcome, **fields)
        os.fsync(self._fd)
        os.close(self._fd)


def folder(name: str) -> Path:
    """Where the journals of a container are."""
    path = dirs.state() / "journal" / name
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def open_journal(name: str, **start: Any) -> Journal:
    """Begin a journal for a run on container `name`, and drop the oldest beyond `KEEP`."""
    where = folder(name)
    stamp = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    for old in sorted(where.glob("*.jsonl"))[: -KEEP or None]:
        old.unlink(missing_ok=True)
    return Journal(where / f"{stamp}-{os.getpid()}.jsonl", start={"container": name, **start})


def earlier(name: str) -> Earlier | None:
    """The newest journal of a container, read tolerantly: a killed run may have left half a line."""
    newest = max(folder(name).glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return None
    finished, stage = False, ""
    for line in newest.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        finished = finished or entry.get("what") == "end"
        if entry.get("phase") == "started":
            stage = str(entry.get("stage", ""))
    return Earlier(newest, finished, stage)
