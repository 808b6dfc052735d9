"""Single things that were found, as frozen values that travel as JSON: a file, a node, a GPU, a module, a backup.

*Absent*, *unreadable* and *empty* are three values: see `State`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")


def typed(kind: type[T], data: Mapping[str, Any]) -> T:
    """A value from its JSON; `TypeError` for an unknown name or a value of another type than the field's."""
    for name, value in data.items():
        declared = kind.__annotations__.get(name)
        if declared is None or not isinstance(value, _PLAIN.get(str(declared), object)):
            raise TypeError(f"{kind.__name__}.{name} can't be {value!r}")
    return kind(**data)


_PLAIN: Final[Mapping[str, Any]] = {
    "str": str, "int": int, "float": (int, float), "bool": bool, "str | None": (str, NoneType),
    "int | None": (int, NoneType), "bool | None": (bool, NoneType), "float | None": (int, float, NoneType),
}  # fmt: skip
"""Python types of the JSON values that a field may hold, by its annotation."""


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
        return typed(cls, {**data, "state": State(data["state"])})


NOTHING: Final = Content()
"""An absent file."""


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
        return typed(cls, {**data, "kind": NodeKind(data["kind"])})


def pick(nodes: tuple[Node, ...], path: str) -> Node:
    """The node at `path`; one that was not looked at counts as unreadable, never as absent."""
    for node in nodes:
        if node.path == path:
            return node
    # Both jobs list every /dev/nvidia*, so one that is missing there was looked for: unless its folder hid it.
    if path.startswith("/dev/nvidia"):
        folder = path.rpartition("/")[0]
        hidden = next((n for n in nodes if n.path == folder and n.kind is NodeKind.UNREADABLE), None)
        return Node(path, NodeKind.UNREADABLE, why=hidden.why) if hidden else Node(path, NodeKind.ABSENT)
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
    """Of the loaded one (/sys/module/NAME/version)."""
    on_disk: bool | None = None
    disk_version: str = ""
    """Of the file on disk for the running kernel, as modinfo tells it."""
    flavour: str = ""
    """Of the file on disk: `open`, `proprietary`, or "" when it can't be told (modinfo's license)."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Pci:
    """An NVIDIA function on the PCI bus, whether or not a driver has it."""

    address: str
    device: str = ""
    """Device id, four hexadecimal digits."""
    kind: str = ""
    """Class as in sysfs: `0x030000` VGA, `0x030200` 3D controller, `0x068000` NVSwitch bridge."""
    driver: str = ""
    """Driver that is bound, "" when none is."""
    iommu: str = ""
    """Type of its IOMMU group: `DMA`, `DMA-FQ`, `identity`, or "" without an IOMMU."""

    @property
    def display(self) -> bool:
        """Whether it is a GPU."""
        return self.kind.startswith("0x03")

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Backup:
    """A configuration as it was before an edit of ours."""

    path: str
    made_s: float
    """Seconds since the epoch."""
    before: str
    """SHA-1 of the backup itself."""
    after: str = ""
    """SHA-1 of what the edit wrote; "" when that was not noted (a backup of an older version)."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
