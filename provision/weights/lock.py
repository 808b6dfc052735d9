"""One stage per target at a time: a kernel lock that dies with its holder, and says who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inventory.errors import Refused
from inventory.root import at

POLL_S = 0.2


def _boot_id() -> str:
    with suppress(OSError):
        return Path(at("/proc/sys/kernel/random/boot_id")).read_text().strip()
    return ""


def _holder(fd: int) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(os.pread(fd, 4096, 0))
        elsewhere = data["boot_id"] != _boot_id()
        return f"pid {int(data['pid'])}" + (" of another boot or machine" if elsewhere else "")
    return "an unknown process"


@contextmanager
def hold(path: Path, note: Callable[[str], None], *, wait_s: float) -> Iterator[None]:
    """Hold the lock file `path` while the block runs.

    flock, because the kernel releases it when the holder dies, however it dies. The file stays: removing
    it would let two holders lock two files of one name. Raises `Refused` when it is still held after
    `wait_s` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = time.monotonic() + wait_s
        said = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _holder(fd)
            if not said:
                note(f"waiting for {holder}, which stages into the same folder (at most {wait_s:.0f} s)")
                said = True
            if time.monotonic() >= end:
                raise Refused(
                    f"{holder} still holds {path} after {wait_s:.0f} s",
                    hint="let it finish or stop it, then run again",
                )
            time.sleep(POLL_S)
        os.ftruncate(fd, 0)
        mine = {"pid": os.getpid(), "boot_id": _boot_id(), "since_s": time.time()}
        os.pwrite(fd, json.dumps(mine).encode(), 0)
        yield
    finally:
        os.close(fd)
