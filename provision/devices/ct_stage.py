"""Stage `container`: it runs, and inside it every node is there, has the right number, and opens."""

from __future__ import annotations

import time
from dataclasses import dataclass

from inventory.errors import CannotLook, Failed, GpuctlError
from inventory.machine import Emit, Machine
from inventory.model import Container
from provision.devices import conf, diagnose, predict, prepare, wanted
from provision.devices.doors import FACTS_LIMIT_S, ProxmoxApi, ct_name, locked, read_host
from provision.devices.facts import CtFacts, HostFacts, Node, NodeKind
from provision.pipeline import Plan, StageName

GRACE_S = 60.0
"""How long a container may take to shut down before it is stopped."""
POLL_S = 1.0
READY_S = 30.0
"""How long a container that was just started may take until a command runs in it."""


@dataclass(frozen=True, slots=True)
class CtView:
    """What stage `container` knows. `inside` is None while the container is not running."""

    host: HostFacts
    status: str
    lock: str
    uptime_s: float
    startall_s: float | None
    """For how long Proxmox has been starting its guests after boot; None when it isn't."""
    inside: CtFacts | None
    restarted: bool
    """Whether this run has restarted it already: a second restart would change nothing."""


@dataclass(frozen=True, slots=True)
class Power:
    """Start or restart the container, or wait until Proxmox has started its guests."""

    action: str
    line: str


class ContainerStage:
    """The container runs, and inside it every node is there, has the right number, and opens."""

    name = StageName.CONTAINER

    def __init__(
        self,
        host: Machine,
        api: ProxmoxApi,
        ct: Machine,
        container: Container,
        vmid: int,
        node: str,
        start_timeout_s: float,
    ) -> None:
        self._host, self._api, self._ct, self._container = host, api, ct, container
        self._vmid, self._node, self._limit_s = vmid, node, start_timeout_s
        self._restarted = False
        self._ready_by = 0.0

    def observe(self) -> CtView:
        status = self._api.status(self._node, self._vmid)
        tasks = [task for task in self._api.running_tasks(self._node) if task.kind == "startall"]
        host = read_host(self._host, self._vmid)
        if error := prepare.unknown_driver(host, self._container):
            raise error
        inside = self._look_inside(host) if status.status == "running" else None
        since = host.now_s - min(task.started_s for task in tasks) if tasks else None
        return CtView(host, status.status, status.lock, status.uptime_s, since, inside, self._restarted)

    def _look_inside(self, host: HostFacts) -> CtFacts:
        names = [item.path for item in self._items(host)]
        while True:
            try:
                return CtFacts.from_json(
                    self._ct.call("ct.device_facts", {"nodes": names}, timeout_s=FACTS_LIMIT_S)
                )
            except CannotLook:
                # Only after our own start: its sshd needs a moment.
                if time.monotonic() >= self._ready_by:
                    raise
                time.sleep(POLL_S)

    def _items(self, host: HostFacts) -> tuple[wanted.Want, ...]:
        return wanted.wanted(self._container, host, conf.parse(host.conf.text).main).nodes

    def describe(self, facts: CtView) -> tuple[str, ...]:
        name = ct_name(self._vmid)
        if facts.inside is None:
            return (f"{name} is {facts.status}",)
        bad = broken(facts, self._items(facts.host))
        total = len(self._items(facts.host))
        lines = [f"{name} is running; {total - len(bad)} of {total} device nodes inside are right and open"]
        return (*lines, *(cause.text for cause in self._causes(facts)))

    def _causes(self, facts: CtView) -> tuple[diagnose.Cause, ...]:
        started = facts.host.now_s - facts.uptime_s if facts.uptime_s else None
        return diagnose.diagnose(ct_name(self._vmid), facts.host, self._container, facts.inside, started_s=started)

    def plan(self, facts: CtView) -> Plan:
        name = ct_name(self._vmid)
        if facts.inside is None:
            return self._guarded(facts, Power("start", f"start {name}"))
        bad = broken(facts, self._items(facts.host))
        useless = self._useless(facts, bad)
        if useless is not None:
            return Plan((), useless)
        if not bad:
            return Plan()
        why = "; ".join(dict.fromkeys(bad.values()))
        line = f"restart {name} (it may take {GRACE_S:g} s to shut down, then it is stopped): {why}"
        return self._guarded(facts, Power("restart", line))

    def _useless(self, facts: CtView, bad: dict[str, str]) -> GpuctlError | None:
        """Why a restart would not help."""
        hidden = [facts.inside.node(item.path) for item in self._items(facts.host)] if facts.inside else []
        if unseen := [str(node) for node in hidden if node.kind is NodeKind.UNREADABLE]:
            return CannotLook(f"in {ct_name(self._vmid)} {'; '.join(unseen)}")
        causes = {cause.id: cause for cause in self._causes(facts)}
        for cause in (diagnose.CauseId.GPU_FAULT, diagnose.CauseId.LIBRARY_VERSION):
            if cause in causes:
                return Failed(causes[cause].text, detail=causes[cause].evidence)
        if bad and facts.restarted:
            said = tuple(cause.text for cause in causes.values()) or tuple(bad.values())
            return Failed(
                f"{ct_name(self._vmid)} was restarted and still can't use {', '.join(bad)}: {said[0]}",
                hint="`gpuctl devices facts` shows everything that was read",
                detail=said,
            )
        return None

    def _guarded(self, facts: CtView, power: Power) -> Plan:
        """The step, unless something forbids it or must be waited for."""
        name = ct_name(self._vmid)
        if facts.lock not in ("", "mounted"):
            return Plan((power,), locked(self._vmid, facts.lock))
        stops = predict.obstacles(conf.parse(facts.host.conf.text), facts.host)
        if stops:
            return Plan((power,), Failed(f"{name} will not start: {stops[0]}", detail=stops, hint=_START_HINT))
        if facts.startall_s is not None:
            text = f"wait until Proxmox has started its guests after boot (running for {facts.startall_s:.0f} s)"
            return Plan((Power("wait", text),), later=(power.line,))
        return Plan((power,))

    def apply(self, step: Power, emit: Emit) -> str:
        name = ct_name(self._vmid)
        if step.action == "wait":
            return self._wait(emit)
        if step.action == "restart":
            self._restarted = True
            self._shut_down(emit)
        warnings = self._api.start(self._node, self._vmid, timeout_s=self._limit_s)
        self._await_running()
        self._ready_by = time.monotonic() + READY_S
        told = f" with warnings: {'; '.join(warnings)}" if warnings else ""
        return f"{name} was {'restarted' if step.action == 'restart' else 'started'}{told}"

    def _await_running(self) -> None:
        """The start task of a container under high availability ends before the container runs."""
        end = time.monotonic() + self._limit_s
        while (now := self._api.status(self._node, self._vmid).status) != "running":
            if time.monotonic() >= end:
                raise Failed(f"{ct_name(self._vmid)} is {now} {self._limit_s:g} s after its start task ended")
            time.sleep(POLL_S)

    def _shut_down(self, emit: Emit) -> None:
        try:
            self._api.shutdown(self._node, self._vmid, timeout_s=min(GRACE_S, self._limit_s))
        except CannotLook:
            raise
        except GpuctlError as error:
            if self._api.status(self._node, self._vmid).status == "running":
                emit(
                    {
                        "type": "note",
                        "text": f"{ct_name(self._vmid)} did not shut down ({error.message}): stopping",
                    }
                )
                self._api.stop(self._node, self._vmid, timeout_s=self._limit_s)

    def _wait(self, emit: Emit) -> str:
        end = time.monotonic() + self._limit_s
        while any(task.kind == "startall" for task in self._api.running_tasks(self._node)):
            if time.monotonic() >= end:
                raise Failed(
                    f"Proxmox is still starting its guests after {self._limit_s:g} s",
                    hint="see the task startall in its log; raise thresholds.start_timeout_s if that is normal",
                )
            emit({"type": "note", "text": "Proxmox is still starting its guests"})
            time.sleep(POLL_S)
        return "Proxmox has started its guests"


_START_HINT = "stage host makes missing nodes; a line for a device that is gone must be taken out by hand"


def broken(facts: CtView, items: tuple[wanted.Want, ...]) -> dict[str, str]:
    """Names of nodes that are not right inside the running container, each with what is wrong."""
    known = wanted.drivers(facts.host)
    if facts.inside is None or known is None:
        return {}
    found: dict[str, str] = {}
    for item in items:
        number = known.number(item, facts.host)
        if number is not None and (bad := _bad(facts.inside.node(item.path), number)):
            found[item.name] = bad
    return found


def _bad(node: Node, number: tuple[int, int]) -> str:
    if node.kind is not NodeKind.CHAR:
        kind = {"absent": "missing", "regular": "a plain file"}.get(node.kind.value, node.kind.value)
        return f"{node.path} is {kind} inside"
    if node.number != number:
        return f"{node.path} is {node.major}:{node.minor} inside, the driver has {number[0]}:{number[1]}"
    return f"{node.path} gives {node.opened} inside" if node.opened else ""
