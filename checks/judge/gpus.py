"""gpu.*: are all expected GPUs there, are they the right ones, are they alive."""

from __future__ import annotations

from typing import Any, Final

from checks.facts import GONE, Facts, each_gpu, ended, short_bus
from checks.report import Finding, Status

ACTIONS: Final = {
    1: ("reset the GPU", "stop what uses it, then on the host: nvidia-smi --gpu-reset"),
    2: ("reboot the node", "reboot the host"),
    3: ("drain peer-to-peer work", "stop multi-GPU work on it"),
    4: ("drain and reset", "stop all work on it, then on the host: nvidia-smi --gpu-reset"),
    5: ("restart IMEX", "restart the nvidia-imex service"),
    6: ("reset the bus", "reset the PCIe bus or reboot the host"),
    7: ("reboot the system", "reboot the host, power off if it stays"),
}


def count(facts: Facts) -> tuple[Finding, ...]:
    """gpu.count: NVML, CUDA, the kernel's own list and the inventory must agree."""
    counts = {
        "nvml": facts.nvml.value("count"),
        "cuda": facts.cuda.value("count"),
        "kernel": len(facts.devices.value("cards", otherwise=[])) or None,
    }
    seen = counts["nvml"] if counts["nvml"] is not None else counts["cuda"]
    expected = facts.expect.gpus
    evidence = tuple(f"{who}: {number}" for who, number in counts.items() if number is not None)
    if seen is None:
        return (
            Finding(
                id="gpu.count",
                status=Status.UNKNOWN,
                summary="neither NVML nor CUDA can count the GPUs",
                expected=expected,
                evidence=evidence,
            ),
        )
    wanted = expected if expected is not None else seen
    if seen != wanted or (counts["cuda"] is not None and counts["cuda"] != seen):
        missing = _missing(facts)
        says = f"{seen} of {wanted} GPUs" if seen != wanted else f"NVML lists {seen} GPUs, CUDA {counts['cuda']}"
        return (
            Finding(
                id="gpu.count",
                status=Status.CRITICAL,
                summary=says + (f"; missing: {', '.join(missing)}" if missing else ""),
                value=counts,
                expected=wanted,
                remedy="look for it on the host (`lspci -d 10de:`, kernel log) and in the container's device list",
                evidence=evidence,
            ),
        )
    if not seen and expected is None:
        return (Finding(id="gpu.count", status=Status.UNKNOWN, summary="no GPU is visible here", value=counts),)
    return (Finding(id="gpu.count", status=Status.OK, summary=f"{seen} GPUs", value=counts, expected=expected),)


def _missing(facts: Facts) -> list[str]:
    """Cards that somebody else knows of: the inventory by UUID, the kernel by bus id, NVML when CUDA lacks them."""
    uuids = {facts.uuid(gpu) for gpu in facts.gpus()}
    if facts.expect.uuids:
        return [uuid for uuid in facts.expect.uuids if uuid not in uuids]
    buses = {short_bus(str(facts.nvml.value("bus_id", gpu, ""))) for gpu in facts.gpus()}
    cards = facts.devices.value("cards", otherwise=[])
    absent = [
        f"{card['bus_id']} (/dev/nvidia{card['minor']})"
        for card in cards
        if short_bus(card["bus_id"]) not in buses
    ]
    if absent or facts.cuda.value("count") is None:
        return absent
    with_cuda = {facts.nvml_index(ordinal) for ordinal in facts.ordinals()}
    return [facts.label(gpu) for gpu in facts.gpus() if gpu not in with_cuda]


def identity(facts: Facts) -> tuple[Finding, ...]:
    """gpu.identity: names and UUIDs as expected; without an expectation they are only shown."""
    wanted = facts.expect.uuids
    findings = list(each_gpu(facts, "gpu.identity", "name", "name", lambda gpu, name: _named(facts, gpu, name)))
    uuids = {facts.uuid(gpu): gpu for gpu in facts.gpus() if facts.uuid(gpu)}
    for uuid, gpu in uuids.items():
        if wanted and uuid not in wanted:
            findings.append(
                Finding(
                    id="gpu.identity",
                    status=Status.CRITICAL,
                    gpu=gpu,
                    summary=f"{facts.label(gpu)} is {uuid}, which is not expected here",
                    value=uuid,
                    expected=list(wanted),
                    remedy="a card was swapped: correct the inventory, or the container's device list",
                )
            )
    absent = [uuid for uuid in wanted if uuid not in uuids]
    if absent and facts.gpus():
        findings.append(
            Finding(
                id="gpu.identity",
                status=Status.CRITICAL,
                summary=f"expected but not here: {', '.join(absent)}",
                value=sorted(uuids),
                expected=list(wanted),
                remedy="look for the missing card on the host: `lspci -d 10de:`, kernel log",
            )
        )
    return tuple(findings)


def _named(facts: Facts, gpu: int, name: Any) -> Finding:
    wanted = facts.expect.name
    if wanted and name != wanted:
        return Finding(
            id="gpu.identity",
            status=Status.CRITICAL,
            gpu=gpu,
            summary=f"{facts.label(gpu)} is a {name!r}, expected {wanted!r}",
            value=name,
            expected=wanted,
            remedy="correct the inventory, or look why another card is here",
        )
    value = {"name": name, "uuid": facts.uuid(gpu), "bus_id": facts.nvml.value("bus_id", gpu)}
    return Finding(
        id="gpu.identity",
        status=Status.OK,
        gpu=gpu,
        summary=f"{facts.label(gpu)}: {name}",
        value=value,
        expected=wanted or None,
    )


def lost(facts: Facts) -> tuple[Finding, ...]:
    """gpu.lost: any call that said "lost" or "needs a reset", and handles that cannot be had at all."""
    findings = []
    for gpu in facts.gpus():
        codes = {key: r for (key, index), r in facts.nvml.readings.items() if index == gpu and r.rc in GONE}
        handle = facts.nvml.get("handle", gpu)
        if codes:
            reset = all(reading.rc == 16 for reading in codes.values())
            findings.append(
                Finding(
                    id="gpu.lost",
                    status=Status.CRITICAL,
                    gpu=gpu,
                    summary=f"{facts.label(gpu)} {'needs a reset' if reset else 'is lost'}",
                    value=sorted({reading.rc for reading in codes.values()}),
                    remedy="reset it on the host"
                    if reset
                    else "power cycle the machine; reseat the card if it repeats (Xid 79)",
                    evidence=tuple(f"{key}: {reading.text}" for key, reading in list(codes.items())[:4]),
                )
            )
        elif handle is not None and not handle.ok:
            findings.append(
                Finding(
                    id="gpu.lost",
                    status=Status.CRITICAL,
                    gpu=gpu,
                    summary=f"{facts.label(gpu)}{_by_kernel(facts, gpu)} cannot be opened by NVML ({handle.rc})",
                    value=[handle.rc],
                    remedy="look at the host's kernel log; power cycle the machine, reseat the card if it repeats",
                    evidence=(handle.text,),
                )
            )
    if findings:
        return tuple(findings)
    if not facts.gpus():
        return (Finding(id="gpu.lost", status=Status.UNKNOWN, summary="no GPU could be asked"),)
    return (Finding(id="gpu.lost", status=Status.OK, summary="every GPU answers as present"),)


def _by_kernel(facts: Facts, gpu: int) -> str:
    """Where a card without a handle sits, when the kernel lists as many cards as NVML counts."""
    cards = facts.devices.value("cards", otherwise=[])
    return f" ({cards[gpu]['bus_id']})" if len(cards) == len(facts.gpus()) else ""


def responds(facts: Facts) -> tuple[Finding, ...]:
    """gpu.responds: no NVML call on a GPU hung or crashed."""
    findings = tuple(
        Finding(
            id="gpu.responds",
            status=Status.CRITICAL,
            gpu=ending.gpu,
            summary=ended(ending),
            value={"call": ending.call, "seconds": ending.seconds, "pid": ending.pid or None},
            remedy="the GPU or its firmware hangs: look at the host's kernel log (Xid 119, 45), stop its work, "
            "reset it or reboot the host",
        )
        for ending in facts.nvml.trouble
        if ending.gpu is not None
    )
    if findings:
        return findings
    if not facts.gpus():
        return (Finding(id="gpu.responds", status=Status.UNKNOWN, summary="no GPU could be asked"),)
    return (Finding(id="gpu.responds", status=Status.OK, summary="every NVML call returned"),)


def recovery(facts: Facts) -> tuple[Finding, ...]:
    """gpu.recovery: what the driver itself says the card needs; the trace of an Xid that a container can see."""

    def judge(gpu: int, value: Any) -> Finding:
        if value == 0:
            return Finding(
                id="gpu.recovery",
                status=Status.OK,
                gpu=gpu,
                summary=f"{facts.label(gpu)} needs no recovery",
                value=0,
            )
        words, remedy = ACTIONS.get(
            value, (f"an action we do not know ({value})", "look at the host's kernel log")
        )
        return Finding(
            id="gpu.recovery",
            status=Status.CRITICAL,
            gpu=gpu,
            summary=f"{facts.label(gpu)}: the driver asks to {words}",
            value=value,
            expected=0,
            remedy=remedy,
        )

    return each_gpu(facts, "gpu.recovery", "recovery", "recovery action", judge)
