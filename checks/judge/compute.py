"""cuda.context, cuda.copy, cuda.kernel: does each GPU really hold data and compute."""

from __future__ import annotations

from collections.abc import Callable

from checks.facts import Facts, ended
from checks.judge.driver import CUDA_CODES
from checks.probes.lines import Reading
from checks.report import Finding, Status

JIT_CODES = (221, 222)
"""PTX translator missing or too old: the driver's user space is incomplete here, the GPU is not at fault."""


def context(facts: Facts) -> tuple[Finding, ...]:
    return _each(facts, "cuda.context", "context", _works)


def copy(facts: Facts) -> tuple[Finding, ...]:
    return _each(facts, "cuda.copy", "copy", _compared)


def kernel(facts: Facts) -> tuple[Finding, ...]:
    return _each(facts, "cuda.kernel", "kernel", _compared)


def _each(
    facts: Facts, check: str, key: str, judge: Callable[[Facts, str, str, int | None, int, Reading], Finding]
) -> tuple[Finding, ...]:
    """One finding for every CUDA device, under its NVML index."""
    findings = []
    for ordinal in facts.ordinals():
        gpu = facts.nvml_index(ordinal)
        reading = facts.use.get(key, ordinal)
        if gpu is not None and gpu in facts.busy:
            summary = f"{facts.label(gpu)}: skipped (busy): it serves somebody"
            findings.append(Finding(id=check, status=Status.SKIPPED, gpu=gpu, summary=summary))
        elif reading is not None:
            findings.append(judge(facts, check, key, gpu, ordinal, reading))
        else:
            findings.append(_missing(facts, check, key, gpu, ordinal))
    if not findings:
        findings.append(Finding(id=check, status=Status.UNKNOWN, summary=f"CUDA {key}: no device could be tried"))
    return tuple(findings)


def _name(facts: Facts, gpu: int | None, ordinal: int) -> str:
    return facts.label(gpu) if gpu is not None else f"CUDA device {ordinal}"


def _missing(facts: Facts, check: str, key: str, gpu: int | None, ordinal: int) -> Finding:
    hang = facts.hang(facts.use, ordinal)
    if hang is not None and hang.call == f"cuda {key}":
        return Finding(
            id=check,
            status=Status.CRITICAL,
            gpu=gpu,
            summary=f"{_name(facts, gpu, ordinal)}: {ended(hang)}",
            remedy="the GPU or its driver hangs: look at the host's kernel log",
        )
    failed = next(
        (k for k in ("context", "alloc", "copy") if (r := facts.use.get(k, ordinal)) is not None and not r.ok), ""
    )
    words = f"not tried after the {failed} failed" if failed else "not tried"
    return Finding(
        id=check, status=Status.UNKNOWN, gpu=gpu, summary=f"{_name(facts, gpu, ordinal)}: CUDA {key} {words}"
    )


def _failed(facts: Facts, check: str, key: str, gpu: int | None, ordinal: int, reading: Reading) -> Finding:
    words, remedy = CUDA_CODES.get(reading.rc, (reading.text, "look at the host's kernel log"))
    status = Status.WARNING if reading.rc in JIT_CODES else Status.CRITICAL
    if reading.rc in JIT_CODES:
        words, remedy = (
            "the driver's PTX translator is missing or too old here",
            "install the driver's whole user space here (libnvidia-ptxjitcompiler)",
        )
    return Finding(
        id=check,
        status=status,
        gpu=gpu,
        summary=f"{_name(facts, gpu, ordinal)}: CUDA {key} fails: {words}",
        value=reading.rc,
        expected=0,
        remedy=remedy,
        evidence=(reading.text,),
    )


def _works(facts: Facts, check: str, key: str, gpu: int | None, ordinal: int, reading: Reading) -> Finding:
    if not reading.ok:
        return _failed(facts, check, key, gpu, ordinal, reading)
    return Finding(
        id=check, status=Status.OK, gpu=gpu, summary=f"{_name(facts, gpu, ordinal)}: CUDA {key} works", value=0
    )


def _compared(facts: Facts, check: str, key: str, gpu: int | None, ordinal: int, reading: Reading) -> Finding:
    if not reading.ok:
        return _failed(facts, check, key, gpu, ordinal, reading)
    if reading.value["wrong"]:
        return Finding(
            id=check,
            status=Status.CRITICAL,
            gpu=gpu,
            summary=f"{_name(facts, gpu, ordinal)}: CUDA {key} gives wrong data: "
            f"{reading.value['wrong']} of {reading.value['bytes']} bytes",
            value=reading.value,
            expected=0,
            remedy="do not use this GPU: its memory, its link or its slot corrupts data",
            evidence=(
                f"first wrong byte at {reading.value['first_wrong']}",
                f"CUDA ordinal {ordinal}, {facts.cuda.value('uuid', ordinal, '')}",
            ),
        )
    return Finding(
        id=check,
        status=Status.OK,
        gpu=gpu,
        summary=f"{_name(facts, gpu, ordinal)}: CUDA {key} is right",
        value=reading.value,
    )
