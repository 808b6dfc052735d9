"""What the lab's Proxmox API needs from the node behind it: files, device nodes and containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class TaskFailed(Exception):
    """A task ended badly; the text becomes the task's exitstatus and its `TASK ERROR: ...` line."""


class NodeKind(StrEnum):
    """What a path is, as far as a device check can tell."""

    CHAR = "char"
    BLOCK = "block"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DeviceStat:
    """What stat() says of a path that exists. `major` and `minor` are 0 for `OTHER`."""

    kind: NodeKind
    major: int = 0
    minor: int = 0


@dataclass(frozen=True, slots=True)
class Passthrough:
    """A `dev[n]` entry resolved at this moment: `device` is what its path is on the host now."""

    index: int
    path: str
    device: DeviceStat
    mode: int = 0o660
    uid: int = 0
    gid: int = 0
    deny_write: bool = False


@dataclass(frozen=True, slots=True)
class Runtime:
    """Live numbers of a running container: pid of its init, seconds since it started, bytes of memory."""

    pid: int
    uptime_s: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The node as GET /nodes/{node}/status shows it. Memory and disk in bytes."""

    kernel_release: str = "6.17.2-1-pve"
    kernel_version: str = "#1 SMP PREEMPT_DYNAMIC PMX 6.17.2-1 (2025-10-21T11:55Z)"
    cpu_model: str = "Virtual CPU (lab)"
    cpus: int = 2
    memory_total: int = 24 << 30
    memory_used: int = 6 << 30
    disk_total: int = 256 << 30
    disk_used: int = 32 << 30
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)


class TaskLog(Protocol):
    """Where a task writes. Calling it adds one line; `warn` adds `WARN: text` and counts as a warning."""

    def __call__(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


class Backend(Protocol):
    """The node behind the API. Methods may be called from several threads at once.

    start, stop and shutdown are called while the container's lock file is held: they must not take it again.
    """

    @property
    def node(self) -> str:
        """Name of the node, for example `pve`."""
        ...

    @property
    def conf_dir(self) -> Path:
        """Folder that holds N.conf (the real path behind /etc/pve/nodes/NODE/lxc)."""
        ...

    @property
    def lock_dir(self) -> Path:
        """Folder of the flock files pve-config-N.lock (the real path behind /run/lock/lxc)."""
        ...

    @property
    def read_only(self) -> bool:
        """True when the cluster file system refuses writes (no quorum)."""
        ...

    def quorate(self) -> bool | None:
        """Whether the cluster has quorum; None on a node without a cluster, where it is not a question."""
        ...

    def virtual_machines(self) -> Mapping[int, str]:
        """VMID -> name of the QEMU guests the node pretends to have (they are only listed, never run)."""
        ...

    def facts(self) -> NodeFacts:
        """Static and live numbers of the node."""
        ...

    def uptime_s(self) -> float:
        """Seconds since the node booted."""
        ...

    def boot_time(self) -> float:
        """When the node booted, in seconds since the epoch."""
        ...

    def device(self, path: str) -> DeviceStat | None:
        """What a host path such as /dev/nvidia0 is; None when it does not exist."""
        ...

    def running(self, vmid: int) -> bool:
        """Whether the container runs."""
        ...

    def runtime(self, vmid: int) -> Runtime | None:
        """Live numbers of a running container, None when it is stopped."""
        ...

    def start(self, vmid: int, log: TaskLog) -> None:
        """Start the container from the N.conf as it is now (pending already applied, devices already checked).

        Raises `TaskFailed` with the task's error text.
        """
        ...

    def stop(self, vmid: int, log: TaskLog) -> None:
        """Kill the container. Raises `TaskFailed`."""
        ...

    def shutdown(self, vmid: int, timeout_s: float, log: TaskLog) -> None:
        """Ask the container to end; `TaskFailed("container did not stop")` when it runs on after the limit."""
        ...

    def hotplug(self, vmid: int, entry: Passthrough) -> None:
        """Give a running container a device node it did not have: make and allow it. Raises `TaskFailed`."""
        ...
