"""One changing run per container at a time: a file lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpuctl import dirs
from inventory.errors import Refused


@contextmanager
def exclusive(name: str, command: str, *, place: str = "") -> Iterator[None]:
    """Hold the lock of container `name`; `Refused` tells who holds it.

    `place` tells containers of one name apart (another cluster's ct200): the API's address.
    """
    where = dirs.state() / "locks"
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}.lock" if place else f"{name}.lock"
    fd = os.open(where / file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"{name} is being worked on by {_holder(fd)}",
                hint="wait until it has ended, or end it; its work is continued by the next run",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "command": command, "since": time.time()}).encode(), 0)
        yield
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    try:
        data = json.loads(os.pread(fd, 4096, 0))
        seconds = time.time() - float(data["since"])
        return f"'gpuctl {data['command']}' (pid {data['pid']}, for {seconds:.0f} s)"
    except (ValueError, KeyError, TypeError):
        return "another gpuctl"
