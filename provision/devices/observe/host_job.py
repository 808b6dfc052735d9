"""The job that looks at a Proxmox host, as root: one command tells everything about it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inventory.machine import Emit
from inventory.root import at
from provision.devices.change import conf_file
from provision.devices.config import conf, rules
from provision.devices.facts import Content, HostFacts, Node, NodeKind, State
from provision.devices.observe import host_driver, host_log, host_pci, host_pve, look, side_by_side
from provision.devices.observe.side_by_side import Found

BOOT_UNIT: Final = "/etc/systemd/system/gpuctl-devices.service"
"""boot_unit.PATH; that module brings the inventory's model with it, which costs this job 50 ms to import."""
_NOT_READ: Final = Content(State.UNREADABLE, why="no answer")
_PROC: Final = {"proc_devices": "/proc/devices", "cmdline": "/proc/cmdline"}
_DRIVER: Final = {"driver": "/proc/driver/nvidia/version", "params": "/proc/driver/nvidia/params"}


def facts(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Facts of this host for one container. args: `vmid`. Raises `ConfigError` for a VMID that is no number.

    What can't be read, or hangs, is its unknown value, and a note says so; everything else is told all the same.
    """
    vmid = conf_file.vmid_of(args)
    kernel = look.word("/proc/sys/kernel/osrelease") or os.uname().release
    found, problems = side_by_side.read(
        {
            "/proc": _proc,
            f"the configuration of {vmid}": lambda found: _conf(vmid, found),
            "the cluster": lambda found: _cluster(vmid, found),
            "the list of packages": _packages,
            "the driver": _driver,
            "the kernel modules": lambda found: _modules(kernel, found),
            "DKMS": lambda found: found.update(dkms=host_driver.dkms()),
            "the kernel's log": lambda found: found.update(kernel_log=host_log.kernel_log()),
            "the PCI bus": _pci,
            "/dev": lambda found: found.update(listed=look.nvidia_nodes()),
            "gpuctl's own files": lambda found: _ours(vmid, found),
        },
        side_by_side.READ_LIMIT_S,
    )
    for problem in problems:
        emit({"type": "note", "text": problem})
    return _host_facts(vmid, kernel, found).to_json()


def _host_facts(vmid: int, kernel: str, found: Found) -> HostFacts:
    """The facts; what no reader has found is unknown, which is not the same as absent."""
    unread = dict.fromkeys((*_PROC, *_DRIVER, "conf", "dkms", "kernel_log", "boot_unit"), _NOT_READ)
    known = {"boot_id": "", "uptime_s": 0.0, "conf_digest": "", **unread, **found}
    return HostFacts(
        vmid=vmid,
        kernel=kernel,
        now_s=time.time(),
        conf_path=conf_file.path_of(vmid),
        modprobe=shutil.which("nvidia-modprobe") or "",
        nodes=_nodes(known.pop("listed", None), known.pop("named", {})),
        **known,
    )


def _nodes(listed: tuple[Node, ...] | None, named: Mapping[str, Node | None]) -> tuple[Node, ...]:
    """Nodes of /dev/nvidia*, and those that the configuration names, which count as what their links lead to."""
    if listed is None:
        listed = tuple(_silent(path) for path in look.USUAL)
    rest = tuple(node or _silent(path) for path, node in tuple(named.items()))
    return (*(node for node in listed if node.path not in named), *rest)


def _silent(path: str) -> Node:
    return Node(path, NodeKind.UNREADABLE, why=_NOT_READ.why)


def _proc(found: Found) -> None:
    found["boot_id"] = look.word("/proc/sys/kernel/random/boot_id")
    found["uptime_s"] = seconds(look.word("/proc/uptime"))
    for name, path in _PROC.items():
        found[name] = look.content(path)


def seconds(text: str) -> float:
    """The first number of /proc/uptime; 0 when there is none."""
    match = re.match(r"[0-9]+(\.[0-9]+)?", text, re.ASCII)
    return float(match[0]) if match else 0.0


def _driver(found: Found) -> None:
    for name, path in _DRIVER.items():
        found[name] = look.content(path)
    found["gpus"] = host_driver.gpus()


def _modules(kernel: str, found: Found) -> None:
    found["headers"] = host_driver.headers(kernel)
    found["secure_boot"] = host_driver.secure_boot()
    found["modules"] = host_driver.modules(kernel)


def _pci(found: Found) -> None:
    found["pci"] = host_pci.functions()
    found["acs_redirect"] = host_pci.acs_redirects(found["pci"])


def _cluster(vmid: int, found: Found) -> None:
    members = look.content("/etc/pve/.members")
    found["nodename"] = host_pve.nodename(members)
    found["quorate"] = host_pve.quorate(members)
    found["owners"] = host_pve.owners(vmid)


def _packages(found: Found) -> None:
    status = host_pve.packages().text
    found["pve_manager"] = host_pve.version(status, "pve-manager")
    found["pve_container"] = host_pve.version(status, "pve-container")


def _ours(vmid: int, found: Found) -> None:
    found["boot_unit"] = look.content(BOOT_UNIT)
    found["backups"] = conf_file.backups(vmid)


def _conf(vmid: int, found: Found) -> None:
    """The configuration, and the nodes it names: those may lie on a network file system that hangs."""
    path = conf_file.path_of(vmid)
    text = look.content(path)
    document = conf.parse(text.text)
    found["conf_digest"] = document.digest if text.state is State.PRESENT else ""
    found["conf"] = text
    with contextlib.suppress(OSError):
        found["conf_changed_s"] = Path(at(path)).stat().st_mtime
    named: dict[str, Node | None] = dict.fromkeys(named_sources(document))
    found["named"] = named
    for source in tuple(named):
        named[source] = node = look.node(source, follow=True)
        if node.kind is NodeKind.DIRECTORY and source.startswith("/dev/"):
            # What is in a folder of /dev that is mounted as a whole explains the other rules.
            inner = (look.node(f"{source.rstrip('/')}/{name}") for name in look.names(source)[:64])
            named.update({node.path: node for node in inner if node.kind is NodeKind.CHAR})


def named_sources(document: conf.Document) -> tuple[str, ...]:
    """Paths of the host that the next start uses, and those of the main section that pending values replace."""
    paths: list[str] = []
    for view in (document.next_start, document.main):
        paths += [device.spec.path for device in conf.devices(view) if device.spec is not None]
        for line in view.raw:
            mount = rules.parse_mount(line.value) if line.key == rules.MOUNT else None
            if mount is not None and mount.source.startswith("/") and mount.bind:
                paths.append(mount.source)
    return tuple(dict.fromkeys(paths))
