"""The lab's Proxmox node: boots, and starts containers from their configuration with real processes."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuctl.lab import namespaces, plain, rootfs
from gpuctl.lab.blueprint import Blueprint
from gpuctl.lab.kernel import Kernel
from gpuctl.lab.pve.backend import DeviceStat, NodeFacts, NodeKind, Passthrough, Runtime, TaskFailed, TaskLog
from gpuctl.lab.pve.conf import Conf
from gpuctl.lab.pve.fault import Fault
from gpuctl.lab.pve.guest import Guests
from gpuctl.lab.pve.store import Store
from gpuctl.lab.state import NODE, VMID, LabDir, write_file
from gpuctl.lab.way import Order, Simulated, Unfit, Way
from inventory.errors import Failed

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Guest:
    view: namespaces.View | None = None
    started: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)


class Node:
    """Host and containers of one lab; implements `gpuctl.lab.pve.backend.Backend`."""

    node = NODE

    def __init__(
        self, lab: LabDir, kernel: Kernel, way: Way, *, shm_mib: int = 512, may_fall_back: bool = False
    ) -> None:
        self.lab = lab
        self.kernel = kernel
        self.way = way
        self._may_fall_back = may_fall_back
        self._shm_mib = shm_mib
        self.broken: Unfit | None = None
        """Why this machine cannot carry the lab at all; found out when a container was started."""
        self._host: namespaces.View | None = None
        self._machines = {VMID: _Guest()}
        self.store = Store(self, lock_timeout_s=10)
        self.guests = Guests(self, self.store)
        """Containers as the API and `pct` change them; both go through this."""

    @property
    def isolation(self) -> str:
        """`namespaces`, `plain` or `lxc`."""
        return self.way.isolation

    @property
    def conf_dir(self) -> Path:
        return self.lab.conf_dir

    @property
    def lock_dir(self) -> Path:
        return self.lab.host_rootfs / "run/lock/lxc"

    @property
    def host(self) -> namespaces.View:
        """The running host. Raises `TaskFailed` while it is off."""
        if self._host is None:
            raise TaskFailed("the lab host is not running")
        return self._host

    def view(self, vmid: int) -> namespaces.View | None:
        """A running container, else None."""
        guest = self._machines.get(vmid)
        if guest is None or guest.view is None or not guest.view.alive():
            return None
        return guest.view

    def pids(self) -> dict[str, int]:
        """First process of each machine in namespaces, by name."""
        if self.isolation == "plain":
            return {}
        found = {} if self._host is None else {NODE: self._host.pid}
        return found | {f"ct{vmid}": view.pid for vmid in self._machines if (view := self.view(vmid))}

    # --- power -------------------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Boot the host. Containers are not started; `startall` does that."""
        run = self.lab.host_rootfs / "run"
        for entry in run.iterdir():
            # The daemon's own socket stays: programs inside find it there.
            if entry.name != "gpuctl-lab":
                _remove(entry)
        self.lock_dir.mkdir(parents=True)
        (run / "systemd/system").mkdir(parents=True)
        self.kernel.boot()
        self.show_members()
        blueprint = self._blueprint(NODE, self.lab.host_rootfs, self._shm_mib, rootfs.binds(container=False))
        try:
            self._host = self.way.start_host(blueprint)
        except Failed as error:
            if self.isolation != "namespaces" or not self._may_fall_back:
                raise
            # The probe passed, yet this kernel refuses one of the mounts: better a lab without walls than none.
            _log.warning("%s; going on without namespaces", error)
            self.way = Simulated(self.lab, "plain")
            self._host = self.way.start_host(blueprint)

    def power_off(self) -> None:
        """Kill containers and host, as a power cut does."""
        for guest in self._machines.values():
            with guest.lock:
                if guest.view is not None:
                    guest.view.kill()
                guest.view = None
        if self._host is not None:
            self._host.kill()
            self._host = None

    def startall(self, log: TaskLog) -> None:
        """Start the containers that have `onboot: 1`; one that fails does not stop the others."""
        for vmid in self.store.vmids():
            try:
                if str(self.store.load(vmid).main.values.get("onboot", "0")) in {"1", "yes", "on", "true"}:
                    log(f"Starting CT {vmid}")
                    self.guests.start(vmid, log)
            except (TaskFailed, Fault) as error:
                log.warn(f"Starting CT {vmid} failed: {str(error).strip()}")

    def show_members(self) -> None:
        """/etc/pve/.members as pmxcfs writes it: a single node is in no cluster; without quorum it is in one."""
        text = members(self.node, self.quorate())
        file = self.conf_dir.parents[2] / ".members"
        if not file.exists() or file.read_text() != text:
            write_file(file, text.encode(), mode=0o440)

    def tick(self) -> None:
        """Keep what is shown as files going: proc/uptime without namespaces, and the cluster's members."""
        self.show_members()
        if self.isolation == "plain" and self._host is not None:
            for folder in (self.lab.host_rootfs, *map(self.lab.ct_rootfs, self._machines)):
                plain.show_uptime(folder, self.kernel.uptime_s())

    # --- Backend -----------------------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        return self.quorate() is False

    def quorate(self) -> bool | None:
        """None as on a single node; False while the file DIR/no-quorum lies there, to see what that is like."""
        return False if (self.lab.root / "no-quorum").exists() else None

    def virtual_machines(self) -> Mapping[int, str]:
        return {300: "desktop"}

    def facts(self) -> NodeFacts:
        usage = shutil.disk_usage(self.lab.root)
        return NodeFacts(
            cpus=os.cpu_count() or 1,
            load=os.getloadavg(),
            disk_total=usage.total,
            disk_used=usage.used,
            memory_total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )

    def uptime_s(self) -> float:
        return self.kernel.uptime_s()

    def boot_time(self) -> float:
        return self.kernel.booted_at

    def device(self, path: str) -> DeviceStat | None:
        place = self.lab.host_rootfs / path.lstrip("/")
        node = self.way.nodes.read(place)
        if node is not None:
            return DeviceStat(NodeKind.CHAR if node.kind == "c" else NodeKind.BLOCK, node.major, node.minor)
        return DeviceStat(NodeKind.OTHER) if place.exists() else None

    def running(self, vmid: int) -> bool:
        return self.view(vmid) is not None

    def runtime(self, vmid: int) -> Runtime | None:
        view = self.view(vmid)
        if view is None:
            return None
        return Runtime(pid=view.pid, uptime_s=time.time() - self._machines[vmid].started)

    def start(self, vmid: int, log: TaskLog) -> None:
        guest = self._guest(vmid)
        with guest.lock:
            if self.running(vmid):
                raise TaskFailed(f"CT {vmid} already running")
            if self._host is None:
                raise TaskFailed("the lab host is not running")
            conf, folder = self._load(vmid), self.lab.ct_rootfs(vmid)
            blueprint = self._blueprint(f"ct{vmid}", folder, self._shm_mib, rootfs.binds(container=True))
            order = Order(conf, self.guests.devices(conf), blueprint)
            guest.started = time.time()
            try:
                guest.view = self.way.start_container(self._host, order, log)
            except Unfit as error:
                self.broken = self.broken or error
                raise TaskFailed(str(error)) from error

    def stop(self, vmid: int, log: TaskLog) -> None:
        guest = self._guest(vmid)
        with guest.lock:
            if guest.view is not None:
                guest.view.kill()
            guest.view = None

    def shutdown(self, vmid: int, timeout_s: float, log: TaskLog) -> None:
        guest = self._guest(vmid)
        with guest.lock:
            if guest.view is not None:
                self.way.shutdown(guest.view, timeout_s)
            guest.view = None

    def hotplug(self, vmid: int, entry: Passthrough) -> None:
        view = self.view(vmid)
        if view is None:
            raise TaskFailed(f"CT {vmid} not running")
        self.way.hotplug(view, self._load(vmid), entry)

    def _load(self, vmid: int) -> Conf:
        try:
            return self.store.load(vmid)
        except Fault as error:
            raise TaskFailed(error.message.strip()) from error

    def _guest(self, vmid: int) -> _Guest:
        if vmid not in self._machines:
            raise TaskFailed(f"the lab has no container {vmid}")
        return self._machines[vmid]

    def _blueprint(
        self,
        name: str,
        folder: Path,
        shm_mib: int,
        binds: tuple[tuple[str, str], ...],
    ) -> Blueprint:
        return Blueprint(
            name=name,
            rootfs=folder,
            site=rootfs.site_folder(),
            token=self.kernel.token,
            shm_mib=shm_mib,
            binds=binds,
            uptime_s=self.kernel.uptime_s(),
            env=self.way.env,
        )


def members(node: str, quorate: bool | None) -> str:
    """Text of /etc/pve/.members (pmxcfs, status.c)."""
    if quorate is None:
        return f'{{\n"nodename": "{node}",\n"version": 2\n}}\n'
    return (
        f'{{\n"nodename": "{node}",\n"version": 4,\n'
        f'"cluster": {{ "name": "lab", "version": 3, "nodes": 3, "quorate": {int(quorate)} }},\n'
        f'"nodelist": {{\n  "{node}": {{ "id": 1, "online": 1, "ip": "127.0.0.1"}}\n  }}\n}}\n'
    )


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
