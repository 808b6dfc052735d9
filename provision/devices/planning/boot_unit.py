"""The lasting fix for the race at boot: a systemd unit that makes NVIDIA's nodes before Proxmox starts its guests.

pve-guests.service (pve-manager 9.2) starts the containers and has no order towards the driver's nodes, which appear
only when someone asks for them. HA starts its own by pve-ha-lrm.service, which comes earlier still, so the unit is
before both.

It is wanted by multi-user.target, as pve-guests.service is: then both are in the transaction of every boot, and
`Before=` orders them. Wanted by pve-guests.service alone it would be missing where only HA starts guests.
Being wanted and not required, a unit that fails keeps no other guest from starting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from inventory.errors import ConfigError
from provision.devices.planning import modprobe
from provision.devices.planning.modprobe import Argv, Calls

if TYPE_CHECKING:
    # Only types: on the host, where the unit is written, they and what they import would cost time for nothing.
    from provision.devices.facts import HostFacts
    from provision.devices.wanted import Want

NAME: Final = "gpuctl-devices.service"
PATH: Final = f"/etc/systemd/system/{NAME}"
PROGRAM: Final = "/usr/bin/nvidia-modprobe"
"""Where Debian's package and NVIDIA's installer put it."""
START_LIMIT_S: Final = 180
"""Loading the driver with eight GPUs takes up to a minute; guests wait that long and no longer."""
_MARK: Final = "# Made by gpuctl"
_PROGRAM: Final = re.compile(r"/(?:[A-Za-z0-9_+.-]+/)*nvidia-modprobe")
_MIG: Final = {1: "mig/config", 2: "mig/monitor"}
_CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"


def argvs(host: HostFacts, nodes: Iterable[Want]) -> tuple[Argv, ...]:
    """The calls that make these nodes at boot, with the absolute path that nvidia-modprobe has on this host."""
    calls = Calls()
    for node in nodes:
        calls |= _call_for(node)
    if calls.gpus:
        calls |= Calls(gpus=frozenset({255}))
    program = host.modprobe if _PROGRAM.fullmatch(host.modprobe) else PROGRAM
    return calls.argvs(program)


def _call_for(node: Want) -> Calls:
    match node.driver:
        case "nvidia" if node.minor == 254:
            return Calls(modeset=True)
        case "nvidia":
            return Calls(gpus=frozenset({node.minor}))
        case "nvidia-uvm":
            return Calls(uvm=True)
        case "nvidia-nvlink":
            return Calls(nvlink=True)
        case "nvidia-nvswitch":
            return Calls(switches=frozenset({node.minor}))
        case "nvidia-caps" if node.minor in _MIG:
            return Calls(capabilities=frozenset({f"{_CAPABILITIES}/{_MIG[node.minor]}"}))
        case _:
            return Calls()


def left_out(nodes: Iterable[Want]) -> tuple[str, ...]:
    """NVIDIA's nodes that no such call makes, a sentence each; `argvs` leaves them out."""
    found = []
    for node in nodes:
        if not node.driver or _call_for(node) != Calls():
            continue
        how = "the file of its capability is not known here"
        if node.driver == "nvidia-caps-imex-channels":
            how = "nvidia-modprobe makes no IMEX channels"
            if node.minor == 0:
                how += "; the driver makes channel0 with `options nvidia NVreg_CreateImexChannel0=1`"
        found.append(f"{node.path} is not made at boot: {how}")
    return tuple(found)


def unit_text(argvs: Iterable[Argv]) -> str:
    """The text of the unit that makes what these calls make, each node once, those that CUDA needs first.

    Only the line for modeset may fail unseen: CUDA works without it. Raises `ConfigError` for a call that is none
    of nvidia-modprobe, or no call at all.
    """
    calls, program = Calls(), ""
    for argv in argvs:
        if not argv or not _PROGRAM.fullmatch(argv[0]):
            raise ConfigError(f"{' '.join(argv)!r} does not begin with the absolute path of nvidia-modprobe")
        calls, program = calls | modprobe.read(argv[1:]), argv[0]
    if calls == Calls():
        raise ConfigError("the boot unit would make no node", hint="see gpus and devices in the inventory")
    lines = [f"ExecStart={'-' if '-m' in argv else ''}{' '.join(argv)}" for argv in calls.argvs(program)]
    return "\n".join(
        [
            f"{_MARK}: it makes NVIDIA's device nodes before Proxmox starts its guests.",
            "# Without it a container may start before /dev/nvidia-uvm exists and stay without it.",
            "# To remove it: gpuctl devices boot-unit HOST --remove",
            f"# or by hand: systemctl disable {NAME}; rm {PATH}; systemctl daemon-reload",
            "[Unit]",
            "Description=NVIDIA device nodes for containers, before the guests start (gpuctl)",
            "Documentation=man:nvidia-modprobe(1)",
            "After=local-fs.target systemd-modules-load.service systemd-udevd.service",
            "Before=pve-guests.service pve-ha-lrm.service",
            "",
            "[Service]",
            "Type=oneshot",
            "RemainAfterExit=yes",
            f"TimeoutStartSec={START_LIMIT_S}",
            *lines,
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def is_ours(text: str) -> bool:
    """Whether a unit's text was made by `unit_text`."""
    return text.startswith(_MARK)


def calls_in(text: str) -> tuple[Argv, ...]:
    """The calls in a unit's text; `unit_text` checks them."""
    lines = (line.removeprefix("ExecStart=") for line in text.splitlines() if line.startswith("ExecStart="))
    return tuple(tuple(line.removeprefix("-").split()) for line in lines)


def merged(old: str, new: str) -> str:
    """The unit that makes what both texts make, for a host with several containers. `old` may be empty."""
    return unit_text((*calls_in(old), *calls_in(new)))
