"""The engine stage of a recovery: the wanted engine runs, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from inventory.errors import Refused
from inventory.launch import Launch
from inventory.machine import Emit, Machine
from provision.pipeline import Plan, StageName


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What `engine.status` found."""

    state: str
    """`stopped`, `starting`, `ready` or `unresponsive`."""
    pid: int
    up_s: float
    key: str
    url: str
    kind: str
    method: str
    model: str
    version: str
    served: str
    model_changed: bool
    stranger: str
    """Who else holds the wanted port; empty: nobody."""
    missing: tuple[str, ...]
    """Needed paths that do not exist yet."""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EngineFacts:
        names = EngineFacts.__dataclass_fields__
        return EngineFacts(**{**{name: data[name] for name in names}, "missing": tuple(data["missing"])})


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Start it, or wait for the start that is under way."""

    launch: Launch
    waiting_for: int = 0
    """Pid of an engine of the same kind that is already starting; 0: none."""

    @property
    def line(self) -> str:
        what = f"{self.launch.kind} with method {self.launch.method} on port {self.launch.port}"
        return f"wait for {what} (pid {self.waiting_for}, starting)" if self.waiting_for else f"start {what}"


@dataclass(frozen=True, slots=True)
class RestartEngine:
    """Stop the running engine and start the wanted one."""

    launch: Launch
    pid: int
    reason: str

    @property
    def line(self) -> str:
        return (
            f"restart {self.launch.kind} with method {self.launch.method} on port {self.launch.port} "
            f"(pid {self.pid}): {self.reason}"
        )


class EngineStage:
    """Implements `provision.pipeline.Stage`. `launch.env` must have its references resolved."""

    name: ClassVar[StageName] = StageName.ENGINE

    def __init__(self, ct: Machine, launch: Launch) -> None:
        self._ct = ct
        self._launch = launch

    def observe(self) -> EngineFacts:
        """One `engine.status` call; the environment stays here."""
        data = self._ct.call("engine.status", {"launch": self._launch.to_json(env=False)}, timeout_s=30.0)
        return EngineFacts.from_json(data)

    def describe(self, facts: EngineFacts) -> tuple[str, ...]:
        lines = []
        if facts.state == "stopped":
            lines.append("no engine of gpuctl runs")
        else:
            verb = {"ready": "serves", "starting": "is loading"}.get(facts.state, "does not answer any more with")
            port = facts.url.rsplit(":", 1)[-1]
            lines.append(
                f"{facts.kind} {verb} {PurePosixPath(facts.model).name} on port {port}, "
                f"method {facts.method}, pid {facts.pid}, up {facts.up_s:.0f} s"
            )
        if facts.stranger:
            lines.append(f"port {self._launch.port} is held by {facts.stranger}")
        return tuple(lines)

    def plan(self, facts: EngineFacts) -> Plan:
        """Start, wait, restart with its reason, or nothing; blocked while a stranger holds the port."""
        if facts.stranger:
            return Plan(
                blocked=Refused(
                    f"port {self._launch.port} is in use by {facts.stranger}, which gpuctl did not start",
                    hint="stop that process, or choose another engine.port in the inventory",
                )
            )
        later = tuple(f"needs {path}, which is not there yet" for path in facts.missing)
        if facts.state == "stopped":
            return Plan(steps=(StartEngine(self._launch),), later=later)
        if reason := self._reason(facts):
            return Plan(steps=(RestartEngine(self._launch, facts.pid, reason),), later=later)
        if facts.state == "starting":
            return Plan(steps=(StartEngine(self._launch, waiting_for=facts.pid),), later=later)
        return Plan()

    def _reason(self, facts: EngineFacts) -> str:
        if facts.key != self._launch.key:
            return (
                f"it runs method {facts.method}"
                if facts.method != self._launch.method
                else "it was started with another command line"
            )
        if facts.model_changed:
            return "its model file was replaced since it started"
        if facts.state == "unresponsive":
            return "it does not answer"
        return ""

    def apply(self, step: StartEngine | RestartEngine, emit: Emit) -> str:
        """`engine.start`; returns once the engine can serve."""
        answer = self._ct.call(
            "engine.start",
            {"launch": step.launch.to_json(), "restart": isinstance(step, RestartEngine)},
            emit=emit,
            timeout_s=step.launch.ready_timeout_s + 120.0,
        )
        done = "started" if answer["started"] else "was already starting"
        return (
            f"{step.launch.kind} {done}: ready on port {step.launch.port} after {answer['waited_s']:.1f} s, "
            f"pid {answer['pid']}"
        )
