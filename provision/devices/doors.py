"""What the stages need of the Proxmox API and of the host, as small interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inventory.errors import Refused
from inventory.machine import Machine
from provision.devices.facts import HostFacts

FACTS_LIMIT_S = 60.0


class Status(Protocol):
    """State of a container, as the API tells it."""

    @property
    def status(self) -> str: ...
    @property
    def lock(self) -> str: ...
    @property
    def uptime_s(self) -> float: ...


class Task(Protocol):
    """A task that runs on the node."""

    @property
    def upid(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def started_s(self) -> float: ...


class ProxmoxApi(Protocol):
    """What the stages need of `inventory.proxmox.ProxmoxApi`."""

    def quorate(self) -> bool | None: ...
    def status(self, node: str, vmid: int) -> Status: ...
    def running_tasks(self, node: str) -> Sequence[Task]: ...
    def start(self, node: str, vmid: int, *, timeout_s: float) -> Sequence[str]: ...
    def shutdown(self, node: str, vmid: int, *, timeout_s: float) -> Sequence[str]: ...
    def stop(self, node: str, vmid: int, *, timeout_s: float) -> Sequence[str]: ...


def read_host(host: Machine, vmid: int) -> HostFacts:
    """One round trip: everything about the host."""
    return HostFacts.from_json(host.call("host.facts", {"vmid": vmid}, timeout_s=FACTS_LIMIT_S))


def ct_name(vmid: int) -> str:
    """How a container is called in messages."""
    return f"ct{vmid}"


def locked(vmid: int, lock: str) -> Refused:
    """Proxmox's own words for a container that a task holds."""
    return Refused(
        f"CT {vmid} is locked ({lock})",
        hint=f"wait for that task to end; a lock left over by a crash is removed by `pct unlock {vmid}`",
    )
