"""Run a program that only looks, within a limit: its words, or nothing."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from typing import Final

PROGRAM_LIMIT_S: Final = 3.0
LARGEST: Final = 1 << 20
"""Most bytes taken of its output."""


def output(argv: tuple[str, ...], limit_s: float = PROGRAM_LIMIT_S) -> tuple[int, str] | None:
    """Exit status and stdout; None when it isn't installed, can't be run or was killed at the limit."""
    path = shutil.which(argv[0])
    if path is None:
        return None
    try:
        child = subprocess.Popen(
            (path, *argv[1:]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "LANGUAGE": ""},
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        end = time.monotonic() + limit_s
        data = _until(child, end)
        if data is None:
            return None
        return child.wait(max(0.0, end - time.monotonic())), data.decode("latin-1")
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(child)


def _until(child: subprocess.Popen[bytes], end: float) -> bytes | None:
    """Its output up to the end of file; None when that does not come in time or it talks too much."""
    assert child.stdout is not None
    poll = select.poll()  # select() refuses descriptors from 1024 on
    poll.register(child.stdout, select.POLLIN)
    parts: list[bytes] = []
    size = 0
    while size <= LARGEST:
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            return None
        part = os.read(child.stdout.fileno(), 65536)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.stdout is not None:
        child.stdout.close()
    if child.returncode is None:
        # Its own session: what it started ends with it. One that is stuck in the kernel is left behind.
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.5)


def installed(name: str) -> bool:
    """Whether a program of this name is on the PATH."""
    return shutil.which(name) is not None
