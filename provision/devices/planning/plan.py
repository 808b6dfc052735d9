"""What to change in a container's configuration, as a pure function of what was found."""

from __future__ import annotations

from dataclasses import dataclass

from inventory.errors import CannotLook, ConfigError, Failed, GpuctlError, Refused
from inventory.model import Container
from provision.devices import wanted
from provision.devices.config import conf, edits
from provision.devices.consent import Style
from provision.devices.diagnosis import stale
from provision.devices.facts import HostFacts, State
from provision.devices.planning import doubts, mend, migrate
from provision.devices.planning.draft import Draft


@dataclass(frozen=True, slots=True)
class ConfPlan:
    """Edits of the main section, said in `lines`.

    `later` holds what can't be known yet, `warnings` what is odd or dangerous and left alone.
    """

    edits: tuple[edits.Edit, ...] = ()
    lines: tuple[str, ...] = ()
    blocked: GpuctlError | None = None
    later: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


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


def conf_plan(
    document: conf.Document, host: HostFacts, container: Container, *, prefer: Style = Style.KEEP
) -> ConfPlan:
    """The edits that let the container have every node it needs, and nothing else.

    Never outside the main section, never a line that isn't about NVIDIA or a cgroup v1 device key.
    With `Style.DEV` nothing about NVIDIA stays raw.
    """
    known = wanted.drivers(host)
    if (error := unreadable(host)) is not None or known is None:
        return ConfPlan(blocked=error)
    if (error := _unfit(document, host)) is not None:
        return ConfPlan(blocked=error)
    first = wanted.setup(document.main)
    goal = wanted.wanted(container, host, document.main, first.passed)
    absent = [item.name for item in goal.nodes if known.number(item, host) is None]
    if absent:
        return ConfPlan(later=(f"the rules for {', '.join(absent)} are judged once their driver is loaded",))
    draft = Draft(document, host, known, goal.nodes, first)
    if prefer is Style.DEV:
        error = migrate.unsupported(host) or migrate.to_dev(draft)
    else:
        draft = _kept(draft)
    if error is None and draft.inserts:
        error = _false_header(document, host)
    warnings = doubts.doubts(draft)
    if error is not None:
        return ConfPlan(blocked=error, warnings=warnings)
    return ConfPlan(draft.all(), tuple(draft.lines), _verdict(draft, goal), warnings=warnings)


def _unfit(document: conf.Document, host: HostFacts) -> GpuctlError | None:
    """Why nothing may be concluded from this file."""
    if document.fatal:
        return ConfigError(
            f"Proxmox itself can't read {host.conf_path}: {document.fatal}", hint="correct that line by hand"
        )
    if "lxc" in document.main.values:
        text = f"{host.conf_path} has a plain `lxc:` line, which makes Proxmox forget all raw lines above it"
        return ConfigError(text, hint="take that line out by hand")
    return None


def _kept(draft: Draft) -> Draft:
    raw = stale.has_raw_nvidia(draft.view)
    mend.keep(draft, raw=raw)
    if raw or not stale.has_raw_nvidia(draft.now()):
        return draft
    # It was we who brought the first raw lines; then old rules beside them are judged as such at once.
    again = Draft(draft.document, draft.host, draft.known, draft.items, draft.first)
    mend.keep(again, raw=True)
    return again


def _false_header(document: conf.Document, host: HostFacts) -> GpuctlError | None:
    """A rejected section header that has raw lines of the main section below it."""
    header = None
    for line in document.lines:
        if line.section != 0:
            break
        if line.body.startswith("["):
            header = header or line
        elif header is not None and line.kind is conf.Kind.RAW:
            return ConfigError(
                f"line {header.number} of {host.conf_path}, {header.body.strip()!r}, looks like a section, but "
                "Proxmox skips it and reads the lines below as the main section",
                hint="take that line out by hand: a rule written above it could be undone below it",
            )
    return None


def _verdict(draft: Draft, goal: wanted.Wanted) -> GpuctlError | None:
    """Why even the result of the edits would not let the container have its nodes."""
    if goal.problem:
        return Failed(goal.problem, hint=goal.hint)
    judged = [(draft.access(), "")]
    if (pending := draft.document.pending) is not None:
        later = conf.started(draft.now(), pending)
        judged.append((wanted.access(later, draft.items, draft.known, draft.host), "[pve:pending]"))
    for access, where in judged:
        for found in access:
            if not found.good and (found.how or where or not draft.hooks()):
                return _why_not(draft, found, where)
    return None


def _why_not(draft: Draft, found: wanted.Access, where: str) -> GpuctlError:
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
