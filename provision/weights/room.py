"""Room before the first byte: the least of file system, memory cgroups and available memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from inventory.errors import CannotLook, Refused
from inventory.root import at
from provision.weights.model import size_text

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""
BUFFERS = 64 * 1024 * 1024
"""Bytes of memory a transfer itself needs: read and socket buffers of all workers, the interpreter."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that bounds how much can be written: `free` bytes, and how to get more."""

    name: str
    free: int
    remedy: str


@dataclass(frozen=True, slots=True)
class Mount:
    """The line of /proc/self/mountinfo that a path lies on."""

    point: str
    kind: str
    root: str = "/"
    options: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """All limits of one folder; `in_memory` says whether its files are memory. None: it could not be read."""

    folder: str
    in_memory: bool | None
    device: int
    limits: tuple[Limit, ...]
    unknown: tuple[str, ...] = ()

    @property
    def least(self) -> Limit | None:
        return min(self.limits, key=lambda limit: limit.free, default=None)


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """/proc/self/mountinfo (proc(5)): 36 35 98:0 /root /point options - kind source superoptions."""
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, after = left.split(), right.split()
        if len(fields) < 6 or not after:
            continue
        point, root = (field.replace("\\040", " ") for field in (fields[4], fields[3]))
        mounts.append(Mount(point, after[0], root, after[2] if len(after) > 2 else ""))
    return tuple(mounts)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount with the longest point above `path`; of two at one point the later one, which hides the other."""
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def parse_available(text: str) -> int | None:
    """MemAvailable of /proc/meminfo in bytes."""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def cgroup_folders(cgroup: str, mounts: tuple[Mount, ...]) -> tuple[tuple[str, int], ...]:
    """The memory cgroup of this process and all its ancestors as (folder, version), innermost first.

    `cgroup`: /proc/self/cgroup (cgroups(7)); `0::/path` is version 2, `N:...memory...:/path` version 1.
    """
    found: list[tuple[str, int]] = []
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            homes = [mount for mount in mounts if mount.kind == "cgroup2"]
            version = 2
        elif "memory" in controllers.split(","):
            homes = [m for m in mounts if m.kind == "cgroup" and "memory" in m.options.split(",")]
            version = 1
        else:
            continue
        for home in homes[:1]:
            inner = path.removeprefix(home.root) if home.root != "/" else path
            parts = [part for part in inner.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                found.append(("/".join([home.point.rstrip("/"), *parts[:depth]]), version))
    return tuple(found)


def cgroup_limit(folder: str, version: int, read: Callable[[str], str | None]) -> Limit | None:
    """What one memory cgroup still allows; None when it has no limit. File pages that can be dropped count as free."""
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    ceiling, usage = read(f"{folder}/{names[0]}"), read(f"{folder}/{names[1]}")
    if ceiling is None or usage is None or not ceiling.strip().isdigit() or int(ceiling) >= _UNLIMITED:
        return None
    droppable = 0
    for line in (read(f"{folder}/memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == names[2]:
            droppable = int(value)
    free = int(ceiling) - int(usage) + droppable - BUFFERS
    return Limit(
        f"the memory limit of {size_text(int(ceiling))} (cgroup {folder})",
        max(0, free),
        "give the container more memory, or stage on the host and bind-mount the folder: "
        "files written outside the container are not charged to it",
    )


def _read(path: str) -> str | None:
    try:
        return Path(at(path)).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _existing(path: str) -> str:
    """The nearest folder above `path` that exists, as seen under the root."""
    current = PurePosixPath(path)
    while not os.path.lexists(at(str(current))) and current != current.parent:
        current = current.parent
    return str(current)


def look(folder: str) -> Room:
    """Read all limits that hold for writing below `folder` (it need not exist). Raises `CannotLook`."""
    home = _existing(folder)
    try:
        stats, device = os.statvfs(at(home)), Path(at(home)).stat().st_dev
    except OSError as error:
        raise CannotLook(f"the free room of {home} cannot be read: {error.strerror}") from error
    mounts = parse_mounts(_read("/proc/self/mountinfo") or "")
    mount = mount_of(home, mounts)
    in_memory = mount.kind in _IN_MEMORY if mount else None
    limits: list[Limit] = []
    if stats.f_blocks:  # a tmpfs without a size has none
        name = f"the free room of {mount.point} ({mount.kind})" if mount else f"the free room at {home}"
        remedy = "free room there"
        if in_memory and mount:
            remedy = f"remove other files there, or make it larger: mount -o remount,size=... {mount.point}"
        limits.append(Limit(name, stats.f_bavail * stats.f_frsize, remedy))
    unknown: list[str] = []
    if in_memory is not False:
        limits += _memory(mounts, unknown)
    return Room(folder, in_memory, device, tuple(limits), tuple(unknown))


def _memory(mounts: tuple[Mount, ...], unknown: list[str]) -> list[Limit]:
    limits = []
    available = parse_available(_read("/proc/meminfo") or "")
    if available is None:
        unknown.append("MemAvailable could not be read from /proc/meminfo")
    else:
        remedy = "stop what uses memory, or stage fewer files"
        limits.append(Limit("the memory that is available (MemAvailable)", max(0, available - BUFFERS), remedy))
    cgroup = _read("/proc/self/cgroup")
    if cgroup is None:
        unknown.append("the memory cgroup could not be read from /proc/self/cgroup")
    for folder, version in cgroup_folders(cgroup or "", mounts):
        limit = cgroup_limit(folder, version, _read)
        if limit is not None:
            limits.append(limit)
    return limits


def check(what: str, need: int, room: Room, *, taken: int = 0) -> None:
    """Refuse when `need` more bytes do not fit beside `taken` bytes promised to others; else return."""
    least = room.least
    if least is None or need <= 0 or need + taken <= least.free:
        return
    also = f" beside {size_text(taken)} for the other weights" if taken else ""
    raise Refused(
        f"{what}: {size_text(need)} do not fit into {room.folder}{also}: "
        f"{least.name} leaves {size_text(least.free)}, {size_text(need + taken - least.free)} too little",
        hint=least.remedy,
    )
