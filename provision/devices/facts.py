"""What was found on the host and in the container, as frozen values that travel as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from inventory.errors import CannotLook
from provision.devices.values import NOTHING, Backup, Content, Gpu, Module, Node, NodeKind, Pci, State, pick, typed

__all__ = [
    "Backup", "Content", "CtFacts", "Gpu", "GuestFacts", "HostFacts", "Module", "Node", "NodeKind", "Pci", "State",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A Proxmox host as far as one container's devices depend on it."""

    vmid: int
    boot_id: str
    kernel: str
    now_s: float
    """The host's clock, seconds since the epoch."""
    uptime_s: float
    proc_devices: Content
    driver: Content
    """/proc/driver/nvidia/version."""
    params: Content
    """/proc/driver/nvidia/params."""
    conf: Content
    conf_digest: str
    conf_path: str
    nodes: tuple[Node, ...] = ()
    """/dev/nvidia*, /dev/nvidia-caps/*, and every source that the configuration names."""
    gpus: tuple[Gpu, ...] = ()
    modules: tuple[Module, ...] = ()
    modprobe: str = ""
    """Path of nvidia-modprobe, empty when it is not installed."""
    pci: tuple[Pci, ...] = ()
    """Every NVIDIA function of the bus."""
    acs_redirect: tuple[str, ...] = ()
    """PCI bridges above a GPU whose ACS redirects peer-to-peer requests to the root."""
    conf_changed_s: float = 0.0
    """When the configuration was last written, seconds since the epoch."""
    owners: tuple[str, ...] = ()
    """Nodes of the cluster whose folder holds this VMID's configuration."""
    nodename: str = ""
    """This node's name in the cluster; "" when it can't be told."""
    quorate: bool | None = None
    """Whether /etc/pve can be written; None when it can't be told."""
    pve_manager: str = ""
    """Version of the package pve-manager, for example `9.2.11`."""
    pve_container: str = ""
    """Version of the package pve-container; `dev[n]` came with 5.0.7, hot-plug of a new one with 6.0.4."""
    dkms: Content = NOTHING
    """What `dkms status` printed; absent: dkms is not installed."""
    headers: bool | None = None
    """Whether the headers of the running kernel are installed."""
    secure_boot: bool | None = None
    kernel_log: Content = NOTHING
    """Lines about the NVIDIA driver in the kernel's log of this boot, the last 60."""
    cmdline: Content = NOTHING
    """/proc/cmdline."""
    backups: tuple[Backup, ...] = ()
    """Of this container's configuration, the newest first."""
    boot_unit: Content = NOTHING
    """Our unit that makes the nodes before Proxmox starts its guests; absent: not installed."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Facts of a newer version, kept as they are."""

    def node(self, path: str) -> Node:
        """The node at `path`; one that was not looked at counts as unreadable, never as absent."""
        return pick(self.nodes, path)

    def module(self, name: str) -> Module | None:
        return next((module for module in self.modules if module.name == name), None)

    @property
    def foreign(self) -> tuple[tuple[str, str], ...]:
        """GPUs bound to another driver than nvidia (nouveau, vfio-pci): PCI address and driver."""
        return tuple((f.address, f.driver) for f in self.pci if f.display and f.driver not in ("", "nvidia"))

    def to_json(self) -> dict[str, Any]:
        return {
            **self.extra,
            **{name: getattr(self, name) for name in (*_TEXTS, *_NUMBERS, *_ANSWERS)},
            **{name: list(getattr(self, name)) for name in _WORDS},
            **{name: getattr(self, name).to_json() for name in _CONTENTS},
            **{name: [x.to_json() for x in getattr(self, name)] for name in _LISTS},
            "vmid": self.vmid,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises `CannotLook` when it isn't what `to_json` writes; what an older version did not know is left empty."""
        try:
            rest = dict(data)
            values: dict[str, Any] = {"vmid": int(rest.pop("vmid"))}
            for name in [name for name in cls.__slots__ if name in rest and name != "extra"]:
                values[name] = _read(name, rest.pop(name))
            return cls(**values, extra=rest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CannotLook(f"these are not host facts: {type(error).__name__} {error}") from error


_TEXTS: Final = (
    "boot_id", "kernel", "conf_digest", "conf_path", "modprobe", "nodename", "pve_manager", "pve_container",
)  # fmt: skip
_NUMBERS: Final = ("now_s", "uptime_s", "conf_changed_s")
_ANSWERS: Final = ("quorate", "headers", "secure_boot")
_WORDS: Final = ("acs_redirect", "owners")
_CONTENTS: Final = (
    "proc_devices", "driver", "params", "conf", "dkms", "kernel_log", "cmdline", "boot_unit",
)  # fmt: skip
_LISTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "nodes": Node.from_json,
    **{name: partial(typed, kind) for name, kind in
       (("gpus", Gpu), ("modules", Module), ("pci", Pci), ("backups", Backup))},
}  # fmt: skip


def _read(name: str, value: Any) -> Any:
    """One field of `HostFacts` from its JSON."""
    if name in _TEXTS:
        return str(value)
    if name in _NUMBERS:
        return float(value)
    if name in _ANSWERS:
        return None if value is None else bool(value)
    if name in _WORDS:
        return tuple(str(word) for word in value)
    if name in _CONTENTS:
        return Content.from_json(value)
    return tuple(_LISTS[name](item) for item in value)


@dataclass(frozen=True, slots=True)
class CtFacts:
    """A running container seen from inside."""

    boot_id: str
    """Of the container's start: LXC gives each start an id of its own (lxc_setup_boot_id)."""
    nodes: tuple[Node, ...]
    proc_devices: Content
    uid_map: Content
    libraries: tuple[str, ...] = ()
    """File names of the driver's libraries that carry a full version, for example libcuda.so.595.45.04."""

    def node(self, path: str) -> Node:
        """The node at `path`; one that was not looked at counts as unreadable, never as absent."""
        return pick(self.nodes, path)

    def to_json(self) -> dict[str, Any]:
        return {
            "boot_id": self.boot_id,
            "nodes": [node.to_json() for node in self.nodes],
            "proc_devices": self.proc_devices.to_json(),
            "uid_map": self.uid_map.to_json(),
            "libraries": list(self.libraries),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises `CannotLook` when it isn't what `to_json` writes."""
        try:
            return cls(
                str(data["boot_id"]),
                tuple(Node.from_json(item) for item in data["nodes"]),
                Content.from_json(data["proc_devices"]),
                Content.from_json(data["uid_map"]),
                tuple(str(name) for name in data["libraries"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CannotLook(f"these are not container facts: {type(error).__name__} {error}") from error


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """A container and its node as the Proxmox API tells it."""

    node: str
    status: str
    """`running` or `stopped`."""
    lock: str = ""
    ha: bool = False
    """Whether the high-availability manager starts and stops it."""
    uptime_s: float = 0.0
    quorate: bool | None = None
    """None: the API can't say (a single node)."""
    startall_s: float | None = None
    """When Proxmox began to start its guests after boot, seconds since the epoch; None when it isn't doing so."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises `CannotLook` when it isn't what `to_json` writes."""
        try:
            return typed(cls, data)
        except (TypeError, AttributeError) as error:
            raise CannotLook(f"these are not facts of the API: {error}") from error
