"""What was found on the host and in the container, as frozen values that travel as JSON.

*Absent*, *unreadable* and *empty* are three values: see `State`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from inventory.errors import CannotLook


class State(StrEnum):
    """Whether a file could be read. A present file may be empty."""

    PRESENT = "present"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Content:
    """A file's text, one character per byte; `why` holds the errno name when it is unreadable."""

    state: State = State.ABSENT
    text: str = ""
    why: str = ""

    def to_json(self) -> dict[str, str]:
        return {"state": self.state.value, "text": self.text, "why": self.why}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(State(data["state"]), str(data["text"]), str(data["why"]))


class NodeKind(StrEnum):
    """What stands at a path of a device node."""

    ABSENT = "absent"
    CHAR = "char"
    BLOCK = "block"
    REGULAR = "regular"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Node:
    """One path below /dev. `opened` is "" when open(O_RDWR) worked, else the errno name; None: not tried."""

    path: str
    kind: NodeKind
    major: int = 0
    minor: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    changed_s: float = 0.0
    """Time of the node's last status change, seconds since the epoch."""
    opened: str | None = None
    why: str = ""

    @property
    def number(self) -> tuple[int, int]:
        return self.major, self.minor

    def __str__(self) -> str:
        if self.kind is NodeKind.CHAR:
            return f"{self.path} {self.major}:{self.minor} mode {self.mode:04o} owner {self.uid}:{self.gid}"
        return f"{self.path} is {self.kind}" + (f" ({self.why})" if self.why else "")

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"kind": self.kind.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "kind": NodeKind(data["kind"])})


def _pick(nodes: tuple[Node, ...], path: str) -> Node:
    for node in nodes:
        if node.path == path:
            return node
    # Both jobs list every /dev/nvidia*, so one that is missing there was looked for.
    if path.startswith("/dev/nvidia"):
        return Node(path, NodeKind.ABSENT)
    return Node(path, NodeKind.UNREADABLE, why="not looked at")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One folder of /proc/driver/nvidia/gpus; `minor` is None when the driver does not say it."""

    bus: str
    minor: int | None
    model: str = ""
    excluded: bool = False

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel module: loaded or not, its version, and whether a file for this kernel exists (None: unknown)."""

    name: str
    loaded: bool
    version: str = ""
    on_disk: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


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
    foreign: tuple[tuple[str, str], ...] = ()
    """NVIDIA display devices bound to another driver: PCI address and driver (nouveau, vfio-pci)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Facts of a newer version, kept as they are."""

    def node(self, path: str) -> Node:
        """The node at `path`; one that was not looked at counts as unreadable, never as absent."""
        return _pick(self.nodes, path)

    def module(self, name: str) -> Module | None:
        return next((module for module in self.modules if module.name == name), None)

    def to_json(self) -> dict[str, Any]:
        plain = ("vmid", "boot_id", "kernel", "now_s", "uptime_s", "conf_digest", "conf_path", "modprobe")
        return {
            **self.extra,
            **{name: getattr(self, name) for name in plain},
            **{name: getattr(self, name).to_json() for name in ("proc_devices", "driver", "params", "conf")},
            **{name: [x.to_json() for x in getattr(self, name)] for name in ("nodes", "gpus", "modules")},
            "foreign": [list(pair) for pair in self.foreign],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises `CannotLook` when it isn't what `to_json` writes."""
        try:
            rest = dict(data)
            values: dict[str, Any] = {
                "vmid": int(rest.pop("vmid")),
                **{
                    name: str(rest.pop(name))
                    for name in ("boot_id", "kernel", "conf_digest", "conf_path", "modprobe")
                },
                **{name: float(rest.pop(name)) for name in ("now_s", "uptime_s")},
                **{
                    name: Content.from_json(rest.pop(name))
                    for name in ("proc_devices", "driver", "params", "conf")
                },
                "nodes": tuple(Node.from_json(item) for item in rest.pop("nodes")),
                "gpus": tuple(Gpu(**item) for item in rest.pop("gpus")),
                "modules": tuple(Module(**item) for item in rest.pop("modules")),
                "foreign": tuple((str(a), str(b)) for a, b in rest.pop("foreign")),
            }
            return cls(**values, extra=rest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CannotLook(f"these are not host facts: {type(error).__name__} {error}") from error


@dataclass(frozen=True, slots=True)
class CtFacts:
    """A running container seen from inside."""

    boot_id: str
    nodes: tuple[Node, ...]
    proc_devices: Content
    uid_map: Content
    libraries: tuple[str, ...] = ()
    """File names of the driver's libraries that carry a full version, for example libcuda.so.595.45.04."""

    def node(self, path: str) -> Node:
        """The node at `path`; one that was not looked at counts as unreadable, never as absent."""
        return _pick(self.nodes, path)

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
