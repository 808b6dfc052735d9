"""Stage `preflight`: the container's own checks; CUDA is tried through its driver, never concluded from NVML."""

from __future__ import annotations

from typing import Any

from checks.report import Finding, Report
from checks.text import headline
from inventory.errors import CannotLook, Exit, Failed
from inventory.machine import Emit, Machine
from inventory.model import Container, Thresholds
from provision.pipeline import Plan, StageName

TIMEOUT_S = 150.0
"""Above the check run's own limit of 120 s, so that it answers before we give up."""


def expectations(container: Container, thresholds: Thresholds) -> dict[str, Any]:
    """What the inventory says must be there, in the words of `checks.preflight`."""
    gpus = container.gpus
    expect: dict[str, Any] = {"gpus": gpus.count}
    if gpus.name:
        expect["name"] = gpus.name
    if gpus.uuids:
        expect["uuids"] = list(gpus.uuids)
    if gpus.power_limit_w is not None:
        expect["power_limit_w"] = gpus.power_limit_w
    # NCCL needs room in /dev/shm only when several GPUs serve one model.
    several = max((container.engine.tp if container.engine else 1, *container.bench.tp)) > 1
    expect["shm_free_min_mib"] = thresholds.shm_free_min_mib if several else 0
    return expect


class PreflightStage:
    """Is the container fit to serve?"""

    name = StageName.PREFLIGHT

    def __init__(self, ct: Machine, expect: dict[str, Any], *, level: str = "full") -> None:
        self._ct = ct
        self._expect = expect
        self._level = level

    def observe(self) -> Report:
        """One report of `checks.preflight`."""
        args = {"expect": self._expect, "level": self._level}
        return Report.from_json(self._ct.call("checks.preflight", args, timeout_s=TIMEOUT_S))

    def describe(self, facts: Report) -> tuple[str, ...]:
        return (headline(facts),)

    def plan(self, facts: Report) -> Plan:
        bad = [finding for finding in facts.findings if finding.status.gravity >= facts.verdict.gravity]
        texts = tuple(dict.fromkeys(f"{finding.id}: {finding.summary}" for finding in bad))
        if facts.exit_code is Exit.GOOD:
            return Plan()
        if facts.exit_code is Exit.WARNING:
            return Plan(warnings=texts)
        first = root_cause(facts)
        kind = Failed if facts.exit_code is Exit.FAILED else CannotLook
        return Plan(
            blocked=kind(
                f"{self._ct.where} is not fit to serve: {first.summary if first else 'no check says why'}",
                hint=first.remedy if first else "gpuctl preflight shows all checks",
                detail=texts,
            )
        )

    def apply(self, step: Any, emit: Emit) -> str:
        raise AssertionError("a check never repairs")


def root_cause(report: Report) -> Finding | None:
    """The finding that the report names as the cause, else the gravest one."""
    named = (f for name in report.root_causes for f in report.findings if f.id == name and not f.because)
    return next(named, max(report.findings, key=lambda f: f.status.gravity, default=None))
