"""Write a file so that no reader ever meets half of it, also where only a rename is atomic (pmxcfs)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from inventory.root import at

_OURS = re.compile(r"\.tmp\.gpuctl-([0-9]{1,10})")
"""Proxmox names its own FILE.tmp.PID; ours have another name, so that only ours are ever removed."""


def write(path: str, data: bytes, *, mode: int = 0o640) -> None:
    """Put `data` at `path`: a temporary file in the same folder, then a rename over it.

    No chmod and no chown: pmxcfs refuses both (pve-cluster, memdb). Raises `OSError`; then nothing is left behind.
    """
    target = at(path)
    temporary = f"{target}.tmp.gpuctl-{os.getpid()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, target)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
    sync_folder(path)


def sync_folder(path: str) -> None:
    """Make a rename in the folder of `path` last through a power cut."""
    parent = os.open(Path(at(path)).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def clear_leftovers(folder: str, name: str) -> None:
    """Remove temporary files for `name`, or a name that begins with it and a dot, whose gpuctl was killed."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(at(folder)):  # noqa: PTH208
            stem, mark, rest = entry.rpartition(".tmp.")
            match = _OURS.fullmatch(mark + rest)
            if match is None or not (stem == name or stem.startswith(f"{name}.")) or _alive(int(match[1])):
                continue
            with contextlib.suppress(OSError):
                os.unlink(at(f"{folder}/{entry}"))  # noqa: PTH108


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid > 0


@contextlib.contextmanager
def held(path: str, wait_s: float) -> Iterator[None]:
    """Hold the exclusive flock of the file at `path`, which is made; raises `TimeoutError` after `wait_s`."""
    lock = Path(at(path))
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise TimeoutError(f"{path} is locked by another process") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
