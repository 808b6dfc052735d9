"""The Proxmox VE API as gpuctl uses it: typed answers, tasks waited for and judged, nothing assumed done."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inventory import proxmox_config, proxmox_task
from inventory.errors import CannotLook, Failed, Refused
from inventory.model import Api
from inventory.proxmox_task import Deadline
from inventory.proxmox_wire import ApiFault, NoAnswer, Wire

LOOKS_AFTER_LOSS = 3
"""How often a task is looked for after the answer to its start was lost."""
LOOK_PAUSE_S = 0.7


@dataclass(frozen=True, slots=True)
class Guest:
    """A container (`lxc`) or virtual machine (`qemu`) of the cluster; `name` is empty right after a boot."""

    vmid: int
    name: str
    node: str
    kind: str
    status: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node since its boot."""

    uptime_s: float
    kernel: str


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container now; `lock` is the word of its lock (`backup`, ...) or empty, `ha`: managed by HA."""

    vmid: int
    name: str
    status: str
    lock: str
    uptime_s: float
    ha: bool


@dataclass(frozen=True, slots=True)
class ConfigView:
    """A container's configuration; `digest` is the SHA-1 of the file's bytes."""

    values: Mapping[str, str]
    raw: tuple[tuple[str, str], ...]
    """The raw `lxc.*` keys in their order."""
    digest: str


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task that runs now; `started_s` is seconds since the epoch by the node's clock."""

    upid: str
    kind: str
    user: str
    started_s: float


class ProxmoxApi:
    """One API, logged in. Reads raise `CannotLook`; start, shutdown, stop and set_config raise as said there.

    Each read is one call. `connect` makes one with a password and none with a token; `set_config` makes three; start,
    shutdown and stop make one, then one for each look at the task and one for each look at the state.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @classmethod
    def connect(cls, api: Api, *, base: Path) -> ProxmoxApi:
        """Resolve the secret, verify the certificate, log in. `base`: folder for relative paths.

        Raises `CannotLook` (unreachable, certificate or login refused), `ConfigError`, `Refused` (secret file).
        """
        wire = Wire(api, base=base)
        wire.login()
        return cls(wire)

    def close(self) -> None:
        self._wire.close()

    def version(self) -> str:
        """Version of Proxmox VE, for example `9.2.11`."""
        return str(self._wire.get("version")["version"])

    def nodes(self) -> tuple[str, ...]:
        """Names of the cluster's nodes."""
        return tuple(sorted(str(entry["node"]) for entry in self._wire.get("nodes")))

    def _guests(self) -> tuple[Guest, ...]:
        guests = [
            Guest(
                vmid=int(entry["vmid"]),
                name=str(entry.get("name", "")),
                node=str(entry.get("node", "")),
                kind=str(entry.get("type", "")),
                status=str(entry.get("status", "unknown")),
            )
            for entry in self._wire.get("cluster", "resources", type="vm")
        ]
        return tuple(sorted(guests, key=lambda guest: guest.vmid))

    def containers(self) -> tuple[Guest, ...]:
        """All containers of the cluster that this login may see."""
        return tuple(guest for guest in self._guests() if guest.kind == "lxc")

    def locate(self, vmid: int) -> Guest:
        """The container with this VMID; raises `Failed` when there is none, or when it is a virtual machine."""
        guests = self._guests()
        for guest in guests:
            if guest.vmid == vmid and guest.kind == "lxc":
                return guest
            if guest.vmid == vmid:
                raise Failed(
                    f"VMID {vmid} ({guest.name or 'no name'}) on node {guest.node} is a virtual machine, "
                    "not a container",
                    hint="gpuctl handles LXC containers; check vmid in the inventory",
                )
        known = ", ".join(f"{guest.vmid} {guest.name}".strip() for guest in guests if guest.kind == "lxc")
        if not known:
            raise CannotLook(
                f"{self._wire.where} shows no container at all to {self._wire.who}, so not {vmid} either",
                hint=f"is there one? If so, {self._wire.who} lacks VM.Audit on /vms",
            )
        raise Failed(
            f"{self._wire.where} knows no container {vmid}; it knows {known}", hint="check vmid in the inventory"
        )

    def node_status(self, node: str) -> NodeStatus:
        """Needs Sys.Audit on /nodes/NODE."""
        data = self._wire.get("nodes", node, "status")
        kernel = data.get("current-kernel") or {}
        return NodeStatus(float(data.get("uptime", 0)), str(kernel.get("release") or data.get("kversion", "")))

    def quorate(self) -> bool | None:
        """None: the API cannot say (a single node, corosync not running, or no Sys.Audit on /)."""
        try:
            entries = self._wire.get("cluster", "status")
        except CannotLook as error:
            if isinstance(error.__cause__, ApiFault) and error.__cause__.status == 403:
                return None
            raise
        for entry in entries:
            if entry.get("type") == "cluster":
                return bool(int(entry.get("quorate", 0)))
        return None

    def status(self, node: str, vmid: int) -> ContainerStatus:
        """Needs VM.Audit on /vms/VMID."""
        data = self._wire.get("nodes", node, "lxc", vmid, "status", "current")
        return ContainerStatus(
            vmid=vmid,
            name=str(data.get("name", "")),
            status=str(data.get("status", "unknown")),
            lock=str(data.get("lock", "")),
            uptime_s=float(data.get("uptime", 0)),
            ha=bool(int((data.get("ha") or {}).get("managed", 0))),
        )

    def config(self, node: str, vmid: int, *, current: bool = True) -> ConfigView:
        """The live configuration, or with `current=False` with pending changes merged in (the API's default)."""
        data = dict(self._wire.get("nodes", node, "lxc", vmid, "config", current=current))
        raw = tuple((str(key), str(value)) for key, value in data.pop("lxc", ()))
        digest = str(data.pop("digest", ""))
        return ConfigView(MappingProxyType({key: str(value) for key, value in data.items()}), raw, digest)

    def pending(self, node: str, vmid: int) -> tuple[Mapping[str, Any], ...]:
        """One entry a key: `key`, `value`, and `pending` or `delete` where a change waits for the next start."""
        return tuple(dict(entry) for entry in self._wire.get("nodes", node, "lxc", vmid, "pending"))

    def set_config(
        self,
        node: str,
        vmid: int,
        values: Mapping[str, proxmox_config.Value],
        *,
        delete: Iterable[str] = (),
        digest: str,
    ) -> proxmox_config.Written:
        """Set and delete options of the configuration with this `digest`; booleans go as 1 and 0.

        Whatever the answer, what counts is what the node has afterwards: three calls, PUT, config and pending.
        Raises `ConfigError` before sending (raw lxc keys, no digest), `Refused` (no privilege, for `dev[n]` anyone
        but root@pam with its password; locked; changed meanwhile; no quorum), `Failed` with Proxmox's own text,
        `CannotLook` when the answer was lost and the change is not there.
        """
        return proxmox_config.put(self._wire, node, vmid, values, delete, digest)

    def running_tasks(self, node: str) -> tuple[TaskInfo, ...]:
        """Tasks of this node that have not ended."""
        return tuple(
            TaskInfo(
                upid=str(entry["upid"]),
                kind=str(entry.get("type", "")),
                user=str(entry.get("user", "")),
                started_s=float(entry.get("starttime", 0)),
            )
            for entry in self._wire.get("nodes", node, "tasks", source="active")
            if "endtime" not in entry and str(entry.get("status", "RUNNING")).upper() == "RUNNING"
        )

    def start(self, node: str, vmid: int, *, timeout_s: float) -> tuple[str, ...]:
        """Start and wait until it runs; the task's warnings. No error when it runs already.

        Raises `Failed` with the task's own text, `Refused` (locked, no privilege), `CannotLook` when the outcome
        is not known. After a lost answer the state is read again; the call is never repeated.
        """
        return self._act(node, vmid, "start", "running", timeout_s)

    def shutdown(self, node: str, vmid: int, *, timeout_s: float) -> tuple[str, ...]:
        """Ask its init to end, and wait; otherwise as `start`. Not stopped in time is `Failed`."""
        # The task gives up a little before we do, so that its own text is what is shown.
        return self._act(node, vmid, "shutdown", "stopped", timeout_s, timeout=max(1, int(timeout_s - 5)))

    def stop(self, node: str, vmid: int, *, timeout_s: float) -> tuple[str, ...]:
        """Kill it, and wait; otherwise as `start`."""
        return self._act(node, vmid, "stop", "stopped", timeout_s)

    def _act(
        self, node: str, vmid: int, action: str, wanted: str, timeout_s: float, **form: Any
    ) -> tuple[str, ...]:
        what = f"container {vmid} on {node}: {action} failed"
        so_already = (f"CT {vmid} already running", f"CT {vmid} not running")
        deadline = Deadline.after(timeout_s)
        since_s = self._wire.server_time_s()
        try:
            upid = str(self._wire.post("nodes", node, "lxc", vmid, "status", action, **form))
        except NoAnswer as lost:
            found = self._find_again(node, vmid, action, wanted, since_s, lost)
            if found is None:
                return ()
            upid = found
        except ApiFault as fault:
            if fault.text in so_already:
                return ()
            if fault.status == 403:
                raise Refused(fault.message, hint=fault.hint) from None
            raise proxmox_task.failure(what, fault.text) from None
        warnings = proxmox_task.wait(self._wire, node, upid, what, deadline, harmless=so_already)
        self._until(node, vmid, wanted, action, deadline)
        return warnings

    def _find_again(
        self, node: str, vmid: int, action: str, wanted: str, since_s: float, lost: NoAnswer
    ) -> str | None:
        """The task of a call whose answer was lost; None when there is none and the state is as wanted."""
        kinds = (f"vz{action}", "hastart" if action == "start" else "hastop")
        for _ in range(LOOKS_AFTER_LOSS):
            upid = proxmox_task.find(self._wire, node, vmid, kinds, since_s)
            if upid is not None:
                return upid
            time.sleep(LOOK_PAUSE_S)
        state = self.status(node, vmid).status
        if state == wanted:
            return None
        raise CannotLook(
            f"container {vmid} on {node}: the answer to {action} was lost, no such task is listed, and it is {state}",
            hint="run gpuctl again; it looks at the state first",
            detail=(lost.message,),
        )

    def _until(self, node: str, vmid: int, wanted: str, action: str, deadline: Deadline) -> None:
        """A task of the HA manager ends before the state is reached."""
        while True:
            state = self.status(node, vmid).status
            if state == wanted:
                return
            if deadline.over():
                raise Failed(
                    f"container {vmid} on {node}: the {action} task ended well, but it is still {state}",
                    hint="if HA manages it, see `ha-manager status` on the node",
                )
            time.sleep(0.5)
