"""What is said about a configuration and left alone."""

from __future__ import annotations

from collections.abc import Iterator

from provision.devices.config import conf, rules
from provision.devices.facts import NodeKind
from provision.devices.planning import mend
from provision.devices.planning.draft import Draft, has_dev, nvidia


def doubts(draft: Draft) -> tuple[str, ...]:
    """One sentence for each thing that a plan leaves as it is although it is odd or dangerous."""
    return (*_rules(draft), *_entries(draft), *_elsewhere(draft))


def _rules(draft: Draft) -> Iterator[str]:
    for line in draft.view.raw:
        if not line.key.startswith("lxc.cgroup") or ".devices" not in line.key or line.number in draft.changes:
            continue
        told = f"line {line.number}, `{line.key}: {line.value}`,"
        rule = rules.parse_rule(line.value)
        if line.key in mend.MODERN:
            if not draft.free and not mend.may_rename(draft, mend.MODERN[line.key], line.value):
                yield f"{told} has no effect, and renamed to cgroup2 it would change what works: it is left alone"
        elif not rules.readable(line.key, line.value):
            yield f"{told} is no rule that LXC can read: the container won't start until it is corrected"
        elif line.key not in (rules.ALLOW, rules.DENY):
            yield f"{told} counts as a deny rule: LXC knows devices.allow and devices.deny only"
        elif line.key == rules.ALLOW and rule is not None and not draft.free and _all(rule):
            yield f"{told} lets a privileged container open every device of the host: it is left alone"


def _all(rule: rules.Rule) -> bool:
    return rule.type in "ac" and rule.major is None and {"r", "w"} <= set(rule.access)


def _entries(draft: Draft) -> Iterator[str]:
    devices = draft.setup().devices
    for device in devices:
        if device.spec is None:
            yield f"dev{device.index} is refused by Proxmox: {device.problem.splitlines()[-1]}"
            continue
        kind = draft.host.node(device.spec.path).kind
        if kind in (NodeKind.ABSENT, NodeKind.REGULAR, NodeKind.DIRECTORY):
            what = "does not exist" if kind is NodeKind.ABSENT else "is not a device"
            yield f"dev{device.index} names {device.spec.path}, which {what} on the host: the container won't start"
    mine = [device for device in devices if device.spec is not None and nvidia(device.spec.path)]
    if mine and has_dev(draft.host) is False:
        yield f"pve-container {draft.host.pve_container} does not know dev{mine[0].index}: dev[n] came with 5.0.7"
    elif has_dev(draft.host) is None and any(entry.key.startswith("dev") for entry in draft.inserts):
        yield "the version of pve-container isn't known: dev[n] needs 5.0.7 (Proxmox VE 8.1)"


def _elsewhere(draft: Draft) -> Iterator[str]:
    """Device lines where they have no effect, or an effect that nobody meant."""
    document = draft.document
    has_none = not any(nvidia(path) for path in draft.first.passed)
    for name, view in document.snapshots.items():
        stray = [line for line in view.raw if about_devices(line)]
        # Beside lines of the main section they are a copy, as a snapshot should have them.
        if stray and has_none and not any(about_devices(line) for line in document.main.raw):
            numbers = ", ".join(str(line.number) for line in stray)
            yield f"device lines stand in snapshot [{name}] only, where they have no effect (line {numbers})"
    pending = document.pending
    if pending is not None and pending.raw and draft.now().raw:
        first = pending.raw[0]
        yield (
            f"at the next start the lxc lines of [pve:pending] (from line {first.number}) replace all of the main "
            "section: move them up or take them out, by hand"
        )
    for line in document.malformed:
        if line.section == 0 and ("nvidia" in line.body or "devices" in line.body):
            yield f"line {line.number}, {line.body.strip()!r}, isn't understood by Proxmox, which will drop it"


def about_devices(line: conf.Line) -> bool:
    """Whether a raw line is a device rule or mounts one of NVIDIA's nodes."""
    if line.key == rules.MOUNT:
        return nvidia(rules.bound(line.value))
    return line.key in (rules.ALLOW, rules.LEGACY_ALLOW)
