"""What to do on the host so that the driver is loaded and every node is there, as a pure function."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from inventory.errors import CannotLook, Failed, GpuctlError
from inventory.model import Container
from provision.devices import conf, plan, wanted
from provision.devices.facts import HostFacts, Node, NodeKind

Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """nvidia-modprobe calls that belong together, and why."""

    argvs: tuple[Argv, ...]
    why: str

    @property
    def line(self) -> str:
        return f"run {' and '.join(' '.join(argv) for argv in self.argvs)} on the host: {self.why}"


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Steps for the host; `blocked` is the precise reason why steps can't help."""

    steps: tuple[Prepare, ...] = ()
    blocked: GpuctlError | None = None


def host_plan(host: HostFacts, container: Container, tried: frozenset[Argv] = frozenset()) -> HostPlan:
    """Load what isn't loaded, make or repair the nodes. A call in `tried` that is needed again did not help."""
    known = wanted.drivers(host)
    if (error := plan.unreadable(host)) is not None or known is None:
        return HostPlan(blocked=error)
    if "nvidia" not in known.majors:
        module = host.module("nvidia")
        if module is not None and module.on_disk is False and not module.loaded:
            return HostPlan(blocked=_no_driver(host))
        return _guarded(host, tried, (_load(("-c", "0"), "the NVIDIA driver is not loaded"),), _no_driver(host))
    document = conf.parse(host.conf.text)
    goal = wanted.wanted(container, host, document.main)
    if goal.too_few:
        return HostPlan(blocked=Failed(goal.problem, hint=goal.hint))
    steps: list[Prepare] = []
    broken = [(item, bad) for item in goal.nodes if (bad := wrong(item, known, host, document))]
    for item, bad in broken:
        if not item.driver:
            return HostPlan(blocked=Failed(f"{item.path} is wanted, but {bad}"))
    for driver in dict.fromkeys(item.driver for item, _ in broken):
        mine = [(item, bad) for item, bad in broken if item.driver == driver]
        steps += _make(driver, mine)
        if not steps:
            return HostPlan(blocked=Failed(mine[0][1], hint=f"gpuctl does not know how to make {mine[0][0].path}"))
    return _guarded(host, tried, tuple(steps), _no_nodes(host, broken))


def wrong(item: wanted.Want, known: wanted.Drivers, host: HostFacts, document: conf.Document) -> str:
    """What is wrong with a node on the host; empty when it is right."""
    number = known.number(item, host)
    node = host.node(item.path)
    if number is None:
        return f"{item.driver} is not loaded" if item.driver else str(node)
    if node.kind is not NodeKind.CHAR:
        return f"{item.path} is missing" if node.kind is NodeKind.ABSENT else str(node)
    if node.number != number:
        return f"{item.path} is {node.major}:{node.minor}, the driver has {number[0]}:{number[1]}"
    if _shut_out(node, item, document):
        return f"{item.path} has mode {node.mode:04o}: an unprivileged container gets EACCES"
    return ""


def reasons(broken: Iterable[tuple[wanted.Want, str]]) -> tuple[str, ...]:
    """What is wrong with several nodes, in as few sentences as it takes."""
    found = tuple(broken)
    missing = [item.path for item, bad in found if bad == f"{item.path} is missing"]
    others = dict.fromkeys(bad for item, bad in found if item.path not in missing)
    joined = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    return (*((joined,) if missing else ()), *others)


def _shut_out(node: Node, item: wanted.Want, document: conf.Document) -> bool:
    """A node that a mount brings into a user namespace is usable only by what everyone may do."""
    how = wanted.how_passed(item.path, wanted.passed_paths(document.main))
    return document.unprivileged and how == "lxc.mount.entry" and node.mode & 0o006 != 0o006


def _load(options: Argv, why: str) -> Prepare:
    return Prepare((("nvidia-modprobe", *options),), why)


def _make(driver: str, broken: list[tuple[wanted.Want, str]]) -> list[Prepare]:
    why = "; ".join(reasons(broken))
    if driver == "nvidia-uvm":
        return [_load(("-u", "-c", "0"), why)]
    if driver == "nvidia":
        minors = [item.minor for item, _ in broken if item.minor != 254]
        argvs: list[Argv] = []
        if minors:
            argvs.append(("nvidia-modprobe", *(word for minor in minors for word in ("-c", str(minor)))))
        if len(minors) < len(broken):
            argvs.append(("nvidia-modprobe", "-m"))
        return [Prepare(tuple(argvs), why)]
    if driver == "nvidia-caps":
        files = {1: "mig/config", 2: "mig/monitor"}
        paths = [files[item.minor] for item, _ in broken if item.minor in files]
        return [_load(("-f", f"/proc/driver/nvidia/capabilities/{path}"), why) for path in paths]
    return []


def _guarded(host: HostFacts, tried: frozenset[Argv], steps: tuple[Prepare, ...], reason: GpuctlError) -> HostPlan:
    """The steps, unless they can't work or have been tried."""
    if not steps:
        return HostPlan()
    if not host.modprobe:
        return HostPlan(
            steps,
            Failed(
                f"nvidia-modprobe is not installed on the host, and {steps[0].why}",
                hint="it comes with NVIDIA's driver; on Debian: apt install nvidia-modprobe",
            ),
        )
    if any(argv in tried for step in steps for argv in step.argvs):
        return HostPlan((), reason)
    return HostPlan(steps)


def _no_driver(host: HostFacts) -> GpuctlError:
    module = host.module("nvidia")
    if module is not None and module.on_disk is False:
        return Failed(
            f"the host's kernel {host.kernel} has no NVIDIA module: it was not built for this kernel",
            hint=f"on the host: apt install proxmox-headers-{host.kernel}; dkms autoinstall",
        )
    if host.foreign:
        address, driver = host.foreign[0]
        return Failed(
            f"the GPU at {address} is bound to {driver}, so the NVIDIA driver can't have it",
            hint="blacklist nouveau, or take the card out of the vfio-pci ids, and reboot the host",
        )
    return Failed(
        f"nvidia-modprobe ran, but the NVIDIA driver is not loaded on kernel {host.kernel}",
        hint="on the host: `modprobe nvidia` and `dmesg | grep -i nvrm` say why (Secure Boot, wrong flavour, DKMS)",
    )


def _no_nodes(host: HostFacts, broken: Iterable[tuple[wanted.Want, str]]) -> GpuctlError:
    bad = "; ".join(reasons(broken))
    if re.search(r"^ModifyDeviceFiles: 0$", host.params.text, re.MULTILINE):
        return Failed(
            f"{bad}, and the driver is told not to make nodes (ModifyDeviceFiles: 0)",
            hint="remove NVreg_ModifyDeviceFiles=0 from /etc/modprobe.d, or make the nodes by a udev rule",
        )
    if "is not loaded" in bad:
        return Failed(
            f"nvidia-modprobe ran, but {bad}", hint="on the host: `modprobe nvidia-uvm` and dmesg say why"
        )
    return Failed(
        f"nvidia-modprobe ran, but {bad}", hint="see /proc/driver/nvidia/params and udev rules on the host"
    )


def failure(host: HostFacts, argv: Argv, rc: int, stderr: str) -> GpuctlError:
    """A call that said it failed, with its own words."""
    module = host.module("nvidia_uvm" if "-u" in argv else "nvidia")
    hint = "see dmesg on the host"
    if module is not None and module.on_disk is False:
        hint = (
            f"{module.name} is not built for kernel {host.kernel}: "
            f"install proxmox-headers-{host.kernel}, then dkms autoinstall"
        )
    return Failed(
        f"{' '.join(argv)} failed on the host with exit status {rc}",
        hint=hint,
        detail=tuple(stderr.splitlines()[-8:]),
    )


def unknown_driver(host: HostFacts, container: Container) -> CannotLook | None:
    """Set when the rules can't be judged yet because a wanted driver isn't loaded."""
    known = wanted.drivers(host)
    if known is None:
        return None
    goal = wanted.wanted(container, host, conf.parse(host.conf.text).main)
    absent = sorted({item.driver or item.name for item in goal.nodes if known.number(item, host) is None})
    if not absent:
        return None
    return CannotLook(
        f"{', '.join(absent)} is not loaded on the host, so its device number is not known",
        hint="stage host loads it: run without --from",
    )
