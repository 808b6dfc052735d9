"""temp, throttle, power.*, pcie.width, persistence, compute_mode: the condition of each card."""

from __future__ import annotations

from typing import Any, Final

from checks.facts import Facts, each_gpu
from checks.report import Finding, Status

REASONS: Final[tuple[tuple[int, str, Status, str], ...]] = (
    (0x40, "hardware thermal slowdown", Status.CRITICAL, "the card overheats: check its cooling"),
    (
        0x8,
        "hardware slowdown",
        Status.CRITICAL,
        "heat or power makes the hardware slow down: check cooling and power",
    ),
    (0x80, "power brake", Status.WARNING, "the power supply asks for less: check it"),
    (0x20, "software thermal slowdown", Status.WARNING, "the card is hot: check its cooling"),
)
"""Bits judged one by one, never the whole mask: 0x5 is idle plus power cap, and both are normal."""

COMPUTE_MODES: Final = {
    0: (Status.OK, "default"),
    1: (Status.WARNING, "exclusive thread"),
    2: (Status.CRITICAL, "prohibited"),
    3: (Status.WARNING, "exclusive process"),
}


def temperature(facts: Facts) -> tuple[Finding, ...]:
    """temp: against the card's own limits; a card without limits is only shown."""

    def judge(gpu: int, value: Any) -> Finding:
        limits = facts.nvml.value("thresholds", gpu, {}) or {}
        slow, high = limits.get("slowdown"), limits.get("gpu_max")
        status = Status.OK
        if slow and value >= slow - 2:
            status = Status.CRITICAL
        elif high and value >= high:
            status = Status.WARNING
        return Finding(
            id="temp",
            status=status,
            gpu=gpu,
            summary=f"{facts.label(gpu)}: {value} °C" + (f", slows down at {slow} °C" if slow else ""),
            value=value,
            expected=f"< {high or slow}" if high or slow else None,
            remedy="" if status is Status.OK else "check fans, air flow and the room's temperature",
        )

    return each_gpu(facts, "temp", "temperature", "temperature", judge)


def throttle(facts: Facts) -> tuple[Finding, ...]:
    """throttle: why the clocks are held down, bit by bit; unknown bits are ignored."""

    def judge(gpu: int, value: Any) -> Finding:
        active = [reason for reason in REASONS if int(value) & reason[0]]
        if not active:
            return Finding(
                id="throttle",
                status=Status.OK,
                gpu=gpu,
                summary=f"{facts.label(gpu)}: clocks are free",
                value=value,
            )
        gravest = max(active, key=lambda reason: reason[2].gravity)
        names = " and ".join(name for _, name, _, _ in active)
        return Finding(
            id="throttle",
            status=gravest[2],
            gpu=gpu,
            summary=f"{facts.label(gpu)}: {names}",
            value=value,
            remedy=gravest[3],
            evidence=(f"clocks event reasons: {int(value):#x}",),
        )

    return each_gpu(facts, "throttle", "reasons", "the reasons of clock limits", judge)


def power_limit(facts: Facts) -> tuple[Finding, ...]:
    """power.limit: as the inventory wants it; a cap nobody wrote down is only mentioned."""
    wanted = facts.expect.power_limit_w

    def judge(gpu: int, value: Any) -> Finding:
        watts = int(value) / 1000
        default = facts.nvml.value("power_default", gpu)
        summary = f"{facts.label(gpu)}: power limit {watts:g} W"
        if wanted is not None and abs(watts - wanted) > 1:
            return Finding(
                id="power.limit",
                status=Status.WARNING,
                gpu=gpu,
                summary=f"{summary}, expected {wanted:g} W",
                value=watts,
                expected=wanted,
                remedy=f"on the host: nvidia-smi -i {gpu} -pl {wanted:g} (it is lost at a reboot without persistence)",
            )
        if wanted is None and default and int(default) != int(value):
            summary += f", the card's default is {int(default) / 1000:g} W"
            return Finding(id="power.limit", status=Status.INFO, gpu=gpu, summary=summary, value=watts)
        return Finding(id="power.limit", status=Status.OK, gpu=gpu, summary=summary, value=watts, expected=wanted)

    findings = each_gpu(facts, "power.limit", "power_limit", "power limit", judge)
    if wanted is None:
        return findings
    return tuple(_not_supported_but_wanted(finding, wanted) for finding in findings)


def _not_supported_but_wanted(finding: Finding, wanted: float) -> Finding:
    """An expectation makes "not supported" a real gap: nobody can say that the cap is in force."""
    if finding.status is not Status.NOT_APPLICABLE:
        return finding
    summary = f"{finding.summary}; {wanted:g} W was expected"
    return Finding(id=finding.id, status=Status.UNKNOWN, gpu=finding.gpu, summary=summary, expected=wanted)


def power_read(facts: Facts) -> tuple[Finding, ...]:
    """power.read: the power reading; one transient error was already read again by the probe."""

    def judge(gpu: int, value: Any) -> Finding:
        watts = int(value) / 1000
        return Finding(
            id="power.read",
            status=Status.OK,
            gpu=gpu,
            summary=f"{facts.label(gpu)}: draws {watts:.0f} W",
            value=watts,
        )

    return tuple(
        Finding(
            id=f.id,
            status=Status.WARNING,
            gpu=f.gpu,
            summary=f.summary,
            remedy="look at the host's kernel log; reset the card when it is free",
        )
        if f.status is Status.UNKNOWN
        and f.gpu is not None
        and facts.nvml.get("power", f.gpu) is not None
        and not facts.lost(f.gpu)
        else f
        for f in each_gpu(facts, "power.read", "power", "power draw", judge)
    )


def pcie_width(facts: Facts) -> tuple[Finding, ...]:
    """pcie.width: lanes in use against the most that card and slot allow; valid at idle, unlike the generation."""

    def judge(gpu: int, value: Any) -> Finding:
        most = facts.nvml.value("pcie_width_max", gpu)
        if most and value < most:
            return Finding(
                id="pcie.width",
                status=Status.WARNING,
                gpu=gpu,
                summary=f"{facts.label(gpu)}: PCIe x{value} of x{most}",
                value=value,
                expected=most,
                remedy="reseat the card or its riser; check the slot's lanes in the firmware",
            )
        return Finding(
            id="pcie.width",
            status=Status.OK,
            gpu=gpu,
            summary=f"{facts.label(gpu)}: PCIe x{value}",
            value=value,
            expected=most,
        )

    return each_gpu(facts, "pcie.width", "pcie_width", "PCIe width", judge)


def persistence(facts: Facts) -> tuple[Finding, ...]:
    """persistence: off means slow first opens and lost limits; only the host can set it."""

    def judge(gpu: int, value: Any) -> Finding:
        if value:
            return Finding(
                id="persistence",
                status=Status.OK,
                gpu=gpu,
                summary=f"{facts.label(gpu)}: persistence mode is on",
                value=1,
            )
        return Finding(
            id="persistence",
            status=Status.WARNING,
            gpu=gpu,
            summary=f"{facts.label(gpu)}: persistence mode is off",
            value=0,
            expected=1,
            remedy="on the host: enable nvidia-persistenced",
        )

    return each_gpu(facts, "persistence", "persistence", "persistence mode", judge)


def compute_mode(facts: Facts) -> tuple[Finding, ...]:
    """compute_mode: whether processes may use the card, and more than one."""

    def judge(gpu: int, value: Any) -> Finding:
        status, words = COMPUTE_MODES.get(value, (Status.WARNING, f"unknown mode {value}"))
        return Finding(
            id="compute_mode",
            status=status,
            gpu=gpu,
            summary=f"{facts.label(gpu)}: compute mode {words}",
            value=value,
            expected=0,
            remedy="" if status is Status.OK else f"on the host: nvidia-smi -i {gpu} -c DEFAULT",
        )

    return each_gpu(facts, "compute_mode", "compute_mode", "compute mode", judge)
