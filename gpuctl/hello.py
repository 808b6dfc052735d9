"""The first question to a machine: who are you, which boot is this, can our code run on you?"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inventory.machine import Emit
from inventory.root import at


def boot_id() -> str:
    """Random id of this boot, empty when unreadable; in a container that of its start: LXC gives each its own."""
    try:
        return Path(at("/proc/sys/kernel/random/boot_id")).read_text().strip()
    except OSError:
        return ""


def is_lab() -> bool:
    """True inside the embedded host: everything it produces is marked."""
    return Path(at("/etc/gpuctl-lab")).is_dir()


def hello(_args: Mapping[str, Any], _emit: Emit) -> dict[str, Any]:
    """Identity of this machine."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "boot_id": boot_id(),
        "time": time.time(),
        "lab": is_lab(),
    }
