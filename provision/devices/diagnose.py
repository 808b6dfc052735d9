"""Why a container can't use its GPUs: causes in the user's words, each with its evidence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from inventory.model import Container
from provision.devices import conf, predict, prepare, rules, stale, wanted
from provision.devices.facts import CtFacts, HostFacts, Node, NodeKind


class CauseId(StrEnum):
    """Stable names of causes."""

    DRIVER_NOT_LOADED = "driver-not-loaded"
    DRIVER_NOT_BUILT = "driver-not-built"
    HOST_NODE = "host-node"
    STALE_RULE = "stale-rule"
    STRANGER_RULE = "stranger-rule"
    MISSING_RULE = "missing-rule"
    NOT_PASSED_IN = "not-passed-in"
    LEGACY_KEY = "legacy-key"
    STRAY_LINE = "stray-line"
    PENDING_REPLACES = "pending-replaces"
    MALFORMED_LINE = "malformed-line"
    WILL_NOT_START = "will-not-start"
    STARTED_TOO_EARLY = "started-too-early"
    REGULAR_FILE = "regular-file"
    WRONG_NUMBER = "wrong-number"
    DENIED = "denied"
    OWNER_OR_MODE = "owner-or-mode"
    GPU_FAULT = "gpu-fault"
    LIBRARY_VERSION = "library-version"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong: a sentence, and the lines it was read from."""

    id: CauseId
    text: str
    evidence: tuple[str, ...] = ()


def diagnose(
    name: str,
    host: HostFacts,
    container: Container,
    inside: CtFacts | None = None,
    *,
    started_s: float | None = None,
) -> tuple[Cause, ...]:
    """Causes, the root first. `started_s`: when the container was started, seconds since the epoch."""
    known = wanted.drivers(host)
    if known is None:
        return ()
    document = conf.parse(host.conf.text)
    goal = wanted.wanted(container, host, document.main)
    scene = _Scene(name, host, document, known, goal.nodes, inside, started_s)
    found = [*_host(scene), *_configuration(scene), *_sections(scene)]
    if inside is not None:
        found += _inside(scene, inside, found)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Scene:
    name: str
    host: HostFacts
    document: conf.Document
    known: wanted.Drivers
    items: tuple[wanted.Want, ...]
    inside: CtFacts | None
    started_s: float | None

    @property
    def kind(self) -> str:
        return "unprivileged" if self.document.unprivileged else "privileged"


def _host(scene: _Scene) -> Iterator[Cause]:
    host = scene.host
    if "nvidia" not in scene.known.majors:
        module = host.module("nvidia")
        if module is not None and module.on_disk is False:
            yield Cause(CauseId.DRIVER_NOT_BUILT, f"the NVIDIA module is not built for kernel {host.kernel}")
        else:
            yield Cause(CauseId.DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded on the host")
        return
    for driver in dict.fromkeys(item.driver for item in scene.items if item.driver):
        if driver not in scene.known.majors:
            yield Cause(
                CauseId.DRIVER_NOT_LOADED,
                f"{driver} is not loaded on the host: it is loaded when first used, not at boot",
                (f"/proc/devices has no {driver}",),
            )
    for item in scene.items:
        if scene.known.number(item, host) is None and item.driver:
            continue
        if bad := prepare.wrong(item, scene.known, host, scene.document):
            yield Cause(CauseId.HOST_NODE, f"on the host {bad}", (str(host.node(item.path)),))


def _configuration(scene: _Scene) -> Iterator[Cause]:
    view, name = scene.document.main, scene.name
    access = wanted.access(view, scene.items, scene.known, scene.host)
    denied = [found for found in access if not found.permitted]
    old = () if scene.document.unprivileged else stale.stale(view, scene.host, scene.known)
    explained: set[int] = set()
    for entry in old:
        evidence = (f"line {entry.number}: {entry.key}: {entry.rule}",)
        gone = next((f for f in denied if f.number[0] not in explained and f.item.driver != "nvidia"), None)
        if gone is not None:
            explained.add(gone.number[0])
            yield Cause(
                CauseId.STALE_RULE,
                f"{gone.item.driver} moved from {entry.rule.major} to {gone.number[0]} at this boot; {name} is "
                f"privileged and still allows {entry.rule.major}: CUDA gets EPERM",
                (*evidence, f"/proc/devices: {gone.number[0]} {gone.item.driver}"),
            )
        if entry.owner:
            yield Cause(
                CauseId.STRANGER_RULE,
                f"{name} is allowed {entry.rule.major}, which belongs to {entry.owner} now",
                evidence,
            )
    for line in view.raw:
        if line.key in (rules.LEGACY_ALLOW, rules.LEGACY_DENY):
            text = f"{line.key} is a cgroup v1 key: on this host it is ignored (`{line.value}`)"
            yield Cause(CauseId.LEGACY_KEY, text, (f"line {line.number}",))
    for found in denied:
        if found.number[0] not in explained:
            explained.add(found.number[0])
            major, minor = found.number
            text = f"no device rule of {name} allows {found.item.name} ({major}:{minor}): opening it gets EPERM"
            yield Cause(CauseId.MISSING_RULE, text)
    absent = [found.item.name for found in access if not found.how]
    if absent:
        yield Cause(CauseId.NOT_PASSED_IN, f"{', '.join(absent)} is not passed into {name}")


def _sections(scene: _Scene) -> Iterator[Cause]:
    document, name = scene.document, scene.name
    for line in document.lines:
        about = "nvidia" in line.body or "cgroup" in line.body
        if line.kind is conf.Kind.MALFORMED and about:
            text = f"line {line.number} of {name}'s configuration is malformed and has no effect"
            yield Cause(CauseId.MALFORMED_LINE, text, (line.body.strip(),))
    if document.pending is not None and document.pending.raw:
        lines = tuple(f"line {line.number}: {line.key}: {line.value}" for line in document.pending.raw)
        yield Cause(
            CauseId.PENDING_REPLACES,
            f"[pve:pending] of {name} holds lxc lines: its next start replaces all of the main section's by them",
            lines,
        )
    if not document.main.raw:
        # Lines in a snapshot are normal copies as long as the main section has its own.
        for snapshot, view in document.snapshots.items():
            stray = [line for line in view.raw if line.key in (rules.ALLOW, rules.MOUNT)]
            if stray and any("nvidia" in line.value or " 195:" in line.value for line in stray):
                evidence = tuple(f"line {line.number}: {line.key}: {line.value}" for line in stray)
                text = f"device lines stand in snapshot [{snapshot}] only: they have no effect on {name}"
                yield Cause(CauseId.STRAY_LINE, text, evidence)
    for text in predict.obstacles(document, scene.host):
        yield Cause(CauseId.WILL_NOT_START, f"{name} will not start: {text}")


def _inside(scene: _Scene, inside: CtFacts, before: Iterable[Cause]) -> Iterator[Cause]:
    said = {cause.id for cause in before}
    early: list[str] = []
    for item in scene.items:
        number = scene.known.number(item, scene.host)
        node, outside = inside.node(item.path), scene.host.node(item.path)
        if number is None or outside.kind is not NodeKind.CHAR:
            continue
        how = wanted.how_passed(item.path, wanted.passed_paths(scene.document.main))
        if node.kind in (NodeKind.ABSENT, NodeKind.REGULAR) and how:
            early.append(item.name)
            if node.kind is NodeKind.REGULAR:
                text = f"{item.path} in {scene.name} is a regular file: the mount found no node and made a file"
                yield Cause(CauseId.REGULAR_FILE, text, (f"{node}",))
            continue
        yield from _node(scene, item, node, number, said)
    if early:
        yield Cause(
            CauseId.STARTED_TOO_EARLY,
            f"{scene.name} was started before {', '.join(early)} existed",
            _times(scene, early),
        )
    yield from _libraries(scene, inside)


def _times(scene: _Scene, names: Iterable[str]) -> tuple[str, ...]:
    if scene.started_s is None:
        return ()
    started = scene.started_s
    made = ((name, scene.host.node(f"/dev/{name}").changed_s) for name in names)
    return tuple(
        f"{name} was made {when - started:.0f} s after the container's start"
        for name, when in made
        if when > started
    )


def _node(
    scene: _Scene, item: wanted.Want, node: Node, number: tuple[int, int], said: set[CauseId]
) -> Iterator[Cause]:
    name, path = scene.name, item.path
    if node.kind is not NodeKind.CHAR:
        if node.kind not in (NodeKind.ABSENT, NodeKind.UNREADABLE):
            yield Cause(CauseId.REGULAR_FILE, f"in {name} {node}, not a character device")
    elif node.number != number:
        text = f"{path} in {name} is {node.major}:{node.minor}, the driver has {number[0]}:{number[1]}"
        yield Cause(CauseId.WRONG_NUMBER, text)
    elif node.opened == "EPERM" and not said & {CauseId.STALE_RULE, CauseId.MISSING_RULE}:
        text = f"{path} is denied to {name} (EPERM); its configuration allows it: that was changed after the start"
        yield Cause(CauseId.DENIED, text)
    elif node.opened == "EACCES":
        text = f"{path} has mode {node.mode:04o} and owner {node.uid}:{node.gid} in {scene.kind} {name}: EACCES"
        yield Cause(CauseId.OWNER_OR_MODE, text, (inside_map(scene.inside),))
    elif node.opened in ("EIO", "ENODEV", "ENXIO"):
        text = f"{path} is right but opening it gives {node.opened}: the GPU is excluded or failed to initialise"
        yield Cause(CauseId.GPU_FAULT, text, ("see `dmesg | grep -i -e xid -e nvrm` on the host",))


def inside_map(inside: CtFacts | None) -> str:
    """The first line of the container's uid map."""
    text = inside.uid_map.text.strip() if inside else ""
    return f"uid_map: {' '.join(text.splitlines()[0].split())}" if text else "uid_map: not known"


def driver_version(host: HostFacts) -> str:
    """Version of the loaded kernel module, from /proc/driver/nvidia/version; empty when it can't be told."""
    match = re.search(r"Kernel Module.*?\s(\d{2,}\.\d+(?:\.\d+)?)\s", host.driver.text)
    return match[1] if match else ""


def _libraries(scene: _Scene, inside: CtFacts) -> Iterator[Cause]:
    loaded = driver_version(scene.host)
    versions = sorted({library.partition(".so.")[2] for library in inside.libraries})
    if loaded and versions and loaded not in versions:
        yield Cause(
            CauseId.LIBRARY_VERSION,
            f"the driver's libraries in {scene.name} are {', '.join(versions)}, the host's module is {loaded}: they "
            f"must be equal to the last digit; a restart does not help, installing {loaded} in {scene.name} does",
            inside.libraries,
        )
