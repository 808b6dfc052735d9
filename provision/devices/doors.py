"""What the stages need of the Proxmox API, as small interfaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

from inventory.errors import Refused

FACTS_LIMIT_S: Final = 60.0


class Status(Protocol):
    """State of a container, as the API tells it."""

    @property
    def status(self) -> str: ...
    @property
    def lock(self) -> str: ...
    @property
    def uptime_s(self) -> float: ...
    @property
    def ha(self) -> bool: ...


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

    def status(self, node: str, vmid: int) -> Status: ...
    def running_tasks(self, node: str) -> Sequence[Task]: ...
    def start(self, node: str, vmid: int, *, timeout_s: float) -> Sequence[str]: ...
    def shutdown(self, node: str, vmid: int, *, timeout_s: float) -> Sequence[str]: ...
    def stop(self, node: str, vmid: int, *, timeout_s: float) -> Sequence[str]: ...


def ct_name(vmid: int) -> str:
    """How a container is called in messages."""
    return f"ct{vmid}"


def locked(vmid: int, lock: str) -> Refused:
    """Proxmox's own words for a container that a task holds."""
    return Refused(
        f"CT {vmid} is locked ({lock})",
        hint=f"wait for that task to end; a lock left over by a crash is removed by `pct unlock {vmid}`",
    )


def version(text: str) -> tuple[int, ...]:
    """`6.0.4-1` -> (6, 0, 4); empty when it is no version."""
    match = re.match(r"(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()
