"""Progress of a stage as events: thread-safe, at most five a second."""

from __future__ import annotations

import threading
import time
from collections import deque

from inventory.machine import Emit

_EVERY_S = 0.2
_WINDOW_S = 3.0
"""The rate is the mean over so many seconds."""


class Meter:
    """Counts the bytes of all files of one stage and tells `emit` about them."""

    def __init__(self, emit: Emit, repo: str, total: int) -> None:
        self._emit = emit
        self._repo = repo
        self._total = total
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}
        self._moved = 0
        self._last = 0.0
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def set(self, file: str, done: int, *, moved: int = 0) -> None:
        """`file` stands at `done` bytes; `moved` of them just now (a restart makes `done` smaller)."""
        with self._lock:
            self._done[file] = done
            self._moved += moved
            now = time.monotonic()
            if now - self._last >= _EVERY_S:
                self._last = now
                self._say(file, now)

    def note(self, line: str) -> None:
        """Something the user should read."""
        with self._lock:
            self._emit({"type": "note", "what": "weights", "repo": self._repo, "line": line})

    def finish(self) -> None:
        """The last event: all done."""
        with self._lock:
            self._say("", time.monotonic())

    def _say(self, file: str, now: float) -> None:
        self._marks.append((now, self._moved))
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW_S:
            self._marks.popleft()
        then, before = self._marks[0]
        self._emit(
            {
                "type": "progress",
                "what": "weights",
                "repo": self._repo,
                "file": file,
                "done": sum(self._done.values()),
                "total": self._total,
                "rate_bps": round((self._moved - before) / max(now - then, 0.001)),
            }
        )
