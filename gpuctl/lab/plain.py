"""Lab machines without namespaces: commands and files are moved below GPUCTL_ROOT by their paths."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

MARK: Final = "GPUCTL_LAB_MACHINE"
"""Environment variable that says to which machine a process belongs."""

_OURS: Final = re.compile(
    r"(?<![\w./-])(?=/(?:var|run|tmp|root|opt|home|mnt|srv|etc/(?:pve|gpuctl-lab|hostname|os-release|systemd)|dev/(?:shm|kmsg|nvidia[\w-]*)"
    r"|proc/(?:devices|driver|sys/kernel/random/boot_id|uptime)|sys/module)(?:/|$|[^\w-]))"
)
_PROC_LINKS: Final = (
    "cgroups", "cmdline", "cpuinfo", "filesystems", "loadavg", "meminfo", "modules", "mounts", "self", "stat",
    "swaps", "version", "vmstat",
)  # fmt: skip
_SYS_LINKS: Final = ("block", "bus", "class", "dev", "devices", "fs", "kernel")


def translate_words(words: tuple[str, ...], rootfs: Path) -> tuple[str, ...]:
    """`words` with the machine's own paths moved below `rootfs`; system paths such as /usr stay."""
    return tuple(_move(word, rootfs) for word in words)


def take_back(words: tuple[str, ...], rootfs: Path) -> tuple[str, ...]:
    """The opposite, for a program that gets words whose paths were moved: what the user had typed."""
    return tuple(word.replace(f"{rootfs}/", "/") for word in words)


def translate_line(line: str, rootfs: Path) -> str:
    """The same for a shell line."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = []
    if words and shlex.join(words) == line.strip():
        return shlex.join(translate_words(tuple(words), rootfs))
    return _move(line, rootfs)


def _move(text: str, rootfs: Path) -> str:
    def prefix(match: re.Match[str]) -> str:
        return "" if text.startswith(f"{rootfs}/", match.start()) else str(rootfs)

    return _OURS.sub(prefix, text)


def prepare(rootfs: Path) -> None:
    """Links to the parts of /proc and /sys that a lab machine shares with the real one."""
    for folder, names in (("proc", _PROC_LINKS), ("sys", _SYS_LINKS)):
        for name in names:
            link = rootfs / folder / name
            if not link.is_symlink() and not link.exists() and Path("/", folder, name).exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(f"/{folder}/{name}")


def show_uptime(rootfs: Path, seconds: float) -> None:
    """proc/uptime; to be called about every second."""
    staging = rootfs / "proc" / ".uptime"
    staging.write_text(f"{seconds:.2f} {seconds:.2f}\n")
    staging.replace(rootfs / "proc" / "uptime")


def fresh_shm(rootfs: Path, token: str, name: str) -> None:
    """An empty dev/shm: a link to a folder in the machine's own /dev/shm when that is writable, else a folder."""
    remove_shm(rootfs)
    place = rootfs / "dev" / "shm"
    place.parent.mkdir(parents=True, exist_ok=True)
    if os.access("/dev/shm", os.W_OK):
        place.symlink_to(tempfile.mkdtemp(prefix=f"gpuctl-lab-{name}-{token[:8]}-", dir="/dev/shm"))
    else:
        place.mkdir()


def remove_shm(rootfs: Path) -> None:
    """Remove what `fresh_shm` made."""
    place = rootfs / "dev" / "shm"
    if place.is_symlink():
        shutil.rmtree(place.readlink(), ignore_errors=True)
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
