"""Which device nodes a container needs, under which numbers, and whether its configuration lets it have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from inventory.model import Container
from provision.devices import procdev
from provision.devices.config import conf, rules
from provision.devices.facts import HostFacts, NodeKind, State

_FIXED: Final = {"nvidiactl": 255, "nvidia-modeset": 254}
_NAMED: Final = {
    "nvidia-uvm": ("nvidia-uvm", 0),
    "nvidia-uvm-tools": ("nvidia-uvm", 1),
    "nvidia-nvlink": ("nvidia-nvlink", 0),
    "nvidia-nvswitchctl": ("nvidia-nvswitch", 255),
}
_NUMBERED: Final = (
    (re.compile(r"nvidia([0-9]{1,3})"), "nvidia"),
    (re.compile(r"nvidia-nvswitch([0-9]{1,3})"), "nvidia-nvswitch"),
    (re.compile(r"nvidia-caps/nvidia-cap([0-9]{1,7})"), "nvidia-caps"),
    (re.compile(r"nvidia-caps-imex-channels/channel([0-9]{1,7})"), "nvidia-caps-imex-channels"),
)


@dataclass(frozen=True, slots=True)
class Want:
    """A device node: its path, the driver that owns it ("" when it isn't NVIDIA's) and its minor."""

    path: str
    driver: str
    minor: int

    @property
    def name(self) -> str:
        return self.path.removeprefix("/dev/")


@lru_cache(maxsize=4096)
def want(name: str) -> Want:
    """What a name below /dev means."""
    path = f"/dev/{name.removeprefix('/dev/')}"
    name = path.removeprefix("/dev/")
    if name in _FIXED:
        return Want(path, "nvidia", _FIXED[name])
    if name in _NAMED:
        return Want(path, *_NAMED[name])
    for pattern, driver in _NUMBERED:
        if match := pattern.fullmatch(name):
            return Want(path, driver, int(match[1]))
    return Want(path, "", 0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The nodes a container needs; `problem` says why its GPUs can't be told."""

    nodes: tuple[Want, ...]
    problem: str = ""
    hint: str = ""
    too_few: bool = False
    """Whether the problem is that the host's driver shows fewer GPUs than are expected."""


def passed_paths(view: conf.View) -> dict[str, str]:
    """Paths that a configuration brings into the container, and by which line: `dev2` or `lxc.mount.entry`."""
    return _passed(view, conf.devices(view))


def _passed(view: conf.View, devices: Iterable[conf.Device]) -> dict[str, str]:
    found = dict.fromkeys(mounted(view), rules.MOUNT)
    for device in devices:
        if device.spec is not None:
            found[rules.plain(device.spec.path)] = f"dev{device.index}"
    return found


def mounted(view: conf.View) -> tuple[str, ...]:
    """Sources on the host of a section's bind mounts."""
    return tuple(path for line in view.raw if line.key == rules.MOUNT and (path := rules.bound(line.value)))


def how_passed(path: str, passed: Mapping[str, str]) -> str:
    """`dev2`, `lxc.mount.entry` (of the node or of a folder it is in), or "" when it isn't passed in."""
    if path in passed:
        return passed[path]
    parts = path.split("/")
    folders = ("/".join(parts[:n]) for n in range(len(parts) - 1, 1, -1))
    return next((rules.MOUNT for folder in folders if passed.get(folder) == rules.MOUNT), "")


def wanted(
    container: Container, host: HostFacts, view: conf.View, passed: Mapping[str, str] | None = None
) -> Wanted:
    """The nodes that the inventory asks for; which GPUs, when not all, is read from the configuration.

    `passed`: `passed_paths(view)`, where it's known already.
    """
    if passed is None:
        passed = passed_paths(view)
    extra = tuple(want(name) for name in container.devices.wanted)
    named = sorted(
        {item.minor for path in passed if _is_gpu(item := want(path.removeprefix("/dev/")))}
        | {item.minor for item in extra if _is_gpu(item)}
    )
    count = container.gpus.count
    there = sorted(gpu.minor for gpu in host.gpus if gpu.minor is not None and not gpu.excluded)
    problem = hint = ""
    if there and count > len(there):
        problem = f"the host's driver shows {len(there)} GPUs, {count} are expected"
        hint = "see `dmesg | grep -i nvrm` on the host; excluded or failed GPUs are missing from its list"
        minors = there
    elif there and count == len(there):
        minors = there
    elif len(named) >= count:
        minors = named
    elif not there:
        minors = sorted({*named, *range(count)})[: max(count, len(named))]
    else:
        problem = f"{count} of the host's {len(there)} GPUs are expected, but {len(named)} are passed in"
        hint = "which ones to add is for you to say: name them in `devices.wanted`, for example nvidia0"
        minors = named
    gpus = tuple(want(f"nvidia{minor}") for minor in minors)
    return Wanted(tuple(dict.fromkeys((*gpus, *extra))), problem, hint, bool(there) and count > len(there))


def _is_gpu(item: Want) -> bool:
    return item.driver == "nvidia" and item.name.removeprefix("nvidia").isdigit()


@dataclass(frozen=True, slots=True)
class Drivers:
    """The host's character drivers: names by major, and the majors of NVIDIA's own."""

    names: Mapping[int, tuple[str, ...]]
    majors: Mapping[str, int]

    def number(self, item: Want, host: HostFacts) -> tuple[int, int] | None:
        """major:minor that a node must have; None while its driver isn't loaded."""
        if item.driver:
            major = self.majors.get(item.driver)
            return None if major is None else (major, item.minor)
        node = host.node(item.path)
        return node.number if node.kind is NodeKind.CHAR else None


def drivers(host: HostFacts) -> Drivers | None:
    """The drivers in /proc/devices; None when it could not be read."""
    return _drivers(host.proc_devices.text) if host.proc_devices.state is State.PRESENT else None


@lru_cache(maxsize=16)
def _drivers(text: str) -> Drivers:
    names = procdev.parse(text)
    return Drivers(names, procdev.majors(names))


@dataclass(frozen=True, slots=True)
class Access:
    """How a configuration treats one wanted node."""

    item: Want
    number: tuple[int, int]
    how: str
    """`dev2`, `lxc.mount.entry`, or "" when it isn't passed in."""
    permitted: bool
    """Whether the container's device rules let it be opened."""

    @property
    def good(self) -> bool:
        return bool(self.how) and self.permitted


@dataclass(frozen=True, slots=True)
class Setup:
    """What one section says about devices, read once: see `setup`."""

    view: conf.View
    devices: tuple[conf.Device, ...]
    passed: Mapping[str, str]
    """As `passed_paths` gives it."""
    program: rules.Program
    free: bool
    """Whether Proxmox allows all devices, so that rules have no effect and access is by file mode."""

    def access(self, items: Iterable[Want], known: Drivers, host: HostFacts) -> tuple[Access, ...]:
        """Every wanted node whose driver is loaded, judged by this section."""
        found = []
        for item in items:
            number = known.number(item, host)
            if number is None:
                continue
            how = how_passed(item.path, self.passed)
            spec = rules.read_device(self.view.values[how])[0] if how in self.view.values else None
            if spec is not None:
                permitted = not spec.deny_write  # CUDA opens every node to read and write
            else:
                permitted = self.free or self.program.allows(*number, item.path)
            found.append(Access(item, number, how, permitted))
        return tuple(found)


def setup(view: conf.View) -> Setup:
    """What a section says about devices."""
    devices = conf.devices(view)
    program = rules.program((line.key, line.value) for line in view.raw)
    return Setup(view, devices, _passed(view, devices), program, conf.unprivileged(view))


def access(view: conf.View, items: Iterable[Want], known: Drivers, host: HostFacts) -> tuple[Access, ...]:
    """Every wanted node whose driver is loaded, judged by the lines of one section."""
    return setup(view).access(items, known, host)


def foreign_majors(host: HostFacts) -> frozenset[int]:
    """Majors of the other devices that the configuration passes in: a rule for one of them is explained."""
    return frozenset(
        node.major for node in host.nodes if node.kind is NodeKind.CHAR and not node.path.startswith("/dev/nvidia")
    )
