"""What to change in a container's configuration, as a pure function of what was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inventory.errors import CannotLook, ConfigError, Failed, GpuctlError, Refused
from inventory.model import Container
from provision.devices import conf, edits, procdev, rules, stale, wanted
from provision.devices.facts import HostFacts, NodeKind, State


@dataclass(frozen=True, slots=True)
class ConfPlan:
    """Edits of the main section, each said in one line. `later` holds what can't be known yet."""

    edits: tuple[edits.Edit, ...] = ()
    lines: tuple[str, ...] = ()
    blocked: GpuctlError | None = None
    later: tuple[str, ...] = ()


def unreadable(host: HostFacts) -> GpuctlError | None:
    """Why a configuration can't be planned at all."""
    name = f"container {host.vmid}"
    if host.conf.state is State.ABSENT:
        return CannotLook(
            f"{name} has no configuration at {host.conf_path} on this host",
            hint="it lives on another node, or its VMID in the inventory is wrong",
        )
    if host.conf.state is State.UNREADABLE:
        return CannotLook(
            f"{host.conf_path} can't be read: {host.conf.why}", hint="gpuctl must be root on the host"
        )
    if host.proc_devices.state is not State.PRESENT:
        why = host.proc_devices.why or host.proc_devices.state
        return CannotLook(f"/proc/devices of the host can't be read: {why}")
    return None


def conf_plan(document: conf.Document, host: HostFacts, container: Container) -> ConfPlan:
    """The edits that let the container have every node it needs, and nothing else.

    Never outside the main section, never a line that isn't about NVIDIA or a cgroup v1 device key.
    """
    known = wanted.drivers(host)
    if (error := unreadable(host)) is not None or known is None:
        return ConfPlan(blocked=error)
    if document.fatal:
        return ConfPlan(
            blocked=ConfigError(
                f"Proxmox itself can't read {host.conf_path}: {document.fatal}", hint="correct that line by hand"
            )
        )
    if "lxc" in document.main.values:
        text = f"{host.conf_path} has a plain `lxc:` line, which makes Proxmox forget all raw lines above it"
        return ConfPlan(blocked=ConfigError(text, hint="take that line out by hand"))
    goal = wanted.wanted(container, host, document.main)
    absent = [item.name for item in goal.nodes if known.number(item, host) is None]
    if absent:
        return ConfPlan(later=(f"the rules for {', '.join(absent)} are judged once their driver is loaded",))
    raw = stale.has_raw_nvidia(document.main)
    draft = _drafted(document, host, known, goal.nodes, raw=raw)
    if not raw and stale.has_raw_nvidia(draft.now()):
        # It may be we who bring the first raw lines; then old rules beside them are judged as such at once.
        draft = _drafted(document, host, known, goal.nodes, raw=True)
    if draft.inserts and (header := _false_header(document)) is not None:
        return ConfPlan(
            blocked=ConfigError(
                f"line {header.number} of {host.conf_path}, {header.body.strip()!r}, looks like a section, but Proxmox "
                "skips it and reads the lines below as the main section",
                hint="take that line out by hand: a rule written above it could be undone below it",
            )
        )
    return _judged(draft, goal)


def _drafted(
    document: conf.Document, host: HostFacts, known: wanted.Drivers, nodes: tuple[wanted.Want, ...], *, raw: bool
) -> _Draft:
    draft = _Draft(document, host, known)
    draft.rename_legacy()
    draft.replace_stale(nodes, raw=raw)
    draft.add_missing(nodes)
    return draft


def _false_header(document: conf.Document) -> conf.Line | None:
    """A rejected section header that has raw lines of the main section below it."""
    header = None
    for line in document.lines:
        if line.section != 0:
            break
        if line.body.startswith("["):
            header = header or line
        elif header is not None and line.kind is conf.Kind.RAW:
            return header
    return None


class _Draft:
    """Edits gathered so far, at most one per line."""

    def __init__(self, document: conf.Document, host: HostFacts, known: wanted.Drivers) -> None:
        self.document, self.host, self.known = document, host, known
        self.view = document.main
        self.free = document.unprivileged
        self.changes: dict[int, edits.Change | edits.Remove] = {}
        self.inserts: list[edits.Insert] = []
        self.lines: list[str] = []
        self._made: tuple[tuple[edits.Edit, ...], conf.Document] = ((), document)

    def all(self) -> tuple[edits.Edit, ...]:
        return (*self.changes.values(), *self.inserts)

    def now(self) -> conf.View:
        """The main section as it would be."""
        return self.result().main

    def result(self) -> conf.Document:
        """The file as it would be."""
        made = self.all()
        if made != self._made[0]:
            self._made = (made, edits.edit(self.document, made))
        return self._made[1]

    def rename_legacy(self) -> None:
        # `deny: a` took no effect so far; renamed, it would also take /dev/null away.
        if self.free:
            return
        modern = {rules.LEGACY_ALLOW: rules.ALLOW, rules.LEGACY_DENY: rules.DENY}
        seen = {(line.key, line.value) for line in self.view.raw}
        for line in self.view.raw:
            key = modern.get(line.key)
            if key is None or (key == rules.DENY and line.value == "a"):
                continue
            if (key, line.value) in seen:
                self.changes[line.number] = edits.Remove(line.number)
                self.lines.append(f"remove `{line.key}: {line.value}`, which is there as {key} too")
            else:
                self.changes[line.number] = edits.Change(line.number, key, line.value)
                self.lines.append(f"rename {line.key} to {key} for `{line.value}`: cgroup v1 keys are ignored")
            seen.add((key, line.value))

    def replace_stale(self, items: Iterable[wanted.Want], *, raw: bool) -> None:
        if self.free:
            return  # rules have no effect there
        found = stale.stale(self.view, self.host, self.known, raw=raw)
        groups: dict[int, list[stale.Stale]] = {}
        # A number that another driver has now is the less likely one to have been NVIDIA's last.
        for entry in sorted(found, key=lambda entry: bool(entry.owner)):
            groups.setdefault(entry.rule.major or 0, []).append(entry)
        for entry in found:
            self.changes[entry.number] = edits.Remove(entry.number)
        missing = self._missing_majors(items)
        for major, group in groups.items():
            new = missing.pop(0) if missing else None
            for entry in group:
                self._replace(entry, major, new)

    def _missing_majors(self, items: Iterable[wanted.Want]) -> list[int]:
        """Dynamic majors that a rule is needed for and none is there, nvidia-uvm first."""
        needed = {
            found.number[0]: None
            for found in wanted.access(self.now(), items, self.known, self.host)
            if not found.permitted and procdev.dynamic(found.number[0])
        }
        uvm = self.known.majors.get("nvidia-uvm")
        return sorted(needed, key=lambda major: (major != uvm, major))

    def _replace(self, entry: stale.Stale, major: int, new: int | None) -> None:
        whose = f"{major} belongs to {entry.owner} now" if entry.owner else f"no driver has {major} now"
        if new is None:
            self.lines.append(f"remove `{entry.key}: {entry.rule}` ({whose})")
            return
        access = entry.rule.access if {"r", "w"} <= set(entry.rule.access) else "rwm"
        rule = rules.Rule("c", new, entry.rule.minor, access)
        value = str(rule)
        if any(line.key == rules.ALLOW and line.value == value for line in self.now().raw):
            self.lines.append(f"remove `{entry.key}: {entry.rule}` ({whose})")
            return
        self.changes[entry.number] = edits.Change(entry.number, rules.ALLOW, value)
        self.lines.append(f"replace `{entry.key}: {entry.rule}` by `{value}` ({whose})")

    def add_missing(self, items: tuple[wanted.Want, ...]) -> None:
        for found in wanted.access(self.now(), items, self.known, self.host):
            if not found.how:
                self._pass_in(found.item)
        for found in wanted.access(self.now(), items, self.known, self.host):
            value = f"c {found.number[0]}:* rwm"
            insert = edits.Insert(rules.ALLOW, value)
            if not found.permitted and insert not in self.inserts and not self._denied(found.number):
                self.inserts.append(insert)
                self.lines.append(f"add `{rules.ALLOW}: {value}` for {found.item.name}")

    def _denied(self, number: tuple[int, int]) -> bool:
        """A deny line for this device was put there on purpose: it's said, not overruled."""
        return any(
            line.key == rules.DENY
            and line.value != "a"
            and (rule := rules.parse_rule(line.value)) is not None
            and rule.covers(*number, access="")
            for line in self.now().raw
        )

    def _pass_in(self, item: wanted.Want) -> None:
        node = self.host.node(item.path)
        if node.kind is not NodeKind.CHAR or self._hooks():
            return
        now = self.now()
        if self._raw_style():
            insert = edits.Insert(
                rules.MOUNT, f"{item.path} {item.path.lstrip('/')} none bind,optional,create=file"
            )
        else:
            pending = self.document.pending
            used = {*now.values, *(pending.values if pending else {})}
            index = next((n for n in range(256) if f"dev{n}" not in used), None)
            if index is None:
                return
            # Without a mode Proxmox makes the node 0660 for root; the host's own is what users expect.
            insert = edits.Insert(f"dev{index}", f"{item.path},mode={node.mode & 0o777:04o}")
        self.inserts.append(insert)
        self.lines.append(f"add `{insert.key}: {insert.value}`")

    def _raw_style(self) -> bool:
        """Raw mount entries are kept where they are in use; else `dev[n]`, which follows a moving number."""
        passed = [how for path, how in wanted.passed_paths(self.view).items() if path.startswith("/dev/nvidia")]
        if any(how != rules.MOUNT for how in passed):
            return False
        return bool(passed) or any(
            (rule := rules.parse_rule(line.value)) is not None and rule.major == procdev.NVIDIA
            for line in self.view.raw
            if line.key in (rules.ALLOW, rules.LEGACY_ALLOW)
        )

    def _hooks(self) -> bool:
        """A hook or an included file may make nodes that this can't see."""
        return any(line.key.startswith(("lxc.hook.", "lxc.include")) for line in self.view.raw)


def _judged(draft: _Draft, goal: wanted.Wanted) -> ConfPlan:
    """The plan, blocked when even its result would not let the container have its nodes."""
    if goal.problem:
        return ConfPlan(draft.all(), tuple(draft.lines), Failed(goal.problem, hint=goal.hint))
    result = draft.result()
    for view, where in ((result.main, ""), (result.next_start, "[pve:pending]")):
        for found in wanted.access(view, goal.nodes, draft.known, draft.host):
            if found.good or (not found.how and draft._hooks() and not where):
                continue
            return ConfPlan(draft.all(), tuple(draft.lines), _why_not(draft, found, where))
    return ConfPlan(draft.all(), tuple(draft.lines))


def _why_not(draft: _Draft, found: wanted.Access, where: str) -> GpuctlError:
    path, vmid = draft.host.conf_path, draft.host.vmid
    if where:
        return Refused(
            f"the next start of container {vmid} would take {found.item.name} away: {where} of {path} replaces the "
            "settings above it",
            hint=f"move the lxc and dev lines of {where} into the main section or remove them, by hand",
        )
    if not found.how:
        node = draft.host.node(found.item.path)
        return Failed(f"{found.item.name} can't be passed into container {vmid}: {node}")
    major, minor = found.number
    return ConfigError(
        f"{path} forbids {found.item.name} ({major}:{minor}) by a deny rule or `deny-write`",
        hint="take that line out by hand: it was put there on purpose",
    )
