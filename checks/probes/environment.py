"""Reads what a serving process would inherit here: shared memory, memory limits, CUDA's variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from checks.probes.writer import Writer
from inventory.root import at

VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_INJECTION64_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "LD_LIBRARY_PATH",
    "NVIDIA_VISIBLE_DEVICES",
)


def read(out: Writer) -> None:
    """Readings `variables`, `shm`, `memory_max`, `memory_current`, `oom_kills`, `meminfo`; bytes throughout."""
    out.result("variables", value={name: os.environ[name] for name in VARIABLES if name in os.environ})
    try:
        shm = os.statvfs(at("/dev/shm"))  # noqa: S108 - looked at, never written
        out.result("shm", value={"total": shm.f_blocks * shm.f_frsize, "free": shm.f_bavail * shm.f_frsize})
    except OSError as problem:
        out.result("shm", rc=problem.errno or 5, text=problem.strerror or "")
    for key, path in (
        ("memory_max", "/sys/fs/cgroup/memory.max"),
        ("memory_current", "/sys/fs/cgroup/memory.current"),
    ):
        text = _text(path)
        if text is not None:
            out.result(key, value=int(text) if text.strip().isdigit() else None)
    kills = [
        line.split()[1]
        for line in (_text("/sys/fs/cgroup/memory.events") or "").splitlines()
        if "oom_kill " in line
    ]
    if kills:
        out.result("oom_kills", value=int(kills[0]))
    fields = {
        line.split(":")[0]: line.split()[1] for line in (_text("/proc/meminfo") or "").splitlines() if ":" in line
    }
    if fields:
        out.result(
            "meminfo", value={name: int(fields.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable")}
        )


def _text(path: str) -> str | None:
    try:
        return Path(at(path)).read_text("ascii", "replace")
    except OSError:
        return None
