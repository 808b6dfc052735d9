"""Stage `host`: the driver is loaded and every node that the container needs is there."""

from __future__ import annotations

from dataclasses import dataclass

from inventory.machine import Emit
from inventory.model import Container
from provision.devices import wanted
from provision.devices.diagnosis import diagnose
from provision.devices.doors import ct_name
from provision.devices.facts import HostFacts
from provision.devices.planning import prepare
from provision.devices.scout import Scout
from provision.pipeline import Plan, StageName


def summary(host: HostFacts, container: Container) -> str:
    """The host's numbers in one line."""
    known = wanted.drivers(host)
    majors = known.majors if known else {}
    parts = [f"{name} {major}" for name, major in sorted(majors.items(), key=lambda item: item[1])]
    version = diagnose.driver_version(host) or "not loaded"
    absent = [driver for driver in ("nvidia-uvm",) if driver not in majors]
    tail = f", {', '.join(absent)} not loaded" if absent else ""
    numbers = ", ".join(parts) or "none"
    return f"driver {version}, {len(host.gpus)} GPUs ({container.gpus.count} wanted), majors: {numbers}{tail}"


@dataclass(frozen=True, slots=True)
class HostView:
    """What stage `host` knows: the facts, and the calls already made in this run."""

    host: HostFacts
    tried: frozenset[prepare.Argv]


class HostStage:
    """The driver is loaded on the host and every node that the container needs is there."""

    name = StageName.HOST

    def __init__(self, scout: Scout, container: Container, vmid: int) -> None:
        self._scout, self._container, self._vmid = scout, container, vmid
        self._tried: frozenset[prepare.Argv] = frozenset()
        self._seen: HostFacts | None = None

    def observe(self) -> HostView:
        self._seen = self._scout.host()
        return HostView(self._seen, self._tried)

    def describe(self, facts: HostView) -> tuple[str, ...]:
        found = diagnose.diagnose(ct_name(self._vmid), facts.host, self._container)
        told = (cause.text for cause in found if cause.id in diagnose.ON_HOST and not cause.note)
        return (summary(facts.host, self._container), *told)

    def plan(self, facts: HostView) -> Plan:
        made = prepare.host_plan(facts.host, self._container, facts.tried)
        later = ("the device rules are judged once the numbers are known",)
        waits = later if made.steps and made.blocked is None else ()
        return Plan(made.steps, made.blocked, waits, made.warnings, made.advice)

    def apply(self, step: prepare.Prepare, emit: Emit) -> str:
        self._tried |= frozenset(step.argvs)
        limit = 70.0 * len(step.argvs)
        steps = {"steps": [list(a) for a in step.argvs]}
        self._scout.forget()
        done = self._scout.doors.host.call("host.prepare", steps, emit=emit, timeout_s=limit)
        for ran in done["ran"]:
            if ran["rc"] != 0 and self._seen is not None:
                raise prepare.failure(self._seen, tuple(ran["argv"]), int(ran["rc"]), str(ran["stderr"]))
        return f"ran {' and '.join(' '.join(argv) for argv in step.argvs)} on the host"
