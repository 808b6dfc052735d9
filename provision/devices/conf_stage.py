"""Stage `devices`: the configuration lets the container have its nodes under the numbers of this boot."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from inventory.errors import CannotLook, Failed, GpuctlError, Refused
from inventory.machine import Emit
from inventory.model import Container
from provision.devices import wanted
from provision.devices.config import conf, edits, rules
from provision.devices.consent import Consent
from provision.devices.diagnosis import diagnose
from provision.devices.doors import ct_name, locked, version
from provision.devices.facts import CtFacts, HostFacts, NodeKind
from provision.devices.planning import plan, prepare
from provision.devices.scout import Scout
from provision.pipeline import Plan, StageName

_DEV_KEY: Final = re.compile(r"dev[0-9]{1,3}")

HOT_PLUG: Final = (6, 0, 4)
"""pve-container that gives a new `dev[n]` to a running container (commit c702167, Proxmox VE 9.0)."""


@dataclass(frozen=True, slots=True)
class EditConf:
    """One rewrite of the configuration: all edits at once, or none."""

    vmid: int
    path: str
    digest: str
    edits: tuple[edits.Edit, ...]
    new: bytes
    lines: tuple[str, ...]
    outlived: tuple[tuple[str, str], ...] = ()
    """Rules it takes out that the running container keeps, for a number which another driver has: rule, driver."""

    @property
    def line(self) -> str:
        if self.more:
            return f"in {self.path}: {len(self.lines)} changes"
        return f"in {self.path}: {'; '.join(self.lines)}"

    @property
    def more(self) -> tuple[str, ...]:
        """The changes one by one, when they are too many for one line."""
        return self.lines if len(self.lines) > 2 else ()


@dataclass(frozen=True, slots=True)
class HotPlug:
    """New `dev[n]` entries given to a running container by Proxmox itself, which also writes the file."""

    vmid: int
    digest: str
    entries: tuple[tuple[str, str], ...]

    @property
    def line(self) -> str:
        told = "; ".join(f"`{key}: {value}`" for key, value in self.entries)
        return (
            f"give the running {ct_name(self.vmid)} {told} (pct set; Proxmox rewrites the file, comments move up)"
        )


@dataclass(frozen=True, slots=True)
class DevicesView:
    """What stage `devices` knows; `inside` is None when the container isn't running or can't be looked into."""

    host: HostFacts
    inside: CtFacts | None


class DevicesStage:
    """The container's configuration lets it have its nodes under the numbers of this boot."""

    name = StageName.DEVICES

    def __init__(
        self,
        scout: Scout,
        container: Container,
        vmid: int,
        consent: Consent = Consent(),  # noqa: B008 - a frozen value
    ) -> None:
        self._scout, self._container, self._vmid, self._consent = scout, container, vmid, consent

    def observe(self) -> DevicesView:
        """Raises `CannotLook` while a driver isn't loaded: its number is what the rules are compared with."""
        host = self._scout.host()
        if error := prepare.unknown_driver(host, self._container):
            raise error
        try:
            return DevicesView(host, self._scout.inside())
        except CannotLook:
            # Stage container says so; here it only rules hot-plug out.
            return DevicesView(host, None)

    def describe(self, facts: DevicesView) -> tuple[str, ...]:
        document = conf.parse(facts.host.conf.text)
        passed = wanted.passed_paths(document.main)
        mine = [path for path in passed if path.startswith("/dev/nvidia")]
        style = "raw lines" if rules.MOUNT in {passed[path] for path in mine} else "dev[n] entries"
        kind = "unprivileged" if document.unprivileged else "privileged"
        lines = [f"{ct_name(self._vmid)} is {kind}; {len(mine)} NVIDIA nodes are passed in by {style}"]
        found = diagnose.diagnose(ct_name(self._vmid), facts.host, self._container)
        told = (cause.text for cause in found if cause.id not in diagnose.ON_HOST and not cause.note)
        return (*lines, *told)

    def plan(self, facts: DevicesView) -> Plan:
        document = conf.parse(facts.host.conf.text)
        made = plan.conf_plan(document, facts.host, self._container, prefer=self._consent.prefer)
        if made.blocked is not None or not made.edits:
            return Plan((), made.blocked, made.later, made.warnings)
        steps: tuple[EditConf | HotPlug, ...]
        if self._can_hot_plug(document, facts, made.edits):
            entries = tuple((e.key, e.value) for e in made.edits if isinstance(e, edits.Insert))
            steps = (HotPlug(self._vmid, facts.host.conf_digest, entries),)
        else:
            edited = edits.edit(document, made.edits)
            left = outlived(document.main, edited.main, facts.host) if facts.inside is not None else ()
            path, digest = facts.host.conf_path, facts.host.conf_digest
            steps = (EditConf(self._vmid, path, digest, made.edits, edited.render(), made.lines, left),)
        return Plan(steps, self._forbidden(document, facts), warnings=made.warnings)

    def _can_hot_plug(self, document: conf.Document, facts: DevicesView, made: tuple[edits.Edit, ...]) -> bool:
        """Only new `dev[n]`, only where nothing else needs a restart, and where Proxmox's writer drops no line."""
        new = [e for e in made if isinstance(e, edits.Insert) and _DEV_KEY.fullmatch(e.key)]
        if facts.inside is None or len(new) != len(made) or version(facts.host.pve_container) < HOT_PLUG:
            return False
        if document.malformed or document.pending is not None:
            return False
        added = {rules.parse_device(e.value).path for e in new}
        goal = wanted.wanted(self._container, facts.host, document.main).nodes
        others = (facts.inside.node(item.path) for item in goal if item.path not in added)
        return all(node.kind is NodeKind.CHAR and node.opened == "" for node in others)

    def _forbidden(self, document: conf.Document, facts: DevicesView) -> GpuctlError | None:
        if document.lock:
            return locked(self._vmid, document.lock)
        if facts.host.quorate is False:
            return Refused(
                f"the cluster has no quorum, so {facts.host.conf_path} can't be written",
                hint="bring the other nodes back; see `pvecm status`",
            )
        return None

    def apply(self, step: EditConf | HotPlug, emit: Emit) -> str:
        if isinstance(step, HotPlug):
            return self._hot_plug(step, emit)
        args = {"vmid": step.vmid, "digest": step.digest, "text": step.new.decode("latin-1")}
        self._scout.forget()
        done = self._scout.doors.host.call("host.edit_conf", args, emit=emit, timeout_s=60.0)
        self._scout.outlived.update(step.outlived)
        if done["digest"] != hashlib.sha1(step.new, usedforsecurity=False).hexdigest():
            raise Failed(
                f"{step.path} was written, but reads differently", hint="see the backup " + done["backup"]
            )
        told = step.line if step.more else "; ".join(step.lines)
        return f"{told} (backup: {done['backup']})"

    def _hot_plug(self, step: HotPlug, emit: Emit) -> str:
        args = {"vmid": step.vmid, "digest": step.digest, "set": dict(step.entries)}
        self._scout.forget()
        done = self._scout.doors.host.call("host.pct_set", args, emit=emit, timeout_s=90.0)
        waiting = f"; it waits for the next start: {', '.join(done['pending'])}" if done["pending"] else ""
        told = "; ".join(f"`{key}: {value}`" for key, value in step.entries)
        return f"gave the running {ct_name(step.vmid)} {told}{waiting}"


def outlived(before: conf.View, after: conf.View, host: HostFacts) -> tuple[tuple[str, str], ...]:
    """Allow rules that an edit takes out while a driver other than NVIDIA's has their number."""
    known = wanted.drivers(host)
    if known is None or conf.unprivileged(before):
        return ()
    kept = {line.value for line in after.raw if line.key == rules.ALLOW}
    found: dict[str, str] = {}
    for line in before.raw:
        rule = rules.parse_rule(line.value) if line.key == rules.ALLOW and line.value not in kept else None
        if rule is None or rule.major is None or rule.major in known.majors.values():
            continue
        if owner := ", ".join(known.names.get(rule.major, ())):
            found[line.value] = owner
    return tuple(found.items())
