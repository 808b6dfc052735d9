"""Stage `preflight`: the container's own checks; CUDA is tried through its driver, never concluded from NVML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inventory.errors import CannotLook, Failed
from inventory.machine import Emit, Machine
from inventory.model import Gpus
from provision.pipeline import Plan, StageName

TIMEOUT_S = 150.0
"""Above the check run's own limit of 120 s, so that it answers before we give up."""


def expectations(gpus: Gpus) -> dict[str, Any]:
    """What the inventory says must be there, in the words of `checks.preflight`."""
    expect: dict[str, Any] = {"gpus": gpus.count}
    if gpus.name:
        expect["name"] = gpus.name
    if gpus.uuids:
        expect["uuids"] = list(gpus.uuids)
    if gpus.power_limit_w is not None:
        expect["power_limit_w"] = gpus.power_limit_w
    return expect


class PreflightStage:
    """Is the container fit to serve?"""

    name = StageName.PREFLIGHT

    def __init__(self, ct: Machine, gpus: Gpus, *, level: str = "full") -> None:
        self._ct = ct
        self._gpus = gpus
        self._level = level

    def observe(self) -> Mapping[str, Any]:
        """One report of `checks.preflight`."""
        args = {"expect": expectations(self._gpus), "level": self._level}
        report: Mapping[str, Any] = self._ct.call("checks.preflight", args, timeout_s=TIMEOUT_S)
        return report

    def describe(self, facts: Mapping[str, Any]) -> tuple[str, ...]:
        from checks.text import headline

        worth = [check for check in facts["checks"] if check["status"] in ("warning", "critical", "unknown")]
        return (headline(facts), *(f"{c['id']}: {c['summary']}" for c in worth if not c.get("because")))

    def plan(self, facts: Mapping[str, Any]) -> Plan:
        if facts["verdict"] in ("ok", "info", "warning"):
            return Plan()
        first = root_cause(facts)
        kind = Failed if facts["verdict"] == "critical" else CannotLook
        return Plan(
            blocked=kind(
                f"{self._ct.where} is not fit to serve: {first.get('summary', 'no check says why')}",
                hint=str(first.get("remedy", "")),
                detail=tuple(f"{c['id']}: {c['summary']}" for c in facts["checks"] if c["status"] == "critical"),
            )
        )

    def apply(self, step: Any, emit: Emit) -> str:
        raise AssertionError("a check never repairs")


def root_cause(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The check that the report names first as the cause, else the first one that is not good."""
    by_id: dict[str, Mapping[str, Any]] = {}
    for check in report["checks"]:
        by_id.setdefault(check["id"], check)
    for name in report.get("root_causes", ()):
        if name in by_id:
            return by_id[name]
    bad = (c for c in report["checks"] if c["status"] in ("critical", "unknown"))
    return next(bad, {})
