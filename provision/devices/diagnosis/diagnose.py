"""Why a container can't use its GPUs: one root cause first, in the user's words, with what follows from it. Pure."""

from __future__ import annotations

from dataclasses import replace

from inventory.model import Container
from provision.devices import wanted
from provision.devices.config import conf
from provision.devices.diagnosis import (
    causes_conf,
    causes_host,
    causes_inside,
    causes_nodes,
    causes_sections,
    driver,
    lacking,
)
from provision.devices.diagnosis.cause import ON_HOST, RESTART_USELESS, Cause, CauseId, Scene, root, several
from provision.devices.facts import CtFacts, GuestFacts, HostFacts, NodeKind, State

__all__ = ["ON_HOST", "RESTART_USELESS", "Cause", "CauseId", "diagnose", "driver_version", "root"]

driver_version = driver.version


def diagnose(
    name: str,
    host: HostFacts,
    container: Container,
    inside: CtFacts | None = None,
    *,
    guest: GuestFacts | None = None,
    started_s: float | None = None,
) -> tuple[Cause, ...]:
    """Causes, the root first, notes last. `started_s`: when the container was started, seconds since the epoch.

    The order is that of the dependence: what could not be looked at, host, configuration, running container. What only
    follows from a cause is said in its `follows`. A cause with `note` breaks nothing.
    """
    if started_s is None and guest is not None and guest.uptime_s > 0:
        started_s = host.now_s - guest.uptime_s
    known = wanted.drivers(host) or wanted.Drivers({}, {})
    document = conf.parse(host.conf.text)
    goal = wanted.wanted(container, host, document.main)
    scene = Scene(name, host, document, known, goal, container.gpus.count, inside, guest, started_s)
    found = [*_unseen(scene)]
    if host.proc_devices.state is State.PRESENT:
        found += _judged(scene)
    found += _around(scene, broken=any(not cause.note for cause in found))
    found = list(dict.fromkeys(found))
    return (*(cause for cause in found if not cause.note), *(cause for cause in found if cause.note))


def _unseen(scene: Scene) -> list[Cause]:
    """What could not be looked at; none of it is ever taken for good."""
    host, name, found = scene.host, scene.name, []
    others = [owner for owner in host.owners if owner != host.nodename]
    if host.proc_devices.state is not State.PRESENT:
        why = host.proc_devices.why or host.proc_devices.state
        found.append(Cause(CauseId.NOT_LOOKED, f"/proc/devices of the host can't be read: {why}"))
    if host.conf.state is State.UNREADABLE:
        text = f"{host.conf_path} can't be read: {host.conf.why}"
        found.append(Cause(CauseId.NOT_LOOKED, text, hint="gpuctl must be root on the host"))
    if len(host.owners) > 1:
        text = (
            f"{several(host.owners)} each have a configuration of {name}: a VMID must be there once in a cluster"
        )
        found.append(Cause(CauseId.TWO_OWNERS, text, hint="remove the copy on the node that does not run it"))
    elif others and host.nodename:
        text = f"{name} lives on node {others[0]}, and this is {host.nodename}"
        found.append(Cause(CauseId.OTHER_NODE, text, hint="name the right host in the inventory"))
    elif host.conf.state is State.ABSENT:
        text = f"{name} has no configuration at {host.conf_path} on this host"
        hint = "it lives on another node, or its VMID in the inventory is wrong"
        found.append(Cause(CauseId.NO_CONFIGURATION, text, hint=hint))
    elif host.conf.state is State.PRESENT and not host.conf.text.strip():
        text = f"{host.conf_path} is empty: to Proxmox {name} has lost its disks and everything else"
        kept = tuple(f"backup: {backup.path}" for backup in host.backups[:3])
        hint = "put a backup back (`gpuctl devices undo`, or Proxmox's own) before anything is started"
        found.append(Cause(CauseId.EMPTY_CONFIGURATION, text, kept, hint=hint))
    if scene.document.fatal:
        text = f"Proxmox itself can't read {host.conf_path}: {scene.document.fatal}"
        found.append(Cause(CauseId.PROXMOX_CANNOT_READ, text, hint="correct that line by hand"))
    return found


def _judged(scene: Scene) -> list[Cause]:
    """Host, configuration, container, in the order of their dependence."""
    host = scene.host
    if "nvidia" not in scene.known.majors:
        found = list(causes_host.why_not_loaded(host))
        missing = {item.path for item in scene.items if item.driver}
    else:
        faults = causes_nodes.broken(scene)
        found = [*causes_nodes.gpus(scene), *causes_nodes.causes(scene, faults)]
        missing = {bad.item.path for bad in faults}
    if host.conf.state is not State.PRESENT or scene.document.fatal or not host.conf.text.strip():
        return found
    found += causes_conf.causes(scene)
    if scene.inside is not None:
        found = _with_inside(scene, scene.inside, found, missing)
    found = list(causes_sections.will_not_start(scene, found, frozenset(missing)))
    found += [
        cause for cause in (causes_host.peer_to_peer(host), causes_host.older_module(host, broken=False)) if cause
    ]
    return _once(found)


def _with_inside(scene: Scene, inside: CtFacts, found: list[Cause], missing: set[str]) -> list[Cause]:
    """What is wrong inside is a cause of its own only where nothing before explains it."""
    names = {item.name for item in scene.items if item.path in missing}
    seen = [inside.node(path) for path in sorted(missing)]
    bad = tuple(f"in {scene.name}: {node}" for node in seen if node.kind is not NodeKind.CHAR or node.opened)
    if bad:
        at = next((n for n, cause in enumerate(found) if cause.id in _MAKES_NODES_WRONG and not cause.note), None)
        if at is not None:
            found[at] = found[at].with_evidence(*bad)
    left = lacking.lacking(scene)
    names |= {entry.item.name for entry in left.absent}
    names |= {e.item.name for e in left.denied if inside.node(e.item.path).opened == "EPERM"}
    forbids = [
        cause for cause in found if cause.id in (CauseId.DENY_RULE, CauseId.NO_TARGET, CauseId.GPU_EXCLUDED)
    ]
    names |= {i.name for i in scene.items if any(_speaks_of(cause, i.name) for cause in forbids if not cause.note)}
    return [*found, *causes_inside.causes(scene, inside, frozenset(names))]


_MAKES_NODES_WRONG = ON_HOST | {CauseId.OWNER_OR_MODE}


def _speaks_of(cause: Cause, name: str) -> bool:
    words = cause.text.replace(",", " ").replace(":", " ").replace("(", " ").replace(")", " ").split()
    return name in words


def _once(found: list[Cause]) -> list[Cause]:
    """One cause of a kind that stands for the whole host or container: the fuller one, in the place of the first."""
    single = {CauseId.WRONG_FLAVOUR, CauseId.MODULE_OLDER, CauseId.GPU_EXCLUDED, CauseId.LIBRARY_VERSION}
    result: list[Cause] = []
    for cause in found:
        at = next((n for n, old in enumerate(result) if old.id is cause.id and cause.id in single), None)
        if at is None:
            result.append(cause)
            continue
        both = result[at].leads_to(cause.follows).with_evidence(*cause.evidence)
        result[at] = replace(both, note=both.note and cause.note)
    return result


def _around(scene: Scene, *, broken: bool) -> list[Cause]:
    """The container's state, and what keeps gpuctl or the user from acting."""
    guest, host, name, found = scene.guest, scene.host, scene.name, []
    if guest is not None and guest.status not in ("", "running"):
        found.append(Cause(CauseId.NOT_RUNNING, f"{name} is {guest.status}", hint=f"start {name}"))
        broken = True
    lock = (guest.lock if guest is not None else "") or scene.document.lock
    if lock not in ("", "mounted"):
        hint = f"wait for that task to end; a lock left over by a crash is removed by `pct unlock {host.vmid}`"
        found.append(Cause(CauseId.LOCKED, f"{name} is locked ({lock})", note=not broken, hint=hint))
    if host.quorate is False or (guest is not None and guest.quorate is False):
        text = "the cluster has no quorum: no configuration can be changed and no container started"
        hint = "bring the other nodes back; see `pvecm status`"
        found.append(Cause(CauseId.NO_QUORUM, text, note=not broken, hint=hint))
    if guest is not None and guest.ha:
        text = f"{name} is managed by high availability: start and stop go through it, and it may restart {name} itself"
        found.append(Cause(CauseId.HA_MANAGED, text, note=True))
    unseen = [f"line {line.number}: {line.key}: {line.value}" for line in scene.hooked]
    if script := scene.document.main.values.get("hookscript"):
        unseen.append(f"hookscript: {script}")
    if unseen:
        keys = [line.key for line in scene.hooked] + (["hookscript"] if script else [])
        text = f"{name} has {several(keys)}, which may do things that gpuctl does not see"
        found.append(Cause(CauseId.UNSEEN, text, tuple(unseen), note=True))
    return found
