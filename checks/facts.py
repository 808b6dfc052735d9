"""Everything the judges may look at: what the probes read, what was expected, and plain questions about both."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from checks.probes.lines import NOTHING, Ending, Reading, Reads
from checks.report import Finding, Status
from inventory.errors import UsageError

LEVELS: Final = ("quick", "standard", "full")

NOT_SUPPORTED: Final = frozenset({3, 13})
"""NVML NOT_SUPPORTED and FUNCTION_NOT_FOUND: this card or driver has no such thing, which is no fault."""
GONE: Final = frozenset({15, 16})
"""NVML GPU_IS_LOST and RESET_REQUIRED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What the inventory or the command line says must be true; None or empty: no expectation."""

    gpus: int | None = None
    name: str = ""
    uuids: tuple[str, ...] = ()
    power_limit_w: float | None = None
    driver: str = ""
    shm_free_min_mib: int = 1024

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Expect:
        """Raises `UsageError` for an unknown key or a value of the wrong kind."""
        kinds: dict[str, type | tuple[type, ...]] = {
            "gpus": int,
            "name": str,
            "uuids": (list, tuple),
            "power_limit_w": (int, float),
            "driver": str,
            "shm_free_min_mib": int,
        }
        given = {key: value for key, value in data.items() if value is not None}
        for key, value in given.items():
            if key not in kinds:
                raise UsageError(f"unknown expectation {key!r}", hint=f"known ones: {', '.join(kinds)}")
            if not isinstance(value, kinds[key]) or isinstance(value, bool):
                raise UsageError(f"expectation {key}={value!r} has the wrong type")
        if "uuids" in given:
            given["uuids"] = tuple(str(uuid) for uuid in given["uuids"])
        return Expect(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One device node as the devices probe saw it."""

    name: str
    kind: str
    """`char`, `regular`, `directory`, `block`, `other`, `absent` or `unreadable`."""
    open: str
    """`ok`, `not tried`, or an errno name such as `EPERM`."""
    major: int | None = None
    minor: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int = 0

    @property
    def driver(self) -> str:
        """The kernel driver that must own it: `nvidia` or `nvidia-uvm`."""
        return "nvidia-uvm" if self.name.startswith("nvidia-uvm") else "nvidia"

    @property
    def is_card(self) -> bool:
        return re.fullmatch(r"nvidia\d+", self.name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One look at a machine. NVML index, CUDA ordinal and /dev minor are three numberings; UUIDs connect them."""

    level: str = "standard"
    expect: Expect = field(default_factory=Expect)
    devices: Reads = NOTHING
    nvml: Reads = NOTHING
    cuda: Reads = NOTHING
    use: Reads = NOTHING
    """The second CUDA probe, with contexts; only at level full."""
    busy: tuple[int, ...] = ()
    """NVML indices that serve somebody: never given a context."""
    lab: bool = False

    def nodes(self) -> tuple[Node, ...]:
        """Every node the probe looked at, control nodes first."""
        names = self.devices.value("names", otherwise=[])
        seen = ((name, self.devices.value(f"node:{name}")) for name in names)
        return tuple(Node(name=name, **value) for name, value in seen if value is not None)

    def node(self, name: str) -> Node | None:
        return next((node for node in self.nodes() if node.name == name), None)

    def majors(self) -> dict[str, int] | None:
        """Character driver name -> major from /proc/devices; None when it could not be read.

        Newer drivers register `nvidia`, older ones `nvidia-frontend`; both come out as `nvidia`.
        """
        text = self.devices.value("proc_devices")
        return None if text is None else majors(text)

    def kernel_driver(self) -> str:
        """Version of the loaded kernel module, or empty."""
        return (
            kernel_version(self.devices.value("driver_version") or "")
            or (self.devices.value("module_version") or "").strip()
        )

    def privileged(self) -> bool | None:
        """Whether root here is root of the host; None when /proc/self/uid_map does not say.

        A map of a single id is somebody's own namespace, not a Proxmox container: it says nothing here.
        """
        words = str(self.devices.value("uid_map") or "").split()
        if len(words) < 3 or words[2] == "1":
            return None
        return words[:3] == ["0", "0", "4294967295"]

    def gpus(self) -> tuple[int, ...]:
        """NVML indices."""
        return tuple(range(int(self.nvml.value("count", otherwise=0) or 0)))

    def uuid(self, gpu: int) -> str:
        return str(self.nvml.value("uuid", gpu, ""))

    def label(self, gpu: int) -> str:
        """`GPU 2 (0000:c1:00.0)`: the index NVML uses, with what a hand can find."""
        bus = str(self.nvml.value("bus_id", gpu, ""))
        return f"GPU {gpu} ({short_bus(bus)})" if bus else f"GPU {gpu}"

    def ordinals(self) -> tuple[int, ...]:
        """CUDA ordinals."""
        return tuple(range(int(self.cuda.value("count", otherwise=0) or 0)))

    def nvml_index(self, ordinal: int) -> int | None:
        """The NVML index of a CUDA ordinal: by UUID, then by bus id; None when NVML does not know it."""
        for reads in (self.cuda, self.use):
            uuid, bus = reads.value("uuid", ordinal, ""), short_bus(str(reads.value("bus_id", ordinal, "")))
            for gpu in self.gpus():
                if uuid and self.uuid(gpu) == uuid:
                    return gpu
            for gpu in self.gpus():
                if bus and short_bus(str(self.nvml.value("bus_id", gpu, ""))) == bus:
                    return gpu
        return None

    def lost(self, gpu: int) -> bool:
        """Whether any call on this GPU said it is gone or needs a reset."""
        return any(r.rc in GONE for (_, index), r in self.nvml.readings.items() if index == gpu)

    def hang(self, reads: Reads, gpu: int | None) -> Ending | None:
        """The hang or crash on this GPU (None: outside any GPU)."""
        return next((e for e in reads.trouble if e.gpu == gpu and e.how in ("hung", "crashed")), None)


def majors(text: str) -> dict[str, int]:
    """Parse /proc/devices: names of character drivers to majors."""
    found: dict[str, int] = {}
    for line in text.partition("Block devices")[0].splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit():
            found.setdefault(words[1], int(words[0]))
    for older in ("nvidia-frontend", "nvidiactl"):
        if older in found:
            found.setdefault("nvidia", found[older])
    return found


def kernel_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version, for example `595.45.04`; empty when there is none."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text + " ")
    return found[1] if found else ""


def short_bus(bus_id: str) -> str:
    """`0000:c1:00.0` from any of NVML's, CUDA's and the kernel's spellings; empty stays empty."""
    parts = bus_id.lower().split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    if len(parts) != 3:
        return bus_id.lower()
    try:
        return f"{int(parts[0], 16):04x}:{parts[1]}:{parts[2]}"
    except ValueError:
        return bus_id.lower()


def ended(ending: Ending) -> str:
    """`nvmlInit did not return on GPU 2 for 15 s`."""
    where = f" on GPU {ending.gpu}" if ending.gpu is not None else ""
    if ending.how == "hung":
        stuck = f"; process {ending.pid} cannot be killed (state D)" if ending.pid else ""
        return f"{ending.call} did not return{where} for {ending.seconds:g} s{stuck}"
    return f"{ending.call}{where} ended the probe: {ending.detail}"


Judge = Callable[[int, Any], Finding | tuple[Finding, ...]]


def each_gpu(facts: Facts, check: str, key: str, what: str, judge: Judge) -> tuple[Finding, ...]:
    """Apply `judge(gpu, value)` to every GPU's NVML reading `key`; everything that is not a value is told apart.

    Not supported is `n/a`; a lost GPU or a hang before this reading is explained by that finding; any other
    return code is unknown. `what` names the reading in such summaries.
    """
    findings: list[Finding] = []
    for gpu in facts.gpus():
        reading = facts.nvml.get(key, gpu)
        if reading is not None and reading.ok:
            judged = judge(gpu, reading.value)
            findings.extend((judged,) if isinstance(judged, Finding) else judged)
        else:
            findings.append(_unread(facts, check, gpu, what, reading))
    if not facts.gpus():
        findings.append(Finding(id=check, status=Status.UNKNOWN, summary=f"{what}: no GPU could be asked"))
    return tuple(findings)


def _unread(facts: Facts, check: str, gpu: int, what: str, reading: Reading | None) -> Finding:
    label = facts.label(gpu)
    if reading is not None and reading.rc in NOT_SUPPORTED:
        summary = f"{label}: {what} is not supported by this card or driver"
        return Finding(id=check, status=Status.NOT_APPLICABLE, gpu=gpu, summary=summary)
    text = reading.text if reading is not None else "the probe did not get there"
    return Finding(id=check, status=Status.UNKNOWN, gpu=gpu, summary=f"{label}: {what} could not be read: {text}")
