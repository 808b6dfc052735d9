"""How a lab makes its machines: one `Way` for each value of `isolation`, so that the node itself knows none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from gpuctl.lab import container, namespaces, rootfs
from gpuctl.lab.blueprint import Blueprint
from gpuctl.lab.kernel import UVM_MAJORS
from gpuctl.lab.nodes import MARKERS, NodeFiles
from gpuctl.lab.pve.backend import Passthrough, TaskLog
from gpuctl.lab.pve.conf import Conf
from gpuctl.lab.state import LabDir
from inventory.errors import Failed


class Unfit(Failed):
    """This machine cannot carry a lab of the wanted kind; found out when a machine was started."""


@dataclass(frozen=True, slots=True)
class Order:
    """One container start: its configuration, its `dev[n]` as they are now, and what it is made of."""

    conf: Conf
    entries: tuple[Passthrough, ...]
    blueprint: Blueprint


class Way(Protocol):
    """Where machines come from. Methods raise `TaskFailed` for what the user sees as a failed task."""

    @property
    def isolation(self) -> str:
        """As lab.json says it."""
        ...

    @property
    def level(self) -> int: ...

    @property
    def nodes(self) -> NodeFiles:
        """How device nodes lie on disk."""
        ...

    @property
    def uvm_majors(self) -> tuple[int, int]:
        """Major of nvidia-uvm in odd and in even boots."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """What every process of the lab has in its environment, so that the driver stand-in knows its place."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about this machine."""
        ...

    def install(self) -> None:
        """Lay out what only this way needs, after `rootfs.install`."""
        ...

    def start_host(self, blueprint: Blueprint) -> namespaces.View: ...

    def start_container(self, host: namespaces.View, order: Order, log: TaskLog) -> namespaces.View: ...

    def shutdown(self, view: namespaces.View, timeout_s: float) -> None:
        """Ask a container to end."""
        ...

    def hotplug(self, view: namespaces.View, conf: Conf, entry: Passthrough) -> None:
        """Give a running container a device."""
        ...


@dataclass(frozen=True, slots=True)
class Simulated:
    """Level 0: process trees without rights; rules and nodes are simulated. `isolation`: namespaces or plain."""

    lab: LabDir
    isolation: str
    level: int = 0
    nodes: NodeFiles = MARKERS
    uvm_majors: tuple[int, int] = UVM_MAJORS
    notes: tuple[str, ...] = ()

    @property
    def env(self) -> Mapping[str, str]:
        return {"GPUCTL_LAB_LEVEL": "0"}

    def install(self) -> None:
        pass

    def start_host(self, blueprint: Blueprint) -> namespaces.View:
        return namespaces.start(self.isolation, blueprint)

    def start_container(self, host: namespaces.View, order: Order, log: TaskLog) -> namespaces.View:
        blueprint = order.blueprint
        shm_mib, shared = container.prepare(order.conf, order.entries, self.lab.host_rootfs, blueprint.rootfs, log)
        rootfs.place_engine(blueprint.rootfs, self.isolation)
        made = replace(blueprint, shm_mib=shm_mib or blueprint.shm_mib, shared=shared)
        return namespaces.start(self.isolation, made)

    def shutdown(self, view: namespaces.View, timeout_s: float) -> None:
        # No init system runs in there that could be asked.
        view.kill()

    def hotplug(self, view: namespaces.View, conf: Conf, entry: Passthrough) -> None:
        container.hotplug(self.lab.ct_rootfs(conf.vmid), entry)
