"""Processes of a lab, found by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

TOKEN: Final = "GPUCTL_LAB"
"""Variable in the environment of every process of a lab; its value is the lab's own token."""


def kill_marked(entry: str, *, limit_s: float = 10.0) -> int:
    """Kill every process of this user whose environment holds `NAME=value`; returns how many were found."""
    wanted, found, end = entry.encode(), set[int](), time.monotonic() + limit_s
    while time.monotonic() < end:
        alive = [pid for pid in marked(wanted) if pid != os.getpid()]
        if not alive:
            break
        found.update(alive)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return len(found)


def marked(entry: bytes) -> list[int]:
    """Processes of this user whose environment holds exactly `entry`; zombies have none and do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
