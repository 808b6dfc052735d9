"""The job that looks at a Proxmox host, as root."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inventory.machine import Emit
from inventory.root import at
from provision.devices import conf, conf_file, look, rules
from provision.devices.facts import Gpu, HostFacts, Module, Node, NodeKind, Pci, State


def facts(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Facts of this host for one container. args: `vmid`. Raises `ConfigError` for a VMID that is no number."""
    vmid = conf_file.vmid_of(args)
    kernel = _kernel()
    text = look.content(conf_file.path_of(vmid))
    document = conf.parse(text.text)
    found = look.nodes(look.nvidia_paths())
    return HostFacts(
        vmid=vmid,
        boot_id=look.content("/proc/sys/kernel/random/boot_id").text.strip(),
        kernel=kernel,
        now_s=time.time(),
        uptime_s=_number(look.content("/proc/uptime").text),
        proc_devices=look.content("/proc/devices"),
        driver=look.content("/proc/driver/nvidia/version"),
        params=look.content("/proc/driver/nvidia/params"),
        conf=text,
        conf_digest=document.digest if text.state is State.PRESENT else "",
        conf_path=conf_file.path_of(vmid),
        nodes=(*found, *_sources(document, {node.path for node in found})),
        gpus=_gpus(),
        modules=_modules(kernel),
        modprobe=shutil.which("nvidia-modprobe") or "",
        pci=_pci(),
    ).to_json()


def _kernel() -> str:
    release = look.content("/proc/sys/kernel/osrelease").text.strip()
    return release or os.uname().release


def _number(text: str) -> float:
    match = re.match(r"[0-9.]+", text)
    return float(match[0]) if match and match[0].count(".") < 2 and match[0] != "." else 0.0


def _sources(document: conf.Document, known: set[str]) -> tuple[Node, ...]:
    """Nodes that the configuration names, and those in a folder that it mounts: they explain its other rules."""
    view = document.next_start
    paths = [device.spec.path for device in conf.devices(view) if device.spec is not None]
    for line in view.raw:
        mount = rules.parse_mount(line.value) if line.key == rules.MOUNT else None
        if mount is not None and mount.source.startswith("/") and mount.bind:
            paths.append(mount.source)
    found: list[Node] = []
    for path in dict.fromkeys(paths):
        if path in known:
            continue
        node = look.node(path, follow=True)
        found.append(node)
        if node.kind is NodeKind.DIRECTORY and path.startswith("/dev/"):
            inner = (f"{path.rstrip('/')}/{name}" for name in look.names(path)[:64])
            found += [n for n in look.nodes(p for p in inner if p not in known) if n.kind is NodeKind.CHAR]
    return tuple(found)


def _gpus() -> tuple[Gpu, ...]:
    found = []
    for bus in look.names("/proc/driver/nvidia/gpus"):
        text = look.content(f"/proc/driver/nvidia/gpus/{bus}/information").text
        fields: dict[str, str] = dict(re.findall(r"^([^:\n]+?)\s*:[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
        minor = fields.get("Device Minor", "")
        excluded = fields.get("GPU Excluded", fields.get("Blacklisted", "No")).lower() == "yes"
        found.append(Gpu(bus, int(minor) if minor.isdigit() else None, fields.get("Model", ""), excluded))
    return tuple(found)


def _modules(kernel: str) -> tuple[Module, ...]:
    dependencies = look.content(f"/lib/modules/{kernel}/modules.dep")
    found = []
    for name in ("nvidia", "nvidia_uvm"):
        folder = f"/sys/module/{name}"
        spelled = name.replace("_", "[-_]")
        on_disk = None
        if dependencies.state is State.PRESENT:
            on_disk = re.search(rf"(^|/){spelled}\.ko[^:\n]*:", dependencies.text, re.MULTILINE) is not None
        loaded = look.node(folder, follow=True).kind is NodeKind.DIRECTORY
        found.append(Module(name, loaded, look.content(f"{folder}/version").text.strip(), on_disk))
    return tuple(found)


def _pci() -> tuple[Pci, ...]:
    """NVIDIA functions (vendor 0x10de) and the driver that has each."""
    found = []
    for address in look.names("/sys/bus/pci/devices")[:512]:
        folder = f"/sys/bus/pci/devices/{address}"
        if look.content(f"{folder}/vendor").text.strip() != "0x10de":
            continue
        try:
            driver = Path(os.readlink(at(f"{folder}/driver"))).name  # noqa: PTH115
        except OSError:
            driver = ""
        kind = look.content(f"{folder}/class").text.strip()
        found.append(Pci(address, look.content(f"{folder}/device").text.strip()[2:], kind, driver))
    return tuple(found)
