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
    broken = [
        (item, bad)
        for item in scene.items
        if (scene.known.number(item, host) is not None or not item.driver)
        and (bad := prepare.wrong(item, scene.known, host, scene.document))
    ]
    for bad in prepare.reasons(broken):
        evidence = tuple(str(host.node(item.path)) for item, _ in broken)
        yield Cause(CauseId.HOST_NODE, f"on the host {bad}", evidence)


def _configuration(scene: _Scene) -> Iterator[Cause]:
    view, name = scene.document.main, scene.name
    access = wanted.access(view, scene.items, scene.known, scene.host)
    denied = [found for found in access if not found.permitted]
    raw = stale.has_raw_nvidia(view)
    old = () if scene.document.unprivileged else stale.stale(view, scene.host, scene.known, raw=raw)
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
    found: dict[CauseId, list[Node]] = {}
    for item in scene.items:
        number = scene.known.number(item, scene.host)
        if number is None or scene.host.node(item.path).kind is not NodeKind.CHAR:
            continue
        node = inside.node(item.path)
        kind = _fault(node, number)
        passed = wanted.how_passed(item.path, wanted.passed_paths(scene.document.main))
        if kind is CauseId.STARTED_TOO_EARLY and not passed:
            continue  # said already: it isn't passed in
        if kind is CauseId.DENIED and said & {CauseId.STALE_RULE, CauseId.MISSING_RULE}:
            continue  # said already: the rule
        if kind is not None:
            found.setdefault(kind, []).append(node)
    for kind, nodes in found.items():
        yield _told(scene, kind, nodes)
    yield from _libraries(scene, inside)


def _fault(node: Node, number: tuple[int, int]) -> CauseId | None:
    """What kind of thing is wrong with a node inside; None when nothing is, or it could not be looked at."""
    if node.kind is NodeKind.ABSENT:
        return CauseId.STARTED_TOO_EARLY
    if node.kind is NodeKind.UNREADABLE:
        return None
    if node.kind is not NodeKind.CHAR:
        return CauseId.REGULAR_FILE
    if node.number != number:
        return CauseId.WRONG_NUMBER
    return {
        "EPERM": CauseId.DENIED,
        "EACCES": CauseId.OWNER_OR_MODE,
        "EIO": CauseId.GPU_FAULT,
        "ENODEV": CauseId.GPU_FAULT,
        "ENXIO": CauseId.GPU_FAULT,
    }.get(node.opened or "")


def _told(scene: _Scene, kind: CauseId, nodes: list[Node]) -> Cause:
    """One cause for all nodes with the same fault."""
    name, first = scene.name, nodes[0]
    which = ", ".join(node.path.removeprefix("/dev/") for node in nodes)
    verb = "is" if len(nodes) == 1 else "are"
    early = f"{name} was started before {which} existed on the host"
    text = {
        CauseId.STARTED_TOO_EARLY: early,
        CauseId.REGULAR_FILE: f"{early}: a plain file was left there instead, which opens without an error",
        CauseId.WRONG_NUMBER: f"{which} in {name} {verb} made for {first.major}, which the driver does not have now",
        CauseId.DENIED: f"{which} {verb} denied to {name} (EPERM): it was started with other device rules",
        CauseId.OWNER_OR_MODE: f"EACCES in {scene.kind} {name}: {which} {verb} {first.mode:04o} of "
        f"{first.uid}:{first.gid}",
        CauseId.GPU_FAULT: f"{which} {verb} right but opening gives {first.opened}: the GPU is excluded or has failed",
    }[kind]
    evidence = [str(node) for node in nodes]
    if kind in (CauseId.STARTED_TOO_EARLY, CauseId.REGULAR_FILE):
        evidence += _times(scene, [node.path for node in nodes])
    if kind is CauseId.OWNER_OR_MODE:
        evidence.append(inside_map(scene.inside))
    if kind is CauseId.GPU_FAULT:
        evidence.append("see `dmesg | grep -i -e xid -e nvrm` on the host")
    return Cause(kind, text, tuple(evidence))


def _times(scene: _Scene, paths: Iterable[str]) -> tuple[str, ...]:
    if scene.started_s is None:
        return ()
    started = scene.started_s
    made = ((path, scene.host.node(path).changed_s - started) for path in paths)
    return tuple(f"{path} was made {after:.0f} s after the container's start" for path, after in made if after > 0)


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
