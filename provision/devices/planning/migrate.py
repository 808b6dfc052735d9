"""NVIDIA's raw mount entries and device rules turned into `dev[n]`, which follows a major that moves."""

from __future__ import annotations

from inventory.errors import CannotLook, Failed, GpuctlError, Refused
from provision.devices import wanted
from provision.devices.config import conf, rules
from provision.devices.diagnosis import stale
from provision.devices.facts import HostFacts, NodeKind
from provision.devices.planning import mend
from provision.devices.planning.draft import Draft, has_dev, nvidia, rule_majors


def unsupported(host: HostFacts) -> GpuctlError | None:
    """Why this host can't be given `dev[n]`."""
    known = has_dev(host)
    if known is None:
        return CannotLook(
            "the version of pve-container on the host isn't known, so neither is whether it has dev[n]",
            hint="dev[n] needs pve-container 5.0.7 (Proxmox VE 8.1); `pveversion -v` on the host tells it",
        )
    if known:
        return None
    return Refused(
        f"pve-container {host.pve_container} on the host has no dev[n], so raw lines can't be turned into it",
        hint="dev[n] came with pve-container 5.0.7 (Proxmox VE 8.1); without --prefer dev the raw lines are kept",
    )


def to_dev(draft: Draft) -> GpuctlError | None:
    """Make every wanted node a `dev[n]` and take NVIDIA's raw lines out; an error says why that can't be."""
    raw = stale.has_raw_nvidia(draft.view)
    old = {entry.number for entry in stale.stale(draft.view, draft.host, draft.known, raw=raw)}
    for line in draft.view.raw:
        if line.key == rules.MOUNT and nvidia(source := rules.bound(line.value)):
            if error := _mount(draft, line, source):
                return error
        elif line.number in old or _ours(draft, line):
            draft.remove(line, f"remove `{line.key}: {line.value}`: dev[n] needs no rule")
    mend.rename_legacy(draft, rules.LEGACY_ALLOW)
    mend.drop_deny_write(draft)
    for item in draft.items:
        if item.driver and not _by_dev(draft, item.path):
            mend.pass_in(draft, item, raw=False)
            if not _by_dev(draft, item.path):
                return _cannot(draft, item.path)
    mend.add_missing(draft, by_dev=True)
    mend.rename_legacy(draft, rules.LEGACY_DENY)
    return None


def _by_dev(draft: Draft, path: str) -> bool:
    return wanted.how_passed(path, draft.setup().passed).startswith("dev")


def _cannot(draft: Draft, path: str) -> GpuctlError:
    node = draft.host.node(path)
    if node.kind is not NodeKind.CHAR:
        return Failed(f"{path} can't become a dev[n]: {node}", hint="stage host makes missing nodes first")
    if not draft.free_dev():
        return Failed("all 256 dev[n] of the container are taken", hint="take one out that isn't needed, by hand")
    return Refused(
        f"{path} can't become a dev[n]: Proxmox does not take such a path", hint="leave out --prefer dev"
    )


def _ours(draft: Draft, line: conf.Line) -> bool:
    """Whether a line is a rule for NVIDIA's devices alone; also one that LXC can't read."""
    if line.key not in (rules.ALLOW, rules.LEGACY_ALLOW):
        return False
    if path := rules.rule_path(line.value):
        return nvidia(path)
    rule = rules.parse_rule(line.value) or rules.guessed(line.value)
    if rule is None or rule.type == "b" or rule.major is None:
        return False
    return rule.major in rule_majors(draft.known) - wanted.foreign_majors(draft.host)


def _mount(draft: Draft, line: conf.Line, source: str) -> GpuctlError | None:
    mount = rules.parse_mount(line.value)
    if mount is None or rules.plain(f"/{mount.target}") != source:
        return Refused(
            f"line {line.number} mounts {source} at another path, and a dev[n] has the path it has on the host",
            hint="take that line out by hand, or leave out --prefer dev",
        )
    node = draft.host.node(source)
    if node.kind is NodeKind.CHAR:
        return _turn(draft, line, source, (source,))
    if node.kind is NodeKind.DIRECTORY:
        inside = tuple(
            n.path for n in draft.host.nodes if n.kind is NodeKind.CHAR and n.path.startswith(f"{source}/")
        )
        if inside:
            return _turn(draft, line, source, inside)
        if source != "/dev/nvidia-caps":  # the one folder that is always looked into
            return Refused(
                f"line {line.number} mounts the folder {source}, and which nodes it has isn't known",
                hint="name them in `devices.wanted` and take that line out by hand",
            )
    elif any(item.path == source for item in draft.items):
        return _cannot(draft, source)
    draft.remove(line, f"remove the mount of {source}, which has no node now: as dev[n] it would stop the start")
    return None


def _turn(draft: Draft, line: conf.Line, source: str, paths: tuple[str, ...]) -> GpuctlError | None:
    passed = draft.setup().passed
    new = [path for path in paths if not passed.get(path, "").startswith("dev")]
    entries = []
    for path in new:
        key, value = draft.free_dev(), draft.dev_value(draft.host.node(path))
        if not key or rules.read_device(value)[0] is None:
            return _cannot(draft, path)
        entries.append(f"`{key}: {value}`")
        draft.insert(key, value, f"turn the mount of {source} into `{key}: {value}`")
    draft.remove(line, "")
    draft.lines.pop()
    if not entries:
        draft.lines.append(f"remove the mount of {source}, which a dev[n] brings in already")
    return None
