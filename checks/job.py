"""The job `checks.preflight`: run the probes, judge, find the root cause, report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from checks import causes, registry
from checks.facts import LEVELS, Expect, Facts, short_bus
from checks.judge.memory import busy
from checks.probes import runner
from checks.probes.lines import NOTHING
from checks.report import Finding, Report, Status
from inventory.errors import UsageError
from inventory.machine import Emit, ignore
from inventory.root import at

TOTAL_S: Final[Mapping[str, float]] = {"quick": 5.0, "standard": 60.0, "full": 120.0}

DEVICES: Final = runner.Probe(name="devices", module="checks.probes.devices", stall_s=15.0)
"""15 s: without persistence mode the first open of a card initialises it."""
NVML: Final = runner.Probe(
    name="nvml",
    module="checks.probes.nvml",
    stall_s=5.0,
    calls_s={"nvmlInit": 15.0, "start": 15.0},
    skips_gpus=True,
)
CUDA: Final = runner.Probe(
    name="cuda",
    module="checks.probes.cuda",
    stall_s=5.0,
    calls_s={"cuInit": 20.0, "start": 15.0, "cuda context": 30.0, "cuda copy": 30.0, "cuda kernel": 30.0},
    # Ours, not the service's: every card, in the order of the slots. What was inherited is judged by cuda.env.
    env={"CUDA_VISIBLE_DEVICES": None, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    skips_gpus=True,
)


def preflight(args: Mapping[str, Any], emit: Emit = ignore) -> dict[str, Any]:
    """Report JSON of one look at this machine.

    args: `expect` (see `facts.Expect`), `level` (`quick`, `standard`, `full`), `use_busy` (true: give busy GPUs a
    context too). Raises `UsageError` for words it does not know; everything else ends up in the report.
    """
    return look(args, emit).to_json()


def look(args: Mapping[str, Any], emit: Emit = ignore) -> Report:
    """The same as a `Report`."""
    level = str(args.get("level") or "standard")
    if level not in LEVELS:
        raise UsageError(f"unknown level {level!r}", hint=f"known ones: {', '.join(LEVELS)}")
    expect = Expect.from_json(args.get("expect") or {})
    started = time.monotonic()
    facts = observe(level, expect, use_busy=bool(args.get("use_busy")), emit=emit, budget=args.get("budget") or {})
    return judge(facts, time.monotonic() - started)


def observe(
    level: str,
    expect: Expect,
    *,
    use_busy: bool = False,
    emit: Emit = ignore,
    budget: Mapping[str, float] | None = None,
) -> Facts:
    """Run the probes of a level side by side; contexts come last, when NVML has said who is busy.

    `budget` shortens limits (seconds) for tests and impatient callers: `stall_s`, `total_s`.
    """
    limits = dict(budget or {})
    until = time.monotonic() + float(limits.get("total_s", TOTAL_S[level]))
    probes = (DEVICES, NVML) if level == "quick" else (DEVICES, NVML, CUDA)
    emit({"type": "progress", "what": "preflight", "text": f"asking {', '.join(probe.name for probe in probes)}"})
    reads = _run(tuple(_limited(probe, limits) for probe in probes), until)
    facts = Facts(
        level=level,
        expect=expect,
        devices=reads.get("devices", NOTHING),
        nvml=reads.get("nvml", NOTHING),
        cuda=reads.get("cuda", NOTHING),
    )
    facts = replace(facts, lab=_is_lab(facts))
    if level != "full" or not facts.ordinals():
        return facts
    taken = () if use_busy else tuple(gpu for gpu in facts.gpus() if busy(facts, gpu) is not False)
    facts = replace(facts, busy=taken)
    free = tuple(facts.cuda.value("uuid", o, "") for o in facts.ordinals() if _free(facts, o, use_busy=use_busy))
    if not free:
        return facts
    emit({"type": "progress", "what": "preflight", "text": f"copying and computing on {len(free)} GPUs"})
    use = replace(CUDA, name="use", words=tuple(f"use={uuid}" for uuid in free), total_s=90.0)
    return replace(facts, use=_run((_limited(use, limits),), until).get("use", NOTHING))


def _free(facts: Facts, ordinal: int, *, use_busy: bool) -> bool:
    """A GPU NVML does not know might serve somebody: left alone unless asked."""
    gpu = facts.nvml_index(ordinal)
    return use_busy or (gpu is not None and gpu not in facts.busy)


def _limited(probe: runner.Probe, limits: Mapping[str, float]) -> runner.Probe:
    if "stall_s" not in limits:
        return probe
    return replace(probe, stall_s=float(limits["stall_s"]), calls_s={"start": 15.0})


def _run(probes: tuple[runner.Probe, ...], until: float) -> dict[str, Any]:
    try:
        return dict(runner.run(probes, total_s=max(0.5, until - time.monotonic())))
    except OSError:
        return {}  # no process or no temporary file to be had: every check then says that it could not look


def _is_lab(facts: Facts) -> bool:
    named = any("(lab)" in str(facts.nvml.value("name", gpu, "")) for gpu in facts.gpus())
    named = named or any("(lab)" in str(facts.cuda.value("name", o, "")) for o in facts.ordinals())
    return named or Path(at("/etc/gpuctl-lab")).exists()


def judge(facts: Facts, seconds: float = 0.0) -> Report:
    """Facts to report; pure."""
    findings, roots = causes.explain(registry.judge_all(facts))
    return Report(
        level=facts.level,
        lab=facts.lab,
        root_causes=roots,
        findings=_worst_first(findings, roots),
        seconds=seconds,
        facts=_machine(facts),
    )


def _worst_first(findings: tuple[Finding, ...], roots: tuple[str, ...]) -> tuple[Finding, ...]:
    """Root causes, then by gravity; consequences after what stands for itself; registry order within."""

    def rank(finding: Finding) -> tuple[bool, int, bool]:
        root = finding.id in roots and not finding.because and finding.status is not Status.OK
        return (not root, -finding.status.gravity, bool(finding.because))

    return tuple(sorted(findings, key=rank))


def _machine(facts: Facts) -> dict[str, Any]:
    return {
        "driver": facts.kernel_driver() or facts.nvml.value("driver"),
        "cuda": facts.cuda.value("version") or facts.nvml.value("cuda_version"),
        "gpus": [
            {
                "index": gpu,
                "name": facts.nvml.value("name", gpu),
                "uuid": facts.uuid(gpu),
                "bus_id": short_bus(str(facts.nvml.value("bus_id", gpu, ""))),
                "minor": facts.nvml.value("minor", gpu),
                "cuda_ordinal": next((o for o in facts.ordinals() if facts.nvml_index(o) == gpu), None),
            }
            for gpu in facts.gpus()
        ],
    }
