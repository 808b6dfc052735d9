"""What the configuration does wrong: lines without effect, nodes it does not give, what waits or will not start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from provision.devices import wanted
from provision.devices.config import conf, lines, rules
from provision.devices.diagnosis import causes_rules, causes_sections
from provision.devices.diagnosis.cause import Cause, CauseId, Scene, are, several, shown
from provision.devices.diagnosis.lacking import Lacking, lacking, no_rule
from provision.devices.facts import NodeKind


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
    main = [line for line in scene.document.lines if line.section == 0]
    malformed = [x for x in main if x.kind is conf.Kind.MALFORMED and not x.body.startswith("[")]
    yield from _malformed(scene, [line for line in malformed if lines.about_devices(line)], left)
    raw = scene.document.main.raw
    for why, mine in _grouped(raw, lines.bad_rule):
        text = f"LXC can't read {_which(mine)} of {scene.name}'s configuration, {_values(mine)}: {why}"
        cause = Cause(CauseId.BAD_RULE, text, tuple(map(shown, mine)), hint=_BY_HAND)
        yield cause.leads_to(*left.explained(scene, (line.value for line in mine)))
    for meant, mine in _grouped(
        raw, lambda line: lines.misspelt(line) and f"{line.key}, where {lines.misspelt(line)}"
    ):
        deny = lines.acts_as_deny(mine[0])
        follows = left.explained(scene, (line.value for line in mine))
        text = f"{_which(mine)} of {scene.name}'s configuration {_verb(mine, 'say')} {meant} is meant"
        acts = "LXC reads it as a deny" if deny else "LXC knows no such key"
        harmless = deny and not follows
        cause = Cause(CauseId.MISSPELT_KEY, text, tuple(map(shown, mine)), acts, harmless, _BY_HAND)
        yield cause.leads_to(*follows)
    yield from _legacy(scene, left)
    yield from causes_sections.false_headers(scene)
    yield from _no_target(scene)


_BY_HAND = "correct it by hand: the next write by Proxmox may drop it"


def _grouped(raw: Iterable[conf.Line], word: Callable[[conf.Line], str]) -> list[tuple[str, list[conf.Line]]]:
    """Lines for which `word` says the same, with what it says; not those for which it says nothing."""
    found: dict[str, list[conf.Line]] = {}
    for line in raw:
        if told := word(line):
            found.setdefault(told, []).append(line)
    return list(found.items())


def _which(mine: list[conf.Line]) -> str:
    return f"line{'s' if len(mine) > 1 else ''} {several(str(line.number) for line in mine)}"


def _values(mine: list[conf.Line]) -> str:
    return several(f"`{line.value}`" for line in mine)


def _verb(mine: list[conf.Line], verb: str) -> str:
    return verb if len(mine) > 1 else f"{verb}s"


def _malformed(scene: Scene, mine: list[conf.Line], left: Lacking) -> Iterator[Cause]:
    if not mine:
        return
    state = "are malformed and have no effect" if len(mine) > 1 else "is malformed and has no effect"
    told = several(f"`{line.body.strip()}`" for line in mine)
    follows = left.explained(scene, (line.body for line in mine))
    text = f"{_which(mine)} of {scene.name}'s configuration {state}: {told}"
    cause = Cause(CauseId.MALFORMED_LINE, text, tuple(map(shown, mine)), note=not follows, hint=_BY_HAND)
    yield cause.leads_to(*follows)


def _legacy(scene: Scene, left: Lacking) -> Iterator[Cause]:
    for key in (rules.LEGACY_ALLOW, rules.LEGACY_DENY):
        mine = [line for line in scene.document.main.raw if line.key == key]
        if not mine:
            continue
        follows = left.explained(scene, (line.value for line in mine)) if key == rules.LEGACY_ALLOW else ()
        text = f"{key} is a cgroup v1 key: on this host it is ignored ({_values(mine)})"
        yield Cause(CauseId.LEGACY_KEY, text, tuple(map(shown, mine)), note=not follows).leads_to(*follows)


def _no_target(scene: Scene) -> Iterator[Cause]:
    """Optional mounts that LXC leaves out without a word, because nothing makes the file to mount on."""
    view, wanted_paths = scene.document.main, {item.path for item in scene.items}
    mine = [(x, m) for x, m in lines.mounts(view) if m.source in wanted_paths and m.optional]
    mine = [(x, m) for x, m in mine if lines.without_target(view, m)]
    if scene.inside is not None:
        mine = [(x, m) for x, m in mine if scene.inside.node(m.source).kind is NodeKind.ABSENT]
    names = [mount.source.removeprefix("/dev/") for _, mount in mine]
    if names:
        verb = "has" if len(set(names)) == 1 else "have"
        text = (
            f"the mount of {several(names)} into {scene.name} {verb} no create=file, so LXC leaves it out silently"
        )
        evidence = tuple(shown(line) for line, _ in mine)
        yield Cause(CauseId.NO_TARGET, text, evidence, f"{several(names)} {are(names)} not there inside")


def _left(scene: Scene, left: Lacking) -> Iterator[Cause]:
    """What no line explains."""
    denied = [found for found in left.denied if found not in left.absent or found.how]
    if denied:
        names = [f"{f.item.name} ({f.number[0]}:{f.number[1]})" for f in denied]
        effect = causes_rules.effect(denied)
        then = f"it works now, and after its next start {effect}" if causes_rules.works(scene, denied) else effect
        text = f"no device rule of {scene.name} allows {several(names)}: {then}"
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
