"""What stands in the wrong section, what waits there for the next start, and what will stop that start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from provision.devices import wanted
from provision.devices.config import conf, rules
from provision.devices.diagnosis import predict
from provision.devices.diagnosis.cause import Cause, CauseId, Scene, several, shown
from provision.devices.diagnosis.lacking import Lacking


def elsewhere(scene: Scene, left: Lacking) -> Iterator[Cause]:
    """Lines that stand in a snapshot only, where they have no effect on the container."""
    for snapshot, view in scene.document.snapshots.items():
        mine = [line for line in view.raw if line.key in (rules.ALLOW, rules.MOUNT, rules.LEGACY_ALLOW)]
        follows = left.explained(scene, (line.value for line in mine))
        if follows:
            text = f"device lines stand in snapshot [{snapshot}] only: they have no effect on {scene.name}"
            yield Cause(CauseId.STRAY_LINE, text, tuple(map(shown, mine))).leads_to(*follows)


def waiting(scene: Scene, left: Lacking) -> list[Cause]:
    """What the next start will take away or bring."""
    pending = scene.document.pending
    if pending is None:
        return []
    lost = _lost(scene)
    found = [_replaced(scene, pending, left, lost)] if pending.raw else []
    return [*found, *_changed(scene, pending, left, () if pending.raw else lost)]


def _replaced(scene: Scene, pending: conf.View, left: Lacking, lost: tuple[str, ...]) -> Cause:
    """Raw lines in [pve:pending] take the place of all raw lines of the main section."""
    kept = {(line.key, line.value) for line in pending.raw}
    gone = [line for line in scene.document.main.raw if (line.key, line.value) not in kept]
    gone.sort(key=lambda line: line.key == rules.MOUNT)
    text = (
        f"[pve:pending] of {scene.name} holds lxc lines: its next start replaces all of the main section's by them"
    )
    if gone:
        text += f", so {several(f'`{line.key}: {line.value}`' for line in gone[:4])} will be lost"
    wait = left.explained(scene, (line.value for line in pending.raw))
    harmless = not wait and not lost
    cause = Cause(
        CauseId.PENDING_REPLACES, text, tuple(shown(x) for x in pending.raw), note=harmless, hint=_PENDING
    )
    return cause.leads_to(*(f"until then {entry}" for entry in wait), *lost)


def _changed(scene: Scene, pending: conf.View, left: Lacking, lost: tuple[str, ...]) -> Iterator[Cause]:
    """`dev[n]` entries that the next start brings, changes or takes away."""
    keys = [key for key in pending.values if _is_device(key)]
    then = scene.document.next_start.values
    deleted = [key for key in scene.document.main.values if _is_device(key) and key not in then]
    if not keys and not deleted:
        return
    wait = left.explained(scene, (pending.values[key] for key in keys), bring_rules=True)
    told = [
        *(f"{key} is taken away" for key in deleted),
        *(f"{key} becomes {pending.values[key]}" for key in keys),
    ]
    yield Cause(
        CauseId.PENDING_CHANGES,
        f"changes of {scene.name} wait in [pve:pending] for its next start: {several(told)}",
        tuple(f"[pve:pending] {key}: {value}" for key, value in pending.values.items()),
        note=not wait and not lost,
        hint=_PENDING if lost else f"stop and start {scene.name}: they take effect then",
    ).leads_to(*(f"until then {entry}" for entry in wait), *lost)


def _is_device(key: str) -> bool:
    return key.startswith("dev") and key[3:].isdigit()


_PENDING = "move the lxc and dev lines of [pve:pending] into the main section or remove them, by hand"


def _lost(scene: Scene) -> tuple[str, ...]:
    """Nodes that the main section gives and the next start will not."""
    now = {a.item.path: a for a in wanted.access(scene.document.main, scene.items, scene.known, scene.host)}
    then = wanted.access(scene.document.next_start, scene.items, scene.known, scene.host)
    lost = [entry for entry in then if not entry.good and now[entry.item.path].good]
    return (f"its next start takes {several(e.item.name for e in lost)} away",) if lost else ()


def false_headers(scene: Scene) -> Iterator[Cause]:
    header: conf.Line | None = None
    below: list[conf.Line] = []
    for line in scene.document.lines:
        if line.section != 0:
            break
        if line.body.startswith("["):
            header = header or line
        elif header is not None and (line.kind is conf.Kind.RAW or line.kind is conf.Kind.VALUE):
            below.append(line)
    if header is not None and below:
        yield Cause(
            CauseId.FALSE_HEADER,
            f"line {header.number} of {scene.name}'s configuration, {header.body.strip()!r}, looks like a section, but "
            "Proxmox skips it: the lines below count for the running container and overrule those above",
            tuple(shown(line) for line in (header, *below[:8])),
            hint="rename that section, or take it out by hand",
        )


def will_not_start(scene: Scene, found: Iterable[Cause], missing: frozenset[str]) -> tuple[Cause, ...]:
    """The same causes with what stops the next start: as what follows from one of them, or as a cause of its own."""
    causes_ = list(found)
    will = "runs, but will not start again" if scene.running else "will not start"
    own: list[predict.Obstacle] = []
    for obstacle in predict.found_obstacles(scene.document, scene.host):
        told = f"{scene.name} {will}: {obstacle.text}"
        at = next((n for n, cause in enumerate(causes_) if _behind(cause, obstacle, missing)), None)
        if at is None:
            own.append(obstacle)
        else:
            causes_[at] = causes_[at].leads_to(told)
    if own:
        text = f"{scene.name} {will}: {own[0].text}"
        cause = Cause(CauseId.WILL_NOT_START, text, tuple(o.text for o in own[1:]), hint=_START)
        causes_.insert(0 if scene.running is False else len(causes_), cause)
    return tuple(causes_)


_START = "make the node on the host, or take out the line of a device that is gone"


def _behind(cause: Cause, obstacle: predict.Obstacle, missing: frozenset[str]) -> bool:
    """Whether an obstacle only follows from a cause that is said."""
    if cause.note:
        return False
    if cause.id in (CauseId.BAD_RULE, CauseId.MISSPELT_KEY, CauseId.NO_TARGET):
        return any(line.startswith(f"line {obstacle.line}:") for line in cause.evidence)
    nodes = (CauseId.HOST_NODE, CauseId.HOST_NODE_KIND, CauseId.NODES_FORBIDDEN, CauseId.NO_MODPROBE)
    driver = (
        CauseId.NO_GPU, CauseId.DRIVER_NOT_INSTALLED, CauseId.DRIVER_NOT_BUILT, CauseId.SECURE_BOOT,
        CauseId.WRONG_FLAVOUR, CauseId.CARD_NOT_SUPPORTED, CauseId.FOREIGN_DRIVER, CauseId.DRIVER_NOT_LOADED,
        CauseId.MODULE_OLDER,
    )  # fmt: skip
    return obstacle.path in missing and cause.id in (*nodes, *driver)
