"""Device rules for numbers that NVIDIA's drivers no longer have, and rules that forbid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.devices import procdev, wanted
from provision.devices.config import conf, lines, rules
from provision.devices.diagnosis import stale
from provision.devices.diagnosis.cause import Cause, CauseId, Scene, several, shown
from provision.devices.facts import NodeKind


def effect(denied: Iterable[wanted.Access]) -> str:
    """What a user meets when device rules keep these nodes from a container."""
    found = tuple(denied)
    if any(entry.item.driver == "nvidia-uvm" for entry in found):
        return "CUDA gets EPERM"
    return f"opening {'it' if len(found) == 1 else 'them'} gets EPERM"


def works(scene: Scene, denied: Iterable[wanted.Access]) -> bool:
    """Whether these nodes open in the running container all the same: a rule was given to it while it ran."""
    if scene.inside is None:
        return False
    nodes = [(entry.number, scene.inside.node(entry.item.path)) for entry in denied]
    return all(
        node.kind is NodeKind.CHAR and node.number == number and node.opened == "" for number, node in nodes
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """Causes made of stale rules, which denied nodes they explain, and what is only worth knowing."""

    causes: tuple[Cause, ...] = ()
    explained: tuple[wanted.Access, ...] = ()
    notes: tuple[Cause, ...] = ()


def stale_rules(scene: Scene, denied: Sequence[wanted.Access]) -> Judged:
    """Rules for numbers of earlier boots. Never in an unprivileged container: rules have no effect there."""
    if scene.free:
        return Judged()
    view = scene.document.main
    raw = stale.has_raw_nvidia(view)
    old = stale.stale(view, scene.host, scene.known, raw=raw)
    majors = _by_likelihood(old)
    # One driver for each number, nvidia-uvm first; numbers that are left over were nvidia-uvm's of other boots.
    moved = sorted(
        dict.fromkeys(f.item.driver for f in denied if f.number[0] != procdev.NVIDIA and f.item.driver),
        key=lambda name: name != "nvidia-uvm",
    )
    shares: dict[str, list[int]] = {name: [] for name in moved[: len(majors)]}
    for n, major in enumerate(majors):
        if moved:
            shares[moved[min(n, len(moved) - 1)]].append(major)
    causes, explained = [], []
    for name, mine in shares.items():
        gone = [found for found in denied if found.item.driver == name]
        causes.append(_moved(scene, gone, mine, [entry for entry in old if entry.rule.major in mine]))
        explained += gone
    strangers = _strangers(scene, old)
    notes = [] if moved else _left_over(scene, [entry for entry in old if not entry.owner])
    return Judged((*causes, *strangers), tuple(explained), tuple(notes))


def _by_likelihood(old: Iterable[stale.Stale]) -> list[int]:
    """Stale numbers; one that another driver has now is the less likely to have been NVIDIA's last."""
    ordered = sorted(old, key=lambda entry: bool(entry.owner))
    return list(dict.fromkeys(entry.rule.major for entry in ordered if entry.rule.major is not None))


def _moved(scene: Scene, gone: list[wanted.Access], majors: list[int], old: list[stale.Stale]) -> Cause:
    name, now = gone[0].item.driver, gone[0].number[0]
    before = [str(major) for major in majors]
    then = f"it works now, and after its next start {effect(gone)}" if works(scene, gone) else effect(gone)
    text = (
        f"{name} moved from {several(before, 'or')} to {now} at this boot; {scene.name} is privileged and still allows "
        f"{several(before)}: {then}"
    )
    evidence = [f"line {entry.number}: {entry.key}: {entry.rule}" for entry in old]
    evidence.append(f"/proc/devices: {now} {name}")
    for found in gone:
        if scene.inside is not None and (opened := scene.inside.node(found.item.path).opened):
            evidence.append(f"in {scene.name} opening {found.item.path} gives {opened}")
    for snapshot, view in scene.document.snapshots.items():
        there = [x for x in view.raw if x.key == rules.ALLOW and lines.names_number(x.value, gone[0].number)]
        evidence += [f"{shown(line)} (in snapshot [{snapshot}], without effect)" for line in there]
    follows = ""
    if name == "nvidia-uvm" and not works(scene, gone):
        follows = "nvidia-smi still answers; cuInit fails with 999, and programs fall back to the CPU"
    return Cause(CauseId.STALE_RULE, text, tuple(evidence), follows)


def _strangers(scene: Scene, old: Iterable[stale.Stale]) -> list[Cause]:
    found: dict[int, list[stale.Stale]] = {}
    for entry in old:
        if entry.owner:
            found.setdefault(entry.rule.major or 0, []).append(entry)
    return [
        Cause(
            CauseId.STRANGER_RULE,
            f"{scene.name} is allowed {major}, which belongs to {entries[0].owner} now",
            tuple(f"line {entry.number}: {entry.key}: {entry.rule}" for entry in entries),
            f"{scene.name} may open devices of {entries[0].owner}",
        )
        for major, entries in found.items()
    ]


def _left_over(scene: Scene, old: list[stale.Stale]) -> list[Cause]:
    if not old:
        return []
    numbers = several(str(major) for major in _by_likelihood(old))
    return [
        Cause(
            CauseId.OLD_RULE,
            f"{scene.name} still allows {numbers}, which no driver has now",
            tuple(f"line {entry.number}: {entry.key}: {entry.rule}" for entry in old),
            "whichever driver gets that number next is open to it",
            note=True,
        )
    ]


def deny_rules(scene: Scene) -> tuple[tuple[Cause, tuple[str, ...]], ...]:
    """Rules and `deny-write` that forbid a wanted node on purpose, each with the names of those nodes."""
    view = scene.document.main
    found: list[tuple[Cause, tuple[str, ...]]] = []
    specs = {f"dev{d.index}": d.spec for d in conf.devices(view) if d.spec is not None}
    items = wanted.access(view, scene.items, scene.known, scene.host)
    kept = [a for a in items if (spec := specs.get(a.how)) is not None and spec.deny_write]
    if kept:
        names = tuple(a.item.name for a in kept)
        text = f"{several(names)} must be opened for writing, and {scene.name} has {several(a.how for a in kept)} with "
        evidence = tuple(f"{a.how}: {view.values[a.how]}" for a in kept)
        found.append(
            (Cause(CauseId.DENY_RULE, f"{text}deny-write: {effect(kept)}", evidence, hint=_ON_PURPOSE), names)
        )
    start = [(rules.ALLOW, "a")] if scene.free else []
    program = rules.program([*start, *((line.key, line.value) for line in view.raw)])
    for line in view.raw:
        rule = rules.parse_rule(line.value) if line.key == rules.DENY and line.value != "a" else None
        if rule is None:
            continue
        mine = [a for a in items if rule.covers(*a.number, access="") and a not in kept and a.how not in specs]
        mine = [a for a in mine if not program.allows(*a.number)]
        if mine:
            names = tuple(a.item.name for a in mine)
            text = f"{scene.name} forbids {several(names)} by `{line.key}: {line.value}`: {effect(mine)}"
            found.append((Cause(CauseId.DENY_RULE, text, (shown(line),), hint=_ON_PURPOSE), names))
    return tuple(found)


_ON_PURPOSE = "take that line out by hand: it was put there on purpose"


def related(scene: Scene, denied: Iterable[wanted.Access]) -> tuple[str, ...]:
    """Lines about the same majors that do not suffice, and why."""
    found: dict[str, None] = {}
    majors = {entry.number[0] for entry in denied}
    for line in scene.document.main.raw:
        rule = rules.parse_rule(line.value) if line.key == rules.ALLOW else None
        if rule is None or rule.major not in majors:
            continue
        why = (
            "a block device" if rule.type == "b" else "only this minor" if rule.minor is not None else
            "" if {"r", "w"} <= set(rule.access) else f"only `{rule.access}`"
        )  # fmt: skip
        if why:
            found[f"{shown(line)} ({why})"] = None
    found.update({f"{shown(line)} (may bring rules that gpuctl does not see)": None for line in scene.hooked})
    return tuple(found)
