"""env.*, cuda.env: what a serving process would find here besides the GPUs."""

from __future__ import annotations

from typing import Final

from checks.facts import Facts
from checks.report import Finding, Status

MIB: Final = 1024**2
GIB: Final = 1024**3
SHM: Final = "/dev/shm"  # noqa: S108 - a name for messages


def shm(facts: Facts) -> tuple[Finding, ...]:
    """env.shm: free space in /dev/shm; NCCL dies of the 64 MiB some containers have."""
    reading = facts.devices.get("shm")
    if reading is None or not reading.ok:
        text = reading.text if reading is not None else "the probe did not get there"
        return (Finding(id="env.shm", status=Status.UNKNOWN, summary=f"{SHM} cannot be looked at: {text}"),)
    free, least = int(reading.value["free"]), facts.expect.shm_free_min_mib * MIB
    if free < least:
        return (
            Finding(
                id="env.shm",
                status=Status.WARNING,
                summary=f"{SHM} has {free / MIB:.0f} MiB free, {least / MIB:.0f} MiB are wanted",
                value=reading.value,
                expected=least,
                remedy="remove old files from /dev/shm or give the container a larger one",
            ),
        )
    return (
        Finding(
            id="env.shm",
            status=Status.OK,
            summary=f"{SHM} has {free / GIB:.1f} GiB free",
            value=reading.value,
            expected=least,
        ),
    )


def memory(facts: Facts) -> tuple[Finding, ...]:
    """env.memory: kills by the memory limit, and how close the limit is."""
    kills = int(facts.devices.value("oom_kills", otherwise=0) or 0)
    if kills:
        return (
            Finding(
                id="env.memory",
                status=Status.WARNING,
                summary=f"the memory limit killed {kills} processes here since the container started",
                value=kills,
                expected=0,
                remedy="give the container more memory; pinned memory and /dev/shm count too",
            ),
        )
    known = facts.devices.value("meminfo")
    if known is None:
        return (
            Finding(
                id="env.memory", status=Status.NOT_APPLICABLE, summary="no memory limit or meminfo to read here"
            ),
        )
    limit = facts.devices.value("memory_max")
    words = f", limit {limit / GIB:.1f} GiB" if limit else ""
    summary = f"{known['MemAvailable'] / GIB:.1f} of {known['MemTotal'] / GIB:.1f} GiB memory available{words}"
    return (Finding(id="env.memory", status=Status.OK, summary=summary, value={**known, "limit": limit}),)


def cuda_variables(facts: Facts) -> tuple[Finding, ...]:
    """cuda.env: inherited variables that hide GPUs or slow everything down; our own probes clear them."""
    variables = facts.devices.value("variables")
    if variables is None:
        return (Finding(id="cuda.env", status=Status.UNKNOWN, summary="the environment could not be read"),)
    odd: list[str] = []
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        odd.extend(_visible(facts, visible))
    for name in ("CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH"):
        if variables.get(name) not in (None, "", "0"):
            odd.append(f"{name}={variables[name]}")
    if odd:
        summary = f"inherited variables change CUDA: {'; '.join(odd)}"
        return (
            Finding(
                id="cuda.env",
                status=Status.WARNING,
                summary=summary,
                value=variables,
                remedy="unset them where the engine is started",
            ),
        )
    return (
        Finding(id="cuda.env", status=Status.OK, summary="no inherited variable changes CUDA", value=variables),
    )


def _visible(facts: Facts, text: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES hides: CUDA silently drops everything from the first invalid entry on."""
    uuids = [facts.uuid(gpu) for gpu in facts.gpus()]
    for word in (part.strip() for part in text.split(",")):
        valid = (word.isdigit() and int(word) < max(1, len(uuids))) or (
            word and any(u.startswith(word) for u in uuids)
        )
        if not valid:
            return [f"CUDA_VISIBLE_DEVICES={text!r} hides every GPU from its entry {word!r} on"]
    return []
