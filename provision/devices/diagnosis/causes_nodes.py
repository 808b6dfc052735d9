"""What is wrong with the device nodes and the GPUs on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from provision.devices import wanted
from provision.devices.config import conf
from provision.devices.diagnosis import causes_host, driver
from provision.devices.diagnosis.cause import Cause, CauseId, Scene, are, several
from provision.devices.facts import Gpu, HostFacts, Node, NodeKind


@dataclass(frozen=True, slots=True)
class Broken:
    """A wanted node that is not right on the host: what kind of fault, and in words."""

    item: wanted.Want
    id: CauseId
    text: str


def wrong(item: wanted.Want, known: wanted.Drivers, host: HostFacts, document: conf.Document) -> Broken | None:
    """What is wrong with a node on the host; None when it is right."""
    number = known.number(item, host)
    node = host.node(item.path)
    if number is None and item.driver:
        return Broken(item, CauseId.DRIVER_NOT_LOADED, f"{item.driver} is not loaded")
    if node.kind is NodeKind.ABSENT:
        return Broken(item, CauseId.HOST_NODE, f"{item.path} is missing")
    if node.kind is NodeKind.UNREADABLE:
        return Broken(item, CauseId.NOT_LOOKED, str(node))
    if node.kind is not NodeKind.CHAR:
        kind = {"regular": "regular file", "symlink": "link"}.get(node.kind.value, node.kind.value)
        return Broken(item, CauseId.HOST_NODE_KIND, f"{item.path} is a {kind}, not a device")
    if number is not None and node.number != number:
        text = f"{item.path} is {node.major}:{node.minor}, the driver has {number[0]}:{number[1]}"
        return Broken(item, CauseId.HOST_NODE_NUMBER, text)
    if _shut_out(node, item, document):
        text = f"{item.path} has mode {node.mode:04o}: an unprivileged container gets EACCES"
        return Broken(item, CauseId.OWNER_OR_MODE, text)
    return None


def _shut_out(node: Node, item: wanted.Want, document: conf.Document) -> bool:
    """A node that a mount brings into a user namespace is usable only by what everyone may do."""
    how = wanted.how_passed(item.path, wanted.passed_paths(document.main))
    return document.unprivileged and how == "lxc.mount.entry" and node.mode & 0o006 != 0o006


def broken(scene: Scene) -> tuple[Broken, ...]:
    """Every wanted node that is not right on the host."""
    found = (wrong(item, scene.known, scene.host, scene.document) for item in scene.items)
    return tuple(bad for bad in found if bad is not None)


def reasons(faults: Iterable[Broken]) -> tuple[str, ...]:
    """What is wrong with several nodes, in as few sentences as it takes."""
    found = tuple(faults)
    missing = [bad.item.path for bad in found if bad.id is CauseId.HOST_NODE]
    others = dict.fromkeys(bad.text for bad in found if bad.id is not CauseId.HOST_NODE)
    joined = f"{', '.join(missing)} {are(missing)} missing"
    return (*((joined,) if missing else ()), *others)


_FOLLOWS = {
    CauseId.HOST_NODE: "no container can be given what is not there",
    CauseId.HOST_NODE_NUMBER: "opening it asks a driver that is not NVIDIA's, or none",
    CauseId.HOST_NODE_KIND: "opening it works and reaches no driver",
}
_HINTS = {
    CauseId.HOST_NODE: "on the host: nvidia-modprobe -u -c 0 makes nvidia-uvm, nvidia-modprobe -c N makes nvidiaN",
    CauseId.HOST_NODE_NUMBER: "on the host: nvidia-modprobe makes it anew; whatever made it by hand must go "
    "(a udev rule, a boot script)",
    CauseId.HOST_NODE_KIND: "on the host: remove it, then nvidia-modprobe makes the node",
    CauseId.OWNER_OR_MODE: "pass it in by dev[n] with mode=0666 (without mode= Proxmox makes it 0660 for root inside), "
    "or let the driver make 0666 nodes",
    CauseId.NOT_LOOKED: "gpuctl must be root on the host",
}


def causes(scene: Scene, faults: tuple[Broken, ...]) -> tuple[Cause, ...]:
    """Faults of nodes, one cause a kind; why nothing repairs them comes first and takes them in."""
    found: list[Cause] = []
    for kind in dict.fromkeys(bad.id for bad in faults):
        mine = [bad for bad in faults if bad.id is kind]
        if kind is CauseId.DRIVER_NOT_LOADED:
            names = dict.fromkeys(bad.item.driver for bad in mine)
            found += [causes_host.not_loaded(scene.host, name) for name in names]
            continue
        text = f"on the host {'; '.join(reasons(mine))}"
        evidence = tuple(str(scene.host.node(bad.item.path)) for bad in mine)
        if kind is CauseId.HOST_NODE:
            evidence = tuple(_should_be(scene, bad.item) for bad in mine)
        found.append(Cause(kind, text, evidence, _FOLLOWS.get(kind, ""), hint=_HINTS[kind]))
    return _unrepaired(scene, tuple(dict.fromkeys(found)))


def _should_be(scene: Scene, item: wanted.Want) -> str:
    number = scene.known.number(item, scene.host)
    if number is None:
        return str(scene.host.node(item.path))
    return f"{item.path} should be {number[0]}:{number[1]}, as {item.driver} has it"


def _unrepaired(scene: Scene, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """What would make or repair nodes is missing or forbidden: then that is the root."""
    nodes = {CauseId.HOST_NODE, CauseId.HOST_NODE_NUMBER, CauseId.HOST_NODE_KIND, CauseId.OWNER_OR_MODE}
    mine = [c for c in found if c.id in nodes]
    if mine and not driver.may_make_nodes(scene.host.params.text):
        first = forbidden()
    elif (mine or any(c.id is CauseId.DRIVER_NOT_LOADED for c in found)) and not scene.host.modprobe:
        mine = [c for c in found if c.id in nodes | {CauseId.DRIVER_NOT_LOADED}]
        first = no_modprobe()
    else:
        return found
    for cause in mine:
        first = first.leads_to(cause.text, cause.follows).with_evidence(*cause.evidence)
    return (first, *(cause for cause in found if cause not in mine))


def forbidden() -> Cause:
    """The driver's tools are told to leave nodes alone."""
    return Cause(
        CauseId.NODES_FORBIDDEN,
        "the driver is told not to make or repair nodes (ModifyDeviceFiles: 0)",
        ("/proc/driver/nvidia/params: ModifyDeviceFiles: 0",),
        hint="remove NVreg_ModifyDeviceFiles=0 from /etc/modprobe.d and load the driver anew, or make the nodes by "
        "a udev rule",
    )


def no_modprobe() -> Cause:
    """Nothing makes the nodes."""
    return Cause(
        CauseId.NO_MODPROBE,
        "nvidia-modprobe is not installed on the host, so nothing loads nvidia-uvm and makes the nodes",
        ("nvidia-modprobe: not found",),
        hint="it comes with NVIDIA's driver; on Debian: apt install nvidia-modprobe",
    )


def gpus(scene: Scene) -> Iterator[Cause]:
    """GPUs that the driver does not show, has been told to leave out, or has lost."""
    host = scene.host
    yield from causes_host.flavours(host, scene.count)
    taken = causes_host.foreign(host, scene.count)
    if taken is not None:
        yield taken
    left_out = [gpu for gpu in host.gpus if gpu.excluded and _mine(scene, gpu)]
    if left_out:
        yield excluded(left_out, ())
    lost = _lost(scene)
    yield from lost
    if scene.inside is None and not lost:
        yield from _failed(scene)
    if scene.goal.too_few and taken is None and not left_out and not lost:
        yield Cause(
            CauseId.GPU_MISSING,
            scene.goal.problem,
            tuple(f"/proc/driver/nvidia/gpus/{gpu.bus}: minor {gpu.minor}" for gpu in host.gpus),
            hint=scene.goal.hint,
        )


def _mine(scene: Scene, gpu: Gpu) -> bool:
    return scene.goal.too_few or any(i.driver == "nvidia" and i.minor == gpu.minor for i in scene.items)


def excluded(left_out: Iterable[Gpu], more: tuple[str, ...]) -> Cause:
    """GPUs that a module option takes away."""
    names = [f"{gpu.bus}" + (f" (nvidia{gpu.minor})" if gpu.minor is not None else "") for gpu in left_out]
    return Cause(
        CauseId.GPU_EXCLUDED,
        f"the GPU at {several(names)} is excluded by an option of the driver: opening it gets EPERM whatever the rules",
        (*(f"{name}: GPU Excluded: Yes" for name in names), *more),
        hint="remove NVreg_ExcludedGpus from /etc/modprobe.d on the host and load the driver anew",
    )


def _lost(scene: Scene) -> tuple[Cause, ...]:
    """GPUs that fell off the bus; only a note when they are not this container's."""
    host = scene.host
    told = [t for t in driver.log(host.kernel_log.text) if t.what in ("fallen", "lost") or _xid79(t)]
    addresses: list[str] = []
    for entry in told:
        if not any(driver.same_gpu(entry.address, other) for other in addresses):
            addresses.append(entry.address)
    if not addresses:
        return ()
    others = [g for g in host.gpus for a in addresses if driver.same_gpu(g.bus, a) and not _mine(scene, g)]
    return (
        Cause(
            CauseId.GPU_FAULT,
            f"the GPU at {several(addresses)} has fallen off the PCI bus (Xid 79)",
            tuple(t.text for t in told),
            "it is gone until the host is power-cycled",
            note=len(others) == len(addresses),
            hint="power off the host fully; when it comes back: power supply, riser, seat, temperature",
        ),
    )


def _failed(scene: Scene) -> Iterator[Cause]:
    """GPUs that failed to initialise at some time of this boot; only opening them tells whether they still do."""
    told = [t for t in driver.log(scene.host.kernel_log.text) if t.what == "init"]
    mine = [g for g in scene.host.gpus if _mine(scene, g) and any(driver.same_gpu(t.address, g.bus) for t in told)]
    if mine:
        names = several(f"{gpu.bus} (nvidia{gpu.minor})" for gpu in mine)
        text = f"the kernel's log of this boot says that the GPU at {names} failed to initialise"
        evidence = tuple(t.text for t in told if any(driver.same_gpu(t.address, gpu.bus) for gpu in mine))
        yield Cause(CauseId.GPU_FAULT, text, evidence, note=True, hint="`gpuctl preflight` opens it and tells")


def _xid79(told: driver.Told) -> bool:
    return told.what == "xid" and told.value == "79"
