"""The job inside the container: each device node as the container's processes meet it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from inventory.machine import Emit
from provision.devices import look
from provision.devices.facts import CtFacts

_LIBRARY: Final = re.compile(r"lib(nvidia-ml|cuda)\.so\.\d+\.\d+(\.\d+)*")
_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/aarch64-linux-gnu",
)


def facts(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Facts of this container. args: `nodes`, names below /dev or paths to look at besides /dev/nvidia*."""
    wanted = [name if name.startswith("/") else f"/dev/{name}" for name in map(str, args.get("nodes", ()))]
    libraries = {name for folder in _FOLDERS for name in look.names(folder) if _LIBRARY.fullmatch(name)}
    return CtFacts(
        boot_id=look.content("/proc/sys/kernel/random/boot_id").text.strip(),
        nodes=look.nodes((*wanted, *look.nvidia_paths()), try_open=True),
        proc_devices=look.content("/proc/devices"),
        uid_map=look.content("/proc/self/uid_map"),
        libraries=tuple(sorted(libraries)),
    ).to_json()
