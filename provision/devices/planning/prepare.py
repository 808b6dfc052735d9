"""What to do on the host so that the driver is loaded and every node is there, as a pure function."""

from __future__ import annotations

from dataclasses import dataclass

from inventory.errors import CannotLook, Failed, GpuctlError
from inventory.model import Container
from provision.devices import wanted
from provision.devices.config import conf
from provision.devices.diagnosis import causes_host, causes_nodes, driver
from provision.devices.diagnosis.cause import Cause, CauseId, Scene
from provision.devices.facts import HostFacts, State
from provision.devices.planning import modprobe, plan

Argv = tuple[str, ...]
UVM: Argv = ("nvidia-modprobe", "-u", "-c", "0")
"""Loads nvidia-uvm and makes nvidia-uvm and nvidia-uvm-tools."""


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
    warnings: tuple[str, ...] = ()
    """What is not as it should be, though it does not keep the nodes from being right."""
    advice: tuple[str, ...] = ()
    """What would spare these steps after the next boot; nothing is wrong without it."""


def host_plan(host: HostFacts, container: Container, tried: frozenset[Argv] = frozenset()) -> HostPlan:
    """Load what isn't loaded, make or repair the nodes. A call in `tried` that is needed again did not help."""
    known = wanted.drivers(host)
    if (error := plan.unreadable(host)) is not None or known is None:
        return HostPlan(blocked=error)
    document = conf.parse(host.conf.text)
    goal = wanted.wanted(container, host, document.main)
    scene = Scene(f"ct{host.vmid}", host, document, known, goal, container.gpus.count)
    if "nvidia" not in known.majors:
        made = _without_driver(host, tried)
    elif (hopeless := _hopeless(scene)) is not None:
        made = HostPlan(blocked=hopeless)
    else:
        made = _with_driver(scene, tried)
    return HostPlan(made.steps, made.blocked, _warnings(host), _advice(scene, tried))


_NEVER = (
    CauseId.DRIVER_NOT_BUILT, CauseId.DRIVER_NOT_INSTALLED, CauseId.FOREIGN_DRIVER, CauseId.NO_GPU,
)  # fmt: skip
"""Causes read from the host's state, which loading the driver can't change; those read from the log may be past."""


def _without_driver(host: HostFacts, tried: frozenset[Argv]) -> HostPlan:
    cause = causes_host.why_not_loaded(host)[0]
    if cause.id in _NEVER:
        return HostPlan(blocked=cause.error())
    reason: GpuctlError = cause.error()
    if cause.id is CauseId.DRIVER_NOT_LOADED:
        text = f"nvidia-modprobe ran, but the NVIDIA driver is not loaded on kernel {host.kernel}"
        reason = Failed(text, hint=cause.hint, detail=cause.evidence)
    load = Prepare((("nvidia-modprobe", "-c", "0"),), "the NVIDIA driver is not loaded")
    return _guarded(host, tried, (load,), reason)


def _hopeless(scene: Scene) -> GpuctlError | None:
    """Why the GPUs that the container needs can't serve it, whatever is done about nodes."""
    causes = [cause for cause in causes_nodes.gpus(scene) if not cause.note]
    if scene.goal.too_few:
        why = next((cause for cause in causes if cause.id is not CauseId.GPU_MISSING), None)
        hint = scene.goal.hint if why is None else why.hint
        detail = () if why is None else (why.text, *why.evidence)
        return Failed(
            scene.goal.problem if why is None else f"{scene.goal.problem}: {why.text}", hint=hint, detail=detail
        )
    return causes[0].error() if causes else None


def _with_driver(scene: Scene, tried: frozenset[Argv]) -> HostPlan:
    faults = causes_nodes.broken(scene)
    if not faults:
        return HostPlan()
    for bad in faults:
        if not bad.item.driver:
            return HostPlan(blocked=Failed(f"{bad.item.path} is wanted, but {bad.text}"))
        if bad.id is CauseId.NOT_LOOKED:
            return HostPlan(blocked=CannotLook(bad.text, hint="gpuctl must be root on the host"))
    roots = causes_nodes.causes(scene, faults)
    steps: list[Prepare] = []
    for name in dict.fromkeys(bad.item.driver for bad in faults):
        mine = [bad for bad in faults if bad.item.driver == name]
        made = _make(name, mine)
        if not made or any(cause.id in _NEVER for cause in roots):
            hopeless = next((c for c in roots if c.id in _NEVER), None)
            reason = hopeless.error() if hopeless else Failed(mine[0].text, hint=_UNKNOWN.get(name, _NO_WAY))
            return HostPlan(blocked=reason)
        steps += made
    return _guarded(scene.host, tried, tuple(steps), _no_help(scene.host, faults, roots))


_NO_WAY = "gpuctl does not know how to make it"
_UNKNOWN = {
    "nvidia-caps-imex-channels": "nvidia-modprobe has no option for it: set NVreg_CreateImexChannel0=1 for the module "
    "nvidia in /etc/modprobe.d on the host and load the driver anew",
    "nvidia-caps": "the nodes of MIG instances are made by `nvidia-smi` on the host once the instances exist; "
    "/proc/driver/nvidia-caps/mig-minors lists them",
    "nvidia-nvswitch": "the driver registers it only where it finds an NVSwitch",
}


_CAPABILITIES = {1: "mig/config", 2: "mig/monitor"}
"""Capabilities whose minors are fixed (open-gpu-kernel-modules, nv-caps.c); those of MIG instances are not."""


def _make(name: str, faults: list[causes_nodes.Broken]) -> list[Prepare]:
    """nvidia-modprobe's calls for the nodes of one driver; none when there is no way."""
    calls = _calls(name, frozenset(bad.item.minor for bad in faults))
    # The driver registers caps, nvswitch and nvlink itself when it is loaded, or not at all.
    registered = name not in ("nvidia", "nvidia-uvm") and any(b.id is CauseId.DRIVER_NOT_LOADED for b in faults)
    if calls is None or registered:
        return []
    return [Prepare(calls.argvs(), "; ".join(causes_nodes.reasons(faults)))]


def _calls(name: str, minors: frozenset[int]) -> modprobe.Calls | None:
    if name == "nvidia-uvm":
        return modprobe.Calls(uvm=True)
    if name == "nvidia":
        return modprobe.Calls(gpus=minors - {254}, modeset=254 in minors)
    if name == "nvidia-caps" and minors <= set(_CAPABILITIES):
        files = frozenset(f"/proc/driver/nvidia/capabilities/{_CAPABILITIES[minor]}" for minor in minors)
        return modprobe.Calls(capabilities=files)
    if name == "nvidia-nvswitch":
        return modprobe.Calls(switches=minors)
    return modprobe.Calls(nvlink=True) if name == "nvidia-nvlink" else None


def _guarded(host: HostFacts, tried: frozenset[Argv], steps: tuple[Prepare, ...], reason: GpuctlError) -> HostPlan:
    """The steps, unless they can't work or have been tried."""
    if not host.modprobe:
        cause = causes_nodes.no_modprobe()
        return HostPlan(steps, Failed(f"{cause.text}: {steps[0].why}", hint=cause.hint))
    if any(argv in tried for step in steps for argv in step.argvs):
        return HostPlan((), reason)
    return HostPlan(steps)


def _no_help(host: HostFacts, faults: tuple[causes_nodes.Broken, ...], roots: tuple[Cause, ...]) -> GpuctlError:
    """Why calls that ran did not help."""
    bad = "; ".join(causes_nodes.reasons(faults))
    root = next((c for c in roots if c.id in _EXPLAINS), None)
    if root is not None:
        return Failed(f"{bad}, and {root.text}", hint=root.hint, detail=root.evidence)
    mode = driver.node_mode(host.params.text)
    if mode is not None and mode & 0o006 != 0o006 and all(f.id is CauseId.OWNER_OR_MODE for f in faults):
        return Failed(
            f"nvidia-modprobe ran, but {bad}, and the driver is told to make nodes {mode:04o} (DeviceFileMode)",
            hint="set NVreg_DeviceFileMode=0666 in /etc/modprobe.d, or pass the nodes in by dev[n] with mode=0666",
        )
    if any(f.id is CauseId.DRIVER_NOT_LOADED for f in faults):
        return Failed(
            f"nvidia-modprobe ran, but {bad}", hint="on the host: `modprobe nvidia-uvm` and dmesg say why"
        )
    return Failed(
        f"nvidia-modprobe ran, but {bad}", hint="see /proc/driver/nvidia/params and udev rules on the host"
    )


_EXPLAINS = (CauseId.NODES_FORBIDDEN, CauseId.SECURE_BOOT, CauseId.MODULE_OLDER)


def _warnings(host: HostFacts) -> tuple[str, ...]:
    found = (causes_host.older_module(host, broken=False), causes_host.peer_to_peer(host))
    return tuple(f"{cause.text}; {cause.hint}" for cause in found if cause is not None)


def _advice(scene: Scene, tried: frozenset[Argv]) -> tuple[str, ...]:
    """Only where nvidia-uvm was missing after this boot, in this run too once it has been loaded."""
    absent = "nvidia" in scene.known.majors and any(
        bad.item.driver == "nvidia-uvm" and bad.id in (CauseId.DRIVER_NOT_LOADED, CauseId.HOST_NODE)
        for bad in causes_nodes.broken(scene)
    )
    if scene.host.boot_unit.state is not State.ABSENT or not (absent or UVM in tried):
        return ()
    return (
        "nvidia-uvm was not there after this boot and will not be after the next: "
        f"`gpuctl devices boot-unit {scene.name} --install` makes it before Proxmox starts its guests",
    )


def failure(host: HostFacts, argv: Argv, rc: int, stderr: str) -> GpuctlError:
    """A call that said it failed, with its own words, and why when facts or words tell."""
    name = "nvidia-uvm" if "-u" in argv else "nvidia"
    module = host.module(name.replace("-", "_"))
    text = f"{' '.join(argv)} failed on the host with exit status {rc}"
    cause: Cause | None = None
    if module is not None and module.on_disk is False:
        cause = causes_host.not_built(host, name)
    elif any(told.what == "refused-key" for told in driver.log(stderr)):
        cause = next(iter(causes_host.refused(host, stderr)), None)
    return Failed(
        text if cause is None else f"{text}: {cause.text}",
        hint="see dmesg on the host" if cause is None else cause.hint,
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
