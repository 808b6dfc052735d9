"""What is wrong inside the running container although host and configuration are right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from provision.devices import wanted
from provision.devices.config import conf
from provision.devices.diagnosis import causes_host, causes_nodes, driver
from provision.devices.diagnosis.cause import Cause, CauseId, Scene, are, several
from provision.devices.facts import CtFacts, Node, NodeKind

NOBODY = 65534
"""How the kernel shows an owner that is not mapped into a user namespace."""

Seen = tuple[wanted.Access, Node]


def causes(scene: Scene, inside: CtFacts, said: frozenset[str]) -> tuple[Cause, ...]:
    """Faults of nodes inside, one cause a kind. `said`: names of nodes that another cause explains already."""
    found: dict[CauseId, list[Seen]] = {}
    for access in wanted.access(scene.document.main, scene.items, scene.known, scene.host):
        node = inside.node(access.item.path)
        kind = None if access.item.name in said else _fault(scene, access, node)
        if kind is not None:
            found.setdefault(kind, []).append((access, node))
    return (*(_told(scene, kind, seen) for kind, seen in found.items()), *libraries(scene, inside))


def _fault(scene: Scene, access: wanted.Access, node: Node) -> CauseId | None:
    """What kind of thing is wrong with a node inside; None when nothing is."""
    if node.kind is NodeKind.UNREADABLE:
        return CauseId.NOT_LOOKED
    if node.kind is NodeKind.ABSENT:
        return CauseId.NOT_INSIDE if _made_before(scene, node) else CauseId.STARTED_TOO_EARLY
    if node.kind is not NodeKind.CHAR:
        return CauseId.REGULAR_FILE
    if node.number != access.number:
        return CauseId.WRONG_NUMBER
    if not node.opened:
        return None
    if node.opened == "EPERM":
        return _refused(scene, access)
    if node.opened == "EACCES":
        return CauseId.NODEV if _open_to_all(node) else CauseId.OWNER_OR_MODE
    return CauseId.GPU_FAULT


CLOCKS_APART_S: Final = 5.0
"""The start is told by the API's uptime, in whole seconds and read at another moment than the node."""


def _open_to_all(node: Node) -> bool:
    return node.mode & 0o006 == 0o006 or (node.uid == 0 and node.mode & 0o600 == 0o600)


def _made_before(scene: Scene, node: Node) -> bool:
    """Whether the host's node was surely there when the container started (a later change moves its time)."""
    made = scene.host.node(node.path).changed_s
    if node.kind is NodeKind.REGULAR and node.changed_s > 0:
        # LXC made this file at the start: the two times come from one clock.
        return 0 < made < node.changed_s
    return scene.started_s is not None and 0 < made < scene.started_s - CLOCKS_APART_S


def _refused(scene: Scene, access: wanted.Access) -> CauseId:
    """EPERM although the configuration permits it."""
    gpu = next(
        (g for g in scene.host.gpus if g.minor == access.item.minor and access.item.driver == "nvidia"), None
    )
    log = driver.log(scene.host.kernel_log.text)
    if gpu is not None and (
        gpu.excluded or any(t.what == "excluded" and driver.same_gpu(t.address, gpu.bus) for t in log)
    ):
        return CauseId.GPU_EXCLUDED
    changed, started = scene.host.conf_changed_s, scene.started_s
    older = started is not None and 0 < changed < started
    return CauseId.REVOKED if older and not scene.free else CauseId.DENIED


def _told(scene: Scene, kind: CauseId, seen: list[Seen]) -> Cause:
    """One cause for all nodes with the same fault."""
    which = several(node.path.removeprefix("/dev/") for _, node in seen)
    nodes = [node for _, node in seen]
    tell = {
        CauseId.STARTED_TOO_EARLY: _early,
        CauseId.REGULAR_FILE: _early,
        CauseId.NOT_INSIDE: _not_inside,
        CauseId.WRONG_NUMBER: _wrong_number,
        CauseId.DENIED: _denied,
        CauseId.REVOKED: _denied,
        CauseId.OWNER_OR_MODE: _owner,
        CauseId.NODEV: _nodev,
        CauseId.GPU_EXCLUDED: _excluded,
        CauseId.GPU_FAULT: _gpu,
    }.get(kind, _unseen)
    cause = tell(scene, kind, which, seen)
    return Cause(cause.id, cause.text, (*map(str, nodes), *cause.evidence), cause.follows, cause.note, cause.hint)


def _restart(scene: Scene) -> str:
    return f"restart {scene.name}"


def _early(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:
    name = scene.name
    times = tuple(_times(scene, [node.path for _, node in seen]))
    first = seen[0][1]
    if kind is CauseId.STARTED_TOO_EARLY:
        text = f"{name} was started before {which} existed on the host"
        return Cause(
            kind, text, times, "nvidia-smi answers without nvidia-uvm, CUDA does not", hint=_restart(scene)
        )
    what = "a plain file" if first.kind is NodeKind.REGULAR else f"a {first.kind}"
    follows = "opening it works and reaches no driver" if first.kind is NodeKind.REGULAR else ""
    if all(_made_before(scene, node) for _, node in seen):
        text = (
            f"{which} in {name} {are(n.path for _, n in seen)} {what}, although the host had the node at its start"
        )
        return Cause(kind, text, times, follows, hint=f"remove it inside, then {_restart(scene)}")
    text = f"{name} was started before {which} existed on the host: {what} was left there instead"
    if first.kind is NodeKind.REGULAR:
        text += ", which opens without an error"
    return Cause(kind, text, times, follows, hint=_restart(scene))


def _times(scene: Scene, paths: Iterable[str]) -> Iterator[str]:
    """When the container started and when the host's nodes were made."""
    if scene.started_s is None:
        return
    for path in paths:
        after = scene.host.node(path).changed_s - scene.started_s
        if scene.host.node(path).changed_s > 0:
            told = "after" if after > 0 else "before"
            yield f"{path} was made {abs(after):.0f} s {told} the container's start"


def _not_inside(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:
    times = tuple(_times(scene, [node.path for _, node in seen]))
    late = scene.started_s is not None and scene.host.conf_changed_s > scene.started_s
    why = ": it runs since before its configuration was changed"
    if not late:
        why = ", although the host had the node at its start"
    text = f"{which} {are(n.path for _, n in seen)} not in {scene.name}{why}"
    return Cause(kind, text, (*_conf_age(scene), *times), "opening it there gets ENOENT", hint=_restart(scene))


def _conf_age(scene: Scene) -> tuple[str, ...]:
    changed, started = scene.host.conf_changed_s, scene.started_s
    if not changed or started is None:
        return ()
    told = "after" if changed > started else "before"
    return (f"its configuration was last changed {abs(changed - started):.0f} s {told} its start",)


def _wrong_number(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:
    access, node = seen[0]
    if node.major == access.number[0]:
        right = f"{access.number[0]}:{access.number[1]}"
        text = f"{which} in {scene.name} is {node.major}:{node.minor}, and should be {right}"
        return Cause(kind, text, hint=_restart(scene))
    owner = several(scene.known.names.get(node.major, ()))
    whose = f"belongs to {owner} now" if owner else "the driver does not have now"
    text = f"{which} in {scene.name} {are(n.path for _, n in seen)} made for {node.major}, which {whose}"
    evidence = (f"/proc/devices: {access.number[0]} {access.item.driver}",) if access.item.driver else ()
    follows = f"opening it gets {node.opened}" if node.opened else ""
    hint = f"{_restart(scene)}; a node that was made by hand inside must go first"
    return Cause(kind, text, evidence, follows, hint=hint)


def _denied(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:
    verb = are(node.path for _, node in seen)
    if kind is CauseId.REVOKED:
        text = (
            f"{scene.name} lost its access to {which} while it ran (EPERM): its configuration permits it, and did when "
            "it was started"
        )
        return Cause(kind, text, _conf_age(scene), "a restart brings it back", hint=_restart(scene))
    changed = scene.started_s is not None and scene.host.conf_changed_s > scene.started_s
    text = f"{which} {verb} denied to {scene.name} (EPERM): it was started with other device rules"
    if scene.free:
        text = f"{which} {verb} denied to {scene.name} (EPERM), which as an unprivileged container has no device rules"
        return Cause(kind, text, _conf_age(scene), hint="see deny rules of an included file, and excluded GPUs")
    follows = "" if changed else "they were changed since, or taken from it while it ran; a restart brings it back"
    return Cause(kind, text, _conf_age(scene), follows, hint=f"{_restart(scene)}, or use --live")


def inside_map(inside: CtFacts | None) -> str:
    """The first line of the container's uid map."""
    text = inside.uid_map.text.strip() if inside else ""
    return f"uid_map: {' '.join(text.splitlines()[0].split())}" if text else "uid_map: not known"


def _owner(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:
    access, node = seen[0]
    verb = are(n.path for _, n in seen)
    text = f"EACCES in {scene.kind} {scene.name}: {which} {verb} {node.mode:04o} of {node.uid}:{node.gid}"
    view = scene.document.main
    spec = next((d.spec for d in conf.devices(view) if f"dev{d.index}" == access.how), None)
    evidence = [inside_map(scene.inside)]
    if node.uid == NOBODY and node.gid == NOBODY:
        who = "nobody inside can be its owner, so only the mode for others counts"
    else:
        who = f"it needs uid {node.uid} or gid {node.gid} inside"
    if spec is not None:
        evidence.append(f"{access.how}: {view.values[access.how]}")
        if "mode" not in view.values[access.how]:
            who += f"; {access.how} has no mode, and Proxmox then makes the node 0660"
        hint = f"give {access.how} mode=0666, or uid= and gid= of the user inside"
    else:
        hint = f"pass it in by dev[n] with mode=0666, or make it 0666 on the host: {scene.host.node(node.path)}"
    return Cause(kind, f"{text}; {who}", tuple(evidence), hint=hint)


def _nodev(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:  # noqa: ARG001
    text = (
        f"EACCES in {scene.name} although the mode of {which} permits it: the node stands on a file system that is "
        "mounted nodev"
    )
    return Cause(
        kind, text, (inside_map(scene.inside),), hint="a node made by hand inside must go; pass it in by dev[n]"
    )


def _excluded(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:  # noqa: ARG001
    minors = {access.item.minor for access, _ in seen}
    told = tuple(t.text for t in driver.log(scene.host.kernel_log.text) if t.what == "excluded")
    return causes_nodes.excluded([g for g in scene.host.gpus if g.minor in minors], told)


_WHY = {
    "EIO": "the GPU did not initialise",
    "ENODEV": "there is no GPU with that number any more, or it was lost",
    "ENXIO": "no driver answers for that number",
    "EBUSY": "the driver keeps it until the GPU is reset",
    "EINVAL": "the driver could not power the GPU up",
    "EAGAIN": "the driver is suspended",
}


def _gpu(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:
    node = seen[0][1]
    why = _WHY.get(node.opened or "", "the driver refuses it")
    verb = are(n.path for _, n in seen)
    text = f"{which} {verb} right but opening gives {node.opened}: {why}"
    buses = [g.bus for access, _ in seen for g in scene.host.gpus if g.minor == access.item.minor]
    said = [t for t in driver.log(scene.host.kernel_log.text) if t.what in ("init", "xid", "fallen", "lost")]
    mine = [t.text for t in said if not t.address or any(driver.same_gpu(t.address, bus) for bus in buses)]
    flavour = next((c for c in causes_host.flavours(scene.host, None)), None)
    if flavour is not None:
        return flavour.leads_to(text).with_evidence(*mine)
    hint = "see `dmesg | grep -i -e xid -e nvrm` on the host; a restart of the container does not help"
    evidence = mine or ["see `dmesg | grep -i -e xid -e nvrm` on the host"]
    return Cause(kind, text, tuple(evidence), hint=hint)


def _unseen(scene: Scene, kind: CauseId, which: str, seen: list[Seen]) -> Cause:
    why = seen[0][1].why or seen[0][1].kind.value
    if why.startswith("no answer"):
        text = f"opening {which} in {scene.name} does not return ({why}): the driver hangs"
        return Cause(
            CauseId.GPU_FAULT, text, hint="see `dmesg | grep -i -e xid -e nvrm` on the host; it may need a reboot"
        )
    return Cause(kind, f"{which} in {scene.name} could not be looked at: {why}")


def libraries(scene: Scene, inside: CtFacts) -> Iterator[Cause]:
    """Libraries of the driver in the container must be of the host's module to the last field."""
    loaded = driver.version(scene.host)
    found: dict[str, set[str]] = {}
    for library in inside.libraries:
        name, _, version = library.partition(".so.")
        found.setdefault(name, set()).add(version)
    wrong = {name: versions for name, versions in found.items() if loaded and loaded not in versions}
    if not wrong:
        extra = sorted({version for versions in found.values() for version in versions} - {loaded})
        if extra and loaded:
            text = f"{scene.name} has the driver's libraries in {loaded} and also in {several(extra)}"
            yield Cause(CauseId.LIBRARY_VERSION, text, inside.libraries, note=True)
        return
    versions = sorted({version for versions in wrong.values() for version in versions})
    newer = causes_host.older_module(scene.host, broken=True)
    if newer is not None and set(versions) == {getattr(scene.host.module("nvidia"), "disk_version", "")}:
        told = f"the libraries in {scene.name} are {several(versions)} already: `Driver/library version mismatch`"
        yield newer.leads_to(told).with_evidence(*inside.libraries)
        return
    said = tuple(t.text for t in driver.log(scene.host.kernel_log.text) if t.what == "mismatch")
    yield Cause(
        CauseId.LIBRARY_VERSION,
        f"the driver's libraries in {scene.name} are {', '.join(versions)}, the host's module is {loaded}: they must "
        f"be equal to the last digit; a restart does not help, installing {loaded} in {scene.name} does",
        (*inside.libraries, *said),
        "NVML says `Driver/library version mismatch`, CUDA does not start",
        hint=f"in {scene.name}: install the libraries of {loaded} without a kernel module",
    )
