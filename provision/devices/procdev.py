"""The character drivers of /proc/devices, and which of them are NVIDIA's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

NVIDIA: Final = 195
"""Fixed major of nvidia0..N, nvidiactl and nvidia-modeset; its name changed in 545.23.06, so not looked up."""

DYNAMIC: Final = ("nvidia-uvm", "nvidia-caps", "nvidia-nvswitch", "nvidia-nvlink", "nvidia-caps-imex-channels")
"""Drivers whose major the kernel hands out anew at each load (open-gpu-kernel-modules: uvm.c, nv-caps.c)."""

_ROW: Final = re.compile(r"\s*(\d{1,9})\s+(\S.*?)\s*", re.ASCII)

RANGES: Final = (range(234, 255), range(384, 512))
"""Majors the kernel gives out dynamically: 254 down to 234, then 511 down to 384 (find_dynamic_major)."""


def parse(text: str) -> dict[int, tuple[str, ...]]:
    """Character majors and the names registered on each; the block section has other numbers and is left out."""
    found: dict[int, tuple[str, ...]] = {}
    inside = False
    for line in text.split("\n"):
        if line.rstrip().endswith(":"):
            inside = line.strip() == "Character devices:"
        elif inside and (match := _ROW.fullmatch(line)):
            major = int(match[1])
            found[major] = (*found.get(major, ()), match[2])
    return found


def majors(drivers: Mapping[int, tuple[str, ...]]) -> dict[str, int]:
    """Current major of each NVIDIA driver that is loaded, by exact name; `nvidia` when anything holds 195."""
    found = {name: major for major, names in drivers.items() for name in names if name in DYNAMIC}
    if NVIDIA in drivers:
        found["nvidia"] = NVIDIA
    return found


def dynamic(major: int) -> bool:
    """Whether the kernel could have given out this number dynamically."""
    return any(major in numbers for numbers in RANGES)
