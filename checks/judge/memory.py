"""mem.*, ecc, remap: GPU memory, who holds it, and whether it can be trusted."""

from __future__ import annotations

from typing import Any, Final

from checks.facts import Facts, each_gpu
from checks.report import Finding, Status

GIB: Final = 1024**3
BUSY_BYTES: Final = GIB
"""More memory in use than this means that somebody works there."""
REMAP_LIMIT: Final = 512
"""Uncorrectable remapped rows from which a card is to be replaced (DCGM's limit)."""


def in_use(facts: Facts, gpu: int) -> int | None:
    """Bytes held by processes; None when the card does not say. The old call counts the driver's own share too."""
    memory = facts.nvml.value("memory", gpu)
    return None if memory is None else int(memory["used"])


def busy(facts: Facts, gpu: int) -> bool | None:
    """Whether somebody works on this GPU; None when neither memory nor processes could be read."""
    used, processes = in_use(facts, gpu), facts.nvml.value("processes", gpu)
    if used is None and processes is None:
        return None
    return bool(processes) or (used or 0) > BUSY_BYTES


def info(facts: Facts) -> tuple[Finding, ...]:
    """mem.info: total memory, from NVML or, on unified memory such as GB10, from CUDA."""
    by_cuda = {facts.nvml_index(ordinal): facts.cuda.value("memory", ordinal) for ordinal in facts.ordinals()}

    def judge(gpu: int, value: Any) -> Finding:
        total = int(value["total"])
        status = Status.OK if total > 0 else Status.CRITICAL
        return Finding(
            id="mem.info",
            status=status,
            gpu=gpu,
            summary=f"{facts.label(gpu)}: {total / GIB:.1f} GiB",
            value=total,
        )

    findings = each_gpu(facts, "mem.info", "memory", "memory size", judge)
    return tuple(
        _unified(facts, finding.gpu, by_cuda[finding.gpu])
        if finding.status is Status.NOT_APPLICABLE and finding.gpu is not None and by_cuda.get(finding.gpu)
        else finding
        for finding in findings
    )


def _unified(facts: Facts, gpu: int, total: int) -> Finding:
    summary = f"{facts.label(gpu)}: {total / GIB:.1f} GiB, says CUDA (NVML does not: unified memory)"
    return Finding(id="mem.info", status=Status.OK, gpu=gpu, summary=summary, value=total)


def used(facts: Facts) -> tuple[Finding, ...]:
    """mem.used: memory that is held, and by whom; pids are the host's and mean nothing inside a container."""

    def judge(gpu: int, value: Any) -> Finding:
        bytes_used = int(value["used"])
        processes = facts.nvml.value("processes", gpu) or []
        summary = f"{facts.label(gpu)}: {bytes_used / GIB:.1f} GiB in use"
        if bytes_used <= BUSY_BYTES and not processes:
            return Finding(id="mem.used", status=Status.OK, gpu=gpu, summary=summary, value=bytes_used)
        who = ", ".join(f"host pid {process['pid']}" for process in processes[:4])
        summary += f" by {who}" if who else "; its process is not visible here"
        return Finding(
            id="mem.used",
            status=Status.INFO,
            gpu=gpu,
            summary=summary,
            value={"bytes": bytes_used, "processes": processes},
            remedy="" if who else "another container or the host may use this GPU",
        )

    return each_gpu(facts, "mem.used", "memory", "memory use", judge)


def ecc(facts: Facts) -> tuple[Finding, ...]:
    """ecc: uncorrected errors since the driver was loaded are critical; old ones of the card's life are history."""

    def judge(gpu: int, value: Any) -> Finding:
        label = facts.label(gpu)
        if value["uncorrected"] > 0:
            return Finding(
                id="ecc",
                status=Status.CRITICAL,
                gpu=gpu,
                summary=f"{label}: {value['uncorrected']} uncorrected memory errors since the driver was loaded",
                value=value,
                expected=0,
                remedy="stop its work and reset the card; look at remap, replace the card if it repeats",
            )
        if value["corrected"] > 1000:
            summary = f"{label}: {value['corrected']} corrected memory errors since the driver was loaded"
            return Finding(
                id="ecc", status=Status.WARNING, gpu=gpu, summary=summary, value=value, remedy="watch the card"
            )
        if value["uncorrected_total"] > 0:
            summary = f"{label}: no new memory errors, {value['uncorrected_total']} uncorrected ones in its life"
            return Finding(id="ecc", status=Status.INFO, gpu=gpu, summary=summary, value=value)
        return Finding(id="ecc", status=Status.OK, gpu=gpu, summary=f"{label}: no memory errors", value=value)

    return each_gpu(facts, "ecc", "ecc", "error counting (ECC)", judge)


def remap(facts: Facts) -> tuple[Finding, ...]:
    """remap: rows of memory replaced by spares."""

    def judge(gpu: int, value: Any) -> Finding:
        corrected, uncorrected, pending, failure = (int(number) for number in value)
        label, status, words, remedy = facts.label(gpu), Status.OK, "no row remapping waits", ""
        if failure:
            status, words, remedy = Status.CRITICAL, "a row could not be remapped", "replace the card (RMA)"
        elif uncorrected >= REMAP_LIMIT:
            status, words, remedy = (
                Status.CRITICAL,
                f"{uncorrected} rows remapped after uncorrected errors",
                "replace the card (RMA)",
            )
        elif pending:
            status, words, remedy = (
                Status.WARNING,
                "a row remapping waits for a reset",
                "reset the card when it is free",
            )
        value = {"corrected": corrected, "uncorrected": uncorrected, "pending": pending, "failure": failure}
        return Finding(id="remap", status=status, gpu=gpu, summary=f"{label}: {words}", value=value, remedy=remedy)

    return each_gpu(facts, "remap", "remap", "row remapping", judge)
