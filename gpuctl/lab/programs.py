"""Programs of the lab host: the driver's here, the others where their subject is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from gpuctl.lab import container, pct, plain, software, units
from gpuctl.lab.control import Call
from gpuctl.lab.kernel import GPUS
from gpuctl.lab.machine import Node

_VERSION: Final = f"pve-manager/{software.PACKAGES['pve-manager']}/lab (running kernel: 6.17.2-1-pve)"


def run(call: Call, node: Node) -> int:
    """Run one program; exit status as the real one gives."""
    handler = _PROGRAMS.get(call.program)
    if handler is None:
        call.error(f"{call.program}: not a program of the lab\n")
        return 127
    if node.isolation == "plain":
        call.words = plain.take_back(call.words, node.lab.host_rootfs)
    return handler(call, node)


def _nvidia_modprobe(call: Call, node: Node) -> int:
    """`-u` loads nvidia-uvm; `-c N` makes nodes: N of nvidiaN, with -u the uvm nodes; `-m` nvidia-modeset.

    Makes no node, and says nothing, where ModifyDeviceFiles is 0: as the real one does.
    """
    words, minors, uvm, modeset = list(call.words), list[int](), False, False
    while words:
        word = words.pop(0)
        match word:
            case "-u" | "--unified-memory":
                uvm = True
            case "-m" | "--modeset":
                modeset = True
            case "-c" | "--create-nvidia-device-file":
                if not words or not words[0].isdigit():
                    call.error(f"nvidia-modprobe: option '{word}' needs a number\n")
                    return 1
                minors.append(int(words.pop(0)))
            case "-f":
                words[:1] = []
            case "-l" | "-s" | "-v" | "--nvlink" | "--nvswitch":
                pass
            case _:
                if word.startswith("-c") and word[2:].isdigit():
                    minors.append(int(word[2:]))
                else:
                    call.error(f'nvidia-modprobe: unrecognized option: "{word}"\n')
                    return 1
    if uvm:
        node.kernel.load_uvm()
        if minors:
            node.kernel.make_uvm_nodes()
    elif modeset:
        node.kernel.make_gpu_node(254)
    else:
        for minor in minors:
            if minor < GPUS or minor == 255:
                node.kernel.make_gpu_node(minor)
    return 0


def _modprobe(call: Call, node: Node) -> int:
    words = [word for word in call.words if not word.startswith("-")]
    remove = any(word in {"-r", "--remove"} for word in call.words)
    for word in words:
        name = word.replace("-", "_")
        if name == "nvidia_uvm":
            if remove:
                node.kernel.unload_uvm()
            else:
                node.kernel.load_uvm()
        elif name not in {"nvidia", "nvidia_modeset"}:
            call.error(
                f"modprobe: FATAL: Module {word} not found in directory /lib/modules/{os.uname().release}\n"
            )
            return 1
    return 0


def _lsmod(call: Call, node: Node) -> int:
    call.out("Module                  Size  Used by\n")
    call.out("".join(f"{name:<19} {1_900_544:>9}  0\n" for name in reversed(node.kernel.modules())))
    return 0


def _lxc_cgroup(call: Call, node: Node) -> int:
    """`lxc-cgroup -n VMID devices.allow|devices.deny RULE`; level 1 has the real program instead."""
    match call.words:
        case ("-n", name, key, value) if key in {"devices.allow", "devices.deny"}:
            pass
        case _:
            call.error("lxc-cgroup: could not parse command line\n")
            return 1
    where = f"lxc-cgroup: {name}: ../src/lxc/tools/lxc_cgroup.c: main:"
    if not name.isdigit() or node.view(int(name)) is None:
        call.error(f"{where} 102 '/var/lib/lxc:{name}' is not running\n")
        return 1
    if not container.live_rule(node.lab.ct_rootfs(int(name)), key.removeprefix("devices."), value):
        call.error(f"{where} 111 Failed to assign '{value}' value to '{key}' for '{name}'\n")
        return 1
    return 0


def _pveversion(call: Call, _: Node) -> int:
    call.out(f"{_VERSION}\n")
    return 0


_PROGRAMS: Final[dict[str, Callable[[Call, Node], int]]] = {
    "pct": pct.run,
    "nvidia-modprobe": _nvidia_modprobe,
    "modprobe": _modprobe,
    "lsmod": _lsmod,
    "pveversion": _pveversion,
    "lxc-cgroup": _lxc_cgroup,
    "dkms": software.dkms,
    "modinfo": software.modinfo,
    "dmesg": software.dmesg,
    "dpkg-query": software.dpkg_query,
    "systemctl": units.systemctl,
}
