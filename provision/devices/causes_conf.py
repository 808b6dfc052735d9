"""What the configuration does wrong: lines without effect, nodes it does not give, what waits or will not start."""

from __future__ import annotations

from collections.abc import Iterator

from provision.devices import causes_rules, causes_sections, conf, lines, rules, wanted
from provision.devices.cause import Cause, CauseId, Scene, are, several, shown
from provision.devices.facts import NodeKind
from provision.devices.lacking import Lacking, lacking, no_rule


def causes(scene: Scene) -> tuple[Cause, ...]:
    """Causes of the main section, then of the others, then what the next start will change or meet."""
    left = lacking(scene)
    found: list[Cause] = []
    if "lxc" in scene.document.main.values:
        text = f"{scene.host.conf_path} has a plain `lxc:` line, which makes Proxmox forget all raw lines above it"
        found.append(
            Cause(CauseId.HIDDEN_LINES, text, hint="take that line out by hand").leads_to(*no_rule(left.denied))
        )
        left.denied.clear()
    judged = causes_rules.stale_rules(scene, left.denied)
    done = {found.number for found in judged.explained}
    left.denied = [found for found in left.denied if found.number not in done]
    found += judged.causes
    forbidden = causes_rules.deny_rules(scene)
    named = {name for _, names in forbidden for name in names}
    left.denied = [entry for entry in left.denied if entry.item.name not in named]
    found += [cause for cause, _ in forbidden]
    found += _without_effect(scene, left)
    found += causes_sections.elsewhere(scene, left)
    pending = causes_sections.waiting(scene, left)
    found += _left(scene, left)
    return (*found, *pending, *judged.notes)


def _without_effect(scene: Scene, left: Lacking) -> Iterator[Cause]:
    """Lines of the main section that do not do what they were written for."""
    name, document = scene.name, scene.document
    for line in document.lines:
        if line.section != 0:
            continue
        if line.kind is conf.Kind.MALFORMED and not line.body.startswith("[") and lines.about_devices(line):
            text = f"line {line.number} of {name}'s configuration is malformed and has no effect: `{line.body.strip()}`"
            yield Cause(CauseId.MALFORMED_LINE, text, (shown(line),), hint=_BY_HAND).leads_to(
                *left.explained(scene, line.body)
            )
        if line.kind is not conf.Kind.RAW:
            continue
        if why := lines.bad_rule(line):
            text = f"LXC can't read line {line.number} of {name}'s configuration, `{line.value}`: {why}"
            yield Cause(CauseId.BAD_RULE, text, (shown(line),), hint=_BY_HAND).leads_to(
                *left.explained(scene, line.value)
            )
        elif meant := lines.misspelt(line):
            text = f"line {line.number} of {name}'s configuration says {line.key}, where {meant} is meant"
            acts = "LXC reads it as a deny" if lines.acts_as_deny(line) else "LXC knows no such key"
            yield Cause(CauseId.MISSPELT_KEY, text, (shown(line),), acts, hint=_BY_HAND).leads_to(
                *left.explained(scene, line.value)
            )
    yield from _legacy(scene, left)
    yield from causes_sections.false_headers(scene)
    yield from _no_target(scene)


_BY_HAND = "correct that line by hand: the next write by Proxmox may drop it"


def _legacy(scene: Scene, left: Lacking) -> Iterator[Cause]:
    for line in scene.document.main.raw:
        if line.key not in (rules.LEGACY_ALLOW, rules.LEGACY_DENY):
            continue
        text = f"{line.key} is a cgroup v1 key: on this host it is ignored (`{line.value}`)"
        before = (len(left.denied), len(left.absent))
        follows = left.explained(scene, line.value) if line.key == rules.LEGACY_ALLOW else ()
        harmless = before == (len(left.denied), len(left.absent))
        yield Cause(CauseId.LEGACY_KEY, text, (shown(line),), "; ".join(follows), note=harmless)


def _no_target(scene: Scene) -> Iterator[Cause]:
    """Optional mounts that LXC leaves out without a word, because nothing makes the file to mount on."""
    for item in scene.items:
        for line, mount in lines.mounts(scene.document.main):
            if (
                mount.source != item.path
                or not mount.optional
                or not lines.without_target(scene.document.main, mount)
            ):
                continue
            if scene.inside is not None and scene.inside.node(item.path).kind is not NodeKind.ABSENT:
                continue
            text = f"the mount of {item.name} into {scene.name} has no create=file, so LXC leaves it out without a word"
            yield Cause(CauseId.NO_TARGET, text, (shown(line),), f"{item.path} is not there inside", hint=_BY_HAND)


def _left(scene: Scene, left: Lacking) -> Iterator[Cause]:
    """What no line explains."""
    denied = [found for found in left.denied if found not in left.absent or found.how]
    if denied:
        names = [f"{f.item.name} ({f.number[0]}:{f.number[1]})" for f in denied]
        text = f"no device rule of {scene.name} allows {several(names)}: {causes_rules.effect(denied)}"
        yield Cause(CauseId.MISSING_RULE, text, causes_rules.related(scene, denied))
    absent = [found.item.name for found in left.absent]
    if absent:
        evidence = [shown(line) for item in left.absent for line in _under_other_names(scene, item.item)]
        text = f"{several(absent)} {are(absent)} not passed into {scene.name}"
        yield Cause(CauseId.NOT_PASSED_IN, text, tuple(evidence), f"opening {several(absent)} there gets ENOENT")


def _under_other_names(scene: Scene, item: wanted.Want) -> Iterator[conf.Line]:
    for line, mount in lines.mounts(scene.document.main):
        if mount.source.startswith(item.path) or f"/{mount.target}" == item.path:
            yield line
