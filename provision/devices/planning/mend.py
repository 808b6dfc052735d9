"""Lines of a configuration that are stale, missing or harmful, put right in the style the configuration has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from provision.devices import procdev, wanted
from provision.devices.config import conf, lines, rules
from provision.devices.diagnosis import stale
from provision.devices.facts import NodeKind
from provision.devices.planning.draft import Draft, has_dev, nvidia, rule_majors

_OPTIONS: Final = re.compile(r"((?:\S+\s+){3})(\S+)(.*)", re.ASCII | re.DOTALL)
"""Of a mount entry: what stands before the options, the options, the rest."""

MODERN: Final = {rules.LEGACY_ALLOW: rules.ALLOW, rules.LEGACY_DENY: rules.DENY}


def keep(draft: Draft, *, raw: bool) -> None:
    """Everything that is to be done while dev[n] stays dev[n] and raw stays raw.

    `raw`: whether old dynamic numbers count as NVIDIA's (see `stale.stale`).
    """
    old = () if draft.free else stale.stale(draft.view, draft.host, draft.known, raw=raw)
    rename_legacy(draft, rules.LEGACY_ALLOW, {entry.number for entry in old})
    mend_unreadable(draft)
    drop_deny_write(draft)
    give_target(draft)
    _replace_stale(draft, old)
    add_missing(draft)
    rename_legacy(draft, rules.LEGACY_DENY)  # what it could take away is known only now


def rename_legacy(draft: Draft, old: str, done: Iterable[int] = ()) -> None:
    """Rename a cgroup v1 key in place; lines with a number in `done` are dealt with elsewhere."""
    if draft.free or not any(line.key == old for line in draft.view.raw):
        return
    skip, key = {*done, *draft.changes}, MODERN[old]
    seen = {(line.key, line.value) for line in draft.now().raw if line.number not in skip}
    for line in draft.view.raw:
        if line.key != old or line.number in skip:
            continue
        if (key, line.value) in seen:
            draft.remove(line, f"remove `{line.key}: {line.value}`, which is there as {key} too")
        elif may_rename(draft, key, line.value):
            said = f"rename {line.key} to {key} for `{line.value}`: cgroup v1 keys are ignored"
            draft.change(line, key, line.value, said)
            seen.add((key, line.value))


def may_rename(draft: Draft, key: str, value: str) -> bool:
    """Whether a rule without effect so far may get one: not when it opens everything or takes away what works."""
    rule = rules.parse_rule(value)
    if rule is None:
        path = rules.rule_path(value) if key == rules.ALLOW else ""
        return bool(path) and draft.host.node(path).kind is NodeKind.CHAR
    if key == rules.ALLOW:
        return rule.major is not None or not set(rule.access) & set("rw")
    now = draft.now()
    allowed = [parsed for line in now.raw if line.key in (rules.ALLOW, rules.LEGACY_ALLOW)
               if (parsed := rules.parse_rule(line.value)) is not None]  # fmt: skip
    nodes = [draft.host.node(path) for path in draft.setup().passed]
    used = {node.number for node in nodes if node.kind is NodeKind.CHAR}
    used |= {number for item in draft.items if (number := draft.known.number(item, draft.host)) is not None}
    exact = [rules.Rule("c", *number, "rw") for number in used]
    return not any(rule.meets(other) for other in (*rules.COMMON, *allowed, *exact))


def mend_unreadable(draft: Draft) -> None:
    """Write NVIDIA's own rules so that LXC can read them; with one that it can't the container doesn't start."""
    for line in draft.view.raw:
        if line.key != rules.ALLOW or line.number in draft.changes or rules.readable(line.key, line.value):
            continue
        meant = rules.guessed(line.value)
        if meant is None or meant.major not in rule_majors(draft.known):
            continue
        value = str(rules.Rule("c", meant.major, meant.minor, _access(meant)))
        if draft.has(rules.ALLOW, value):
            draft.remove(
                line, f"remove `{line.key}: {line.value}`, which LXC can't read and which is there rightly"
            )
        else:
            draft.change(
                line, line.key, value, f"replace `{line.key}: {line.value}`, which LXC can't read, by `{value}`"
            )


def _access(rule: rules.Rule) -> str:
    return rule.access if {"r", "w"} <= set(rule.access) else "rwm"


def drop_deny_write(draft: Draft) -> None:
    """CUDA opens each of its nodes to read and write, so `deny-write` on a wanted one shuts it out."""
    passed = draft.first.passed
    for item in draft.items:
        value = draft.view.values.get(passed.get(item.path, ""), "")
        spec = rules.read_device(value)[0] if item.driver and value else None
        if spec is None or not spec.deny_write:
            continue
        key = passed[item.path]
        line = next(
            line for line in reversed(draft.document.lines)
            if line.section == 0 and line.key == key and line.kind is conf.Kind.VALUE
        )  # fmt: skip
        kept = ",".join(part for part in value.split(",") if not re.match(r"deny-write=", part))
        draft.change(line, key, kept, f"take `deny-write` out of {key}: CUDA opens {item.name} to read and write")


def give_target(draft: Draft) -> None:
    """Let LXC make the file that a wanted node is mounted on: without it the mount is left out, or the start fails."""
    wanted_paths = {item.path: item.name for item in draft.items if item.driver}
    for line, mount in lines.mounts(draft.view):
        if mount.source not in wanted_paths or line.number in draft.changes:
            continue
        if lines.without_target(draft.view, mount) and (fields := _OPTIONS.match(line.value)) is not None:
            value = f"{fields[1]}{fields[2]},create=file{fields[3]}"
            said = (
                f"add `create=file` to the mount of {wanted_paths[mount.source]}: LXC has nothing to mount it on"
            )
            draft.change(line, line.key, value, said)


def _replace_stale(draft: Draft, found: tuple[stale.Stale, ...]) -> None:
    if not found:
        return
    groups: dict[int, list[stale.Stale]] = {}
    # A number that another driver has now is the less likely one to have been NVIDIA's last.
    for entry in sorted(found, key=lambda entry: bool(entry.owner)):
        groups.setdefault(entry.rule.major or 0, []).append(entry)
    missing = _missing_majors(draft)
    for major, group in groups.items():
        new = missing.pop(0) if missing else None
        for entry in group:
            _replace(draft, entry, major, new)


def _missing_majors(draft: Draft) -> list[int]:
    """Majors handed out at this boot that a rule is needed for and none is there, nvidia-uvm first."""
    needed = {
        found.number[0]: None
        for found in draft.access()
        if not found.permitted and found.number[0] != procdev.NVIDIA
    }
    uvm = draft.known.majors.get("nvidia-uvm")
    return sorted(needed, key=lambda major: (major != uvm, major))


def _replace(draft: Draft, entry: stale.Stale, major: int, new: int | None) -> None:
    whose = f"{major} belongs to {entry.owner} now" if entry.owner else f"no driver has {major} now"
    line = draft.document.lines[entry.number - 1]
    value = str(rules.Rule("c", new, entry.rule.minor, _access(entry.rule)))
    if new is None or draft.has(rules.ALLOW, value):
        draft.remove(line, f"remove `{entry.key}: {entry.rule}` ({whose})")
    else:
        draft.change(line, rules.ALLOW, value, f"replace `{entry.key}: {entry.rule}` by `{value}` ({whose})")


def add_missing(draft: Draft, *, by_dev: bool = False) -> None:
    """Pass in what isn't, in the style that is in use or always by `dev[n]`, and allow what no rule allows."""
    for found in draft.access():
        if not found.how and not draft.hooks():
            pass_in(draft, found.item, raw=not by_dev and _raw_style(draft))
    for found in draft.access():
        value = f"c {found.number[0]}:* rwm"
        if found.permitted or found.how.startswith("dev") or _denied(draft, found.number):
            continue
        if not draft.has(rules.ALLOW, value):
            draft.insert(rules.ALLOW, value, f"add `{rules.ALLOW}: {value}` for {found.item.name}")


def _denied(draft: Draft, number: tuple[int, int]) -> bool:
    """A deny line for this device was put there on purpose: it's said, not overruled."""
    return any(
        line.key.startswith(rules.DEVICES)
        and line.key != rules.ALLOW
        and line.value != "a"
        and (rule := rules.parse_rule(line.value)) is not None
        and rule.covers(*number, access="")
        for line in draft.now().raw
    )


def pass_in(draft: Draft, item: wanted.Want, *, raw: bool) -> None:
    """Add the line that brings a node of the host into the container; nothing when the host hasn't the node."""
    node = draft.host.node(item.path)
    if node.kind is not NodeKind.CHAR:
        return
    key, value = ("", "") if raw else (draft.free_dev(), draft.dev_value(node))
    if not key or rules.read_device(value)[0] is None:
        escaped = item.path.replace(" ", r"\040").replace("\t", r"\011")
        key, value = rules.MOUNT, f"{escaped} {escaped.lstrip('/')} none bind,optional,create=file"
    draft.insert(key, value, f"add `{key}: {value}`")


def _raw_style(draft: Draft) -> bool:
    """Raw mount entries are kept where they are in use; else `dev[n]`, which follows a moving number."""
    if has_dev(draft.host) is False:
        return True
    passed = [how for path, how in draft.first.passed.items() if nvidia(path)]
    if any(how != rules.MOUNT for how in passed):
        return False
    return bool(passed) or stale.has_raw_nvidia(draft.view)
