"""A report as lines for a reader: the one cause first, then what else is wrong, then what is good in short."""

from __future__ import annotations

from collections.abc import Iterable

from checks.report import Finding, Report, Status

_SHOWN = (Status.CRITICAL, Status.UNKNOWN, Status.WARNING, Status.INFO)


def lines(report: Report, *, verbose: bool = False) -> tuple[str, ...]:
    """Worst first, one line a finding, its remedy and evidence indented below; `verbose` adds the good ones.

    Findings of one check that say the same on several GPUs share a line; consequences are one line per cause.
    """
    out = [_heading(report)]
    own = [finding for finding in report.findings if not finding.because]
    for group in _alike(finding for finding in own if verbose or finding.status in _SHOWN):
        out.extend(_lines(group))
    out.extend(_consequences(report.findings))
    good = sum(1 for finding in own if finding.status is Status.OK)
    quiet = [f"{good} good"] if good and not verbose else []
    for status in (Status.SKIPPED, Status.NOT_APPLICABLE):
        number = sum(1 for finding in own if finding.status is status)
        quiet += [f"{number} {status}"] if number and not verbose else []
    if quiet:
        out.append(f"  also: {', '.join(quiet)}")
    return tuple(out)


def headline(report: Report) -> str:
    """The verdict and its reason in one sentence."""
    roots = [finding for finding in report.findings if finding.id in report.root_causes and not finding.because]
    roots = [finding for finding in roots if finding.status is not Status.OK]
    if roots:
        return f"{report.verdict}: {roots[0].summary}" + (
            f" (and {len(roots) - 1} more)" if len(roots) > 1 else ""
        )
    counts = sum(1 for finding in report.findings if finding.status is Status.OK)
    return f"{report.verdict}: {counts} checks good"


def _heading(report: Report) -> str:
    lab = "lab: " if report.lab else ""
    return f"{lab}preflight ({report.level}) {headline(report)}"


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings in order, those of one check with the same status and remedy together."""
    groups: dict[tuple[str, Status, str], list[Finding]] = {}
    for finding in findings:
        key = (finding.id, finding.status, finding.remedy if finding.gpu is None else "")
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _lines(group: list[Finding]) -> list[str]:
    first = group[0]
    out = [f"  {first.status:<8} {first.id:<14} {finding.summary}" for finding in group[:4]]
    if len(group) > 4:
        out.append(f"  {'':<8} {'':<14} and {len(group) - 4} more GPUs alike")
    if first.remedy:
        out.append(f"  {'':<8} {'':<14} -> {first.remedy}")
    if first.status in (Status.CRITICAL, Status.UNKNOWN):
        out.extend(f"  {'':<8} {'':<14}    {line}" for line in first.evidence)
    return out


def _consequences(findings: tuple[Finding, ...]) -> list[str]:
    out = []
    causes = dict.fromkeys(finding.because for finding in findings if finding.because)
    for cause in causes:
        ids = dict.fromkeys(finding.id for finding in findings if finding.because == cause)
        out.append(f"  because of {cause}: {', '.join(ids)}")
    return out
