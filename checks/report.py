"""What a preflight says: findings, their order of gravity, and the report that goes into JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from inventory.errors import Exit

SCHEMA_VERSION: Final = 1


class Status(StrEnum):
    """How grave a finding is. `skipped` (on purpose) and `n/a` (this hardware has no such thing) weigh nothing."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    UNKNOWN = "unknown"
    CRITICAL = "critical"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "n/a"

    @property
    def gravity(self) -> int:
        """0 for what says nothing, then ok < info < warning < unknown < critical."""
        return GRAVITY[self]


GRAVITY: Final[Mapping[Status, int]] = {
    Status.NOT_APPLICABLE: 0,
    Status.SKIPPED: 0,
    Status.OK: 1,
    Status.INFO: 2,
    Status.WARNING: 3,
    Status.UNKNOWN: 4,
    Status.CRITICAL: 5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer of one check, for the machine (`gpu` is None) or for one GPU (its NVML index)."""

    id: str
    status: Status
    summary: str
    gpu: int | None = None
    value: Any = None
    """What was seen, as JSON."""
    expected: Any = None
    """What was wanted, as JSON; None when nothing was."""
    remedy: str = ""
    evidence: tuple[str, ...] = ()
    because: str = ""
    """Id of the finding that explains this one; empty when it stands for itself."""

    def explained_by(self, cause: Finding) -> Finding:
        """The same finding as a consequence: its own state cannot be judged before `cause` is repaired.

        A cause that is only information (no driver, and no GPU expected) makes it not applicable instead.
        """
        status = Status.NOT_APPLICABLE if cause.status is Status.INFO else Status.UNKNOWN
        return replace(self, status=status, because=cause.id, remedy="")

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": str(self.status),
            "gpu": self.gpu,
            "summary": self.summary,
            "value": self.value,
            "expected": self.expected,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
            "because": self.because,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Finding:
        return Finding(
            id=str(data["id"]),
            status=Status(data["status"]),
            summary=str(data["summary"]),
            gpu=data.get("gpu"),
            value=data.get("value"),
            expected=data.get("expected"),
            remedy=str(data.get("remedy", "")),
            evidence=tuple(str(line) for line in data.get("evidence", ())),
            because=str(data.get("because", "")),
        )


def verdict_of(findings: tuple[Finding, ...]) -> Status:
    """The worst status; info counts as ok, and a report in which nothing was seen is unknown, never ok."""
    worst = max(
        (finding.status for finding in findings), key=lambda status: status.gravity, default=Status.UNKNOWN
    )
    if worst.gravity == 0:
        return Status.UNKNOWN
    return Status.OK if worst is Status.INFO else worst


EXITS: Final[Mapping[Status, Exit]] = {
    Status.OK: Exit.GOOD,
    Status.WARNING: Exit.WARNING,
    Status.CRITICAL: Exit.FAILED,
    Status.UNKNOWN: Exit.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings of one run, root causes first found out."""

    level: str
    lab: bool
    root_causes: tuple[str, ...]
    """Ids of the findings that explain the others; each once, gravest first."""
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    """Wall time of the run."""
    facts: Mapping[str, Any] | None = None
    """The machine in words: driver, CUDA version, GPUs; for headings, not for decisions."""

    @property
    def verdict(self) -> Status:
        return verdict_of(self.findings)

    @property
    def exit_code(self) -> Exit:
        """0 ok, 1 warning, 2 critical, 3 unknown."""
        return EXITS[self.verdict]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "lab": self.lab,
            "level": self.level,
            "verdict": str(self.verdict),
            "exit_code": int(self.exit_code),
            "root_causes": list(self.root_causes),
            "seconds": round(self.seconds, 3),
            "machine": dict(self.facts or {}),
            "checks": [finding.to_json() for finding in self.findings],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """Rebuild a report that crossed the wire; the verdict is computed again, not trusted."""
        return Report(
            level=str(data.get("level", "")),
            lab=bool(data.get("lab")),
            root_causes=tuple(str(cause) for cause in data.get("root_causes", ())),
            findings=tuple(Finding.from_json(item) for item in data.get("checks", ())),
            seconds=float(data.get("seconds", 0.0)),
            facts=data.get("machine") or {},
        )
