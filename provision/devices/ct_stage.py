"""Stage `container`: it runs, and inside it every node is there, has the right number, and opens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from inventory.errors import CannotLook, Failed, GpuctlError, Refused
from inventory.machine import Emit
from inventory.model import Container
from provision.devices import wanted
from provision.devices.config import conf, rules
from provision.devices.consent import Consent
from provision.devices.diagnosis import diagnose, predict
from provision.devices.doors import ct_name, locked
from provision.devices.facts import CtFacts, GuestFacts, HostFacts, Node, NodeKind
from provision.devices.planning import prepare
from provision.devices.power import Power, PowerSwitch
from provision.devices.scout import Scout
from provision.pipeline import Plan, StageName

POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class CtView:
    """What stage `container` knows. `inside` is None while the container is not running."""

    host: HostFacts
    guest: GuestFacts
    inside: CtFacts | None
    restarted: bool
    """Whether this run has restarted it already: a second restart would change nothing."""
    allowed: frozenset[str]
    """Rules that this run has already given to the running container."""


@dataclass(frozen=True, slots=True)
class LiveRules:
    """A change of the running container's device rules, to what its configuration says by now."""

    allow: tuple[str, ...]
    deny: tuple[str, ...]
    line: str


class ContainerStage:
    """The container runs, and inside it every node is there, has the right number, and opens."""

    name = StageName.CONTAINER

    def __init__(
        self,
        scout: Scout,
        container: Container,
        vmid: int,
        limit_s: float,
        consent: Consent = Consent(),  # noqa: B008 - a frozen value
    ) -> None:
        self._scout, self._container, self._vmid, self._consent = scout, container, vmid, consent
        self._power = PowerSwitch(scout, vmid, limit_s, consent.grace_s)
        self._restarted = False
        self._allowed: frozenset[str] = frozenset()

    def observe(self) -> CtView:
        host = self._scout.host()
        if error := prepare.unknown_driver(host, self._container):
            raise error
        while True:
            try:
                inside = self._scout.inside()
                break
            except CannotLook:
                # Only after our own start: what answers inside needs a moment.
                if not self._power.still_starting():
                    raise
                time.sleep(POLL_S)
        return CtView(host, self._scout.guest(), inside, self._restarted, self._allowed)

    def _items(self, host: HostFacts) -> tuple[wanted.Want, ...]:
        return wanted.wanted(self._container, host, conf.parse(host.conf.text).main).nodes

    def describe(self, facts: CtView) -> tuple[str, ...]:
        name = ct_name(self._vmid)
        if facts.inside is None:
            return (f"{name} is {facts.guest.status}",)
        items = self._items(facts.host)
        bad = broken(facts.host, facts.inside, items)
        lines = [
            f"{name} is running; {len(items) - len(bad)} of {len(items)} device nodes inside are right and open"
        ]
        told = {cause.id for cause in diagnose.diagnose(name, facts.host, self._container)}  # by the stages before
        return (*lines, *(cause.text for cause in self._causes(facts) if cause.id not in told))

    def _causes(self, facts: CtView) -> tuple[diagnose.Cause, ...]:
        """What is wrong with the running container, the root first."""
        name = ct_name(self._vmid)
        found = diagnose.diagnose(name, facts.host, self._container, facts.inside, guest=facts.guest)
        return tuple(cause for cause in found if not cause.note)

    def plan(self, facts: CtView) -> Plan:
        name = ct_name(self._vmid)
        if facts.inside is None:
            return self._guarded(facts, Power("start", f"start {name}"))
        bad = broken(facts.host, facts.inside, self._items(facts.host))
        useless = self._useless(facts, bad)
        if useless is not None:
            return Plan((), useless)
        if not bad:
            return self._outlived(name)
        why = "; ".join(dict.fromkeys(bad.values()))
        if self._consent.live and (live := self._live(facts)) and not set(live) <= facts.allowed:
            told = ", ".join(f"`{rule}`" for rule in live)
            line = f"allow {told} in the running {name} (lxc-cgroup), no restart: {why}"
            return Plan((LiveRules(live, (), line),))
        if not self._consent.restart:
            return Plan((), self._needs_restart(facts, why))
        grace = f"it may take {self._consent.grace_s:g} s to shut down, then it is stopped"
        return self._guarded(facts, Power("restart", f"restart {name} ({grace}): {why}"))

    def _outlived(self, name: str) -> Plan:
        """Rules that only the running container still has: a hole until its restart."""
        if not (left := self._scout.outlived):
            return Plan()
        told = ", ".join(f"`{rule}` ({owner})" for rule, owner in left.items())
        if self._consent.live:
            line = f"take {told} from the running {name} (lxc-cgroup), no restart"
            return Plan((LiveRules((), tuple(left), line),))
        return Plan(warnings=(f"until its restart the running {name} keeps {told}; --live takes it away at once",))

    def _needs_restart(self, facts: CtView, why: str) -> GpuctlError:
        name = ct_name(self._vmid)
        hint = "run it again without --no-restart at a time that suits"
        if self._live(facts) and not self._consent.live:
            hint += ", or with --live, which changes the rules of the running container"
        return Refused(f"{name} must be restarted, which --no-restart forbids: {why}", hint=hint)

    def _live(self, facts: CtView) -> tuple[str, ...]:
        """Rules that would let the running container open its nodes; empty when rules are not all it lacks."""
        document = conf.parse(facts.host.conf.text)
        known = wanted.drivers(facts.host)
        if facts.inside is None or known is None or document.unprivileged:
            return ()
        found: dict[str, None] = {}
        for entry in wanted.access(document.main, self._items(facts.host), known, facts.host):
            node = facts.inside.node(entry.item.path)
            if not _bad(node, entry.number):
                continue
            if node.opened != "EPERM" or node.number != entry.number or not entry.permitted:
                return ()
            found[str(rules.Rule("c", entry.number[0], None, "rwm"))] = None
        return tuple(found)

    def _useless(self, facts: CtView, bad: dict[str, str]) -> GpuctlError | None:
        """Why a restart would not help."""
        hidden = [facts.inside.node(item.path) for item in self._items(facts.host)] if facts.inside else []
        if unseen := [str(node) for node in hidden if node.kind is NodeKind.UNREADABLE]:
            return CannotLook(f"in {ct_name(self._vmid)} {'; '.join(unseen)}")
        causes = self._causes(facts)
        for cause in causes:
            if cause.id in diagnose.RESTART_USELESS:
                return cause.error()
        if bad and facts.restarted:
            said = tuple(cause.text for cause in causes) or tuple(bad.values())
            return Failed(
                f"{ct_name(self._vmid)} was restarted and still can't use {', '.join(bad)}: {said[0]}",
                hint="`gpuctl devices facts` shows everything that was read",
                detail=said,
            )
        return None

    def _guarded(self, facts: CtView, power: Power) -> Plan:
        """The step, unless something forbids it or must be waited for."""
        name, guest = ct_name(self._vmid), facts.guest
        if guest.lock not in ("", "mounted"):
            return Plan((power,), locked(self._vmid, guest.lock))
        stops = predict.obstacles(conf.parse(facts.host.conf.text), facts.host)
        if stops:
            return Plan((power,), Failed(f"{name} will not start: {stops[0]}", detail=stops, hint=_START_HINT))
        if guest.startall_s is not None:
            since = max(0.0, facts.host.now_s - guest.startall_s)
            text = f"wait until Proxmox has started its guests after boot (running for {since:.0f} s)"
            return Plan((Power("wait", text),), later=(power.line,))
        return Plan((power,))

    def apply(self, step: Power | LiveRules, emit: Emit) -> str:
        if isinstance(step, LiveRules):
            return self._change_rules(step, emit)
        if step.action == "restart":
            self._restarted = True
        return self._power.make(step, emit)

    def _change_rules(self, step: LiveRules, emit: Emit) -> str:
        self._allowed |= frozenset(step.allow)
        for rule in step.deny:
            self._scout.outlived.pop(rule, None)
        args = {"vmid": self._vmid, "rules": list(step.allow), "deny": list(step.deny)}
        self._scout.forget()
        done = self._scout.doors.host.call("host.live_rules", args, emit=emit, timeout_s=60.0)
        for ran in done["ran"]:
            if ran["rc"] != 0:
                raise Failed(
                    f"{' '.join(ran['argv'])} failed with exit status {ran['rc']}",
                    hint="a restart of the container brings its rules to what the configuration says",
                    detail=tuple(str(ran["stderr"]).splitlines()[-6:]),
                )
        verb = "allowed" if step.allow else "took back"
        return f"{verb} {', '.join((*step.allow, *step.deny))} in the running {ct_name(self._vmid)}"


_START_HINT: Final = "stage host makes missing nodes; a line for a device that is gone must be taken out by hand"


def broken(host: HostFacts, inside: CtFacts, items: tuple[wanted.Want, ...]) -> dict[str, str]:
    """Names of nodes that are not right inside the running container, each with what is wrong."""
    known = wanted.drivers(host)
    if known is None:
        return {}
    found: dict[str, str] = {}
    for item in items:
        number = known.number(item, host)
        if number is not None and (bad := _bad(inside.node(item.path), number)):
            found[item.name] = bad
    return found


def _bad(node: Node, number: tuple[int, int]) -> str:
    if node.kind is not NodeKind.CHAR:
        kind = {"absent": "missing", "regular": "a plain file"}.get(node.kind.value, node.kind.value)
        return f"{node.path} is {kind} inside"
    if node.number != number:
        return f"{node.path} is {node.major}:{node.minor} inside, the driver has {number[0]}:{number[1]}"
    return f"{node.path} gives {node.opened} inside" if node.opened else ""
