"""A node without processes: keeps its state in memory and refuses what a real node refuses. For tests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuctl.lab.pve.backend import DeviceStat, NodeFacts, NodeKind, Passthrough, Runtime, TaskFailed, TaskLog


@dataclass(slots=True)
class MemoryBackend:
    """A `Backend` whose configuration files live under `folder` and whose containers are a set of numbers."""

    folder: Path
    node: str = "pve"
    devices: dict[str, DeviceStat] = field(default_factory=dict)
    machines: dict[int, str] = field(default_factory=dict)
    cluster: bool | None = None
    read_only: bool = False
    started: dict[int, float] = field(default_factory=dict)
    plugged: list[Passthrough] = field(default_factory=list)
    start_lines: tuple[str, ...] = ()
    start_warnings: tuple[str, ...] = ()
    stubborn: bool = False
    numbers: NodeFacts = field(default_factory=NodeFacts)
    booted: float = field(default_factory=lambda: time.time() - 5000)

    def __post_init__(self) -> None:
        self.conf_dir.mkdir(parents=True, exist_ok=True)
        self.lock_dir.mkdir(parents=True, exist_ok=True)

    @property
    def conf_dir(self) -> Path:
        """Folder of N.conf."""
        return self.folder / "lxc"

    @property
    def lock_dir(self) -> Path:
        """Folder of the lock files."""
        return self.folder / "lock"

    def quorate(self) -> bool | None:
        """Whether there is a quorum."""
        return self.cluster

    def virtual_machines(self) -> Mapping[int, str]:
        """The VMs it pretends to have."""
        return self.machines

    def facts(self) -> NodeFacts:
        """Numbers of the node."""
        return self.numbers

    def uptime_s(self) -> float:
        """Seconds since boot."""
        return time.time() - self.booted

    def boot_time(self) -> float:
        """Epoch second of the boot."""
        return self.booted

    def device(self, path: str) -> DeviceStat | None:
        """What a path is."""
        return self.devices.get(path)

    def running(self, vmid: int) -> bool:
        """Whether the container runs."""
        return vmid in self.started

    def runtime(self, vmid: int) -> Runtime | None:
        """Live numbers."""
        return Runtime(4242, time.time() - self.started[vmid]) if vmid in self.started else None

    def start(self, vmid: int, log: TaskLog) -> None:
        """Start."""
        if vmid in self.started:
            raise TaskFailed(f"CT {vmid} already running")
        for line in self.start_lines:
            log(line)
        for line in self.start_warnings:
            log.warn(line)
        self.started[vmid] = time.time()

    def stop(self, vmid: int, log: TaskLog) -> None:
        """Kill."""
        self.started.pop(vmid, None)

    def shutdown(self, vmid: int, timeout_s: float, log: TaskLog) -> None:
        """End, unless it is stubborn."""
        if self.stubborn:
            raise TaskFailed("container did not stop")
        self.started.pop(vmid, None)

    def hotplug(self, vmid: int, entry: Passthrough) -> None:
        """Take a device in."""
        if vmid not in self.started:
            raise TaskFailed(f"CT {vmid} not running")
        if entry.device.kind is not NodeKind.CHAR:
            raise TaskFailed(f"{entry.path} is not a character device")
        self.plugged.append(entry)
