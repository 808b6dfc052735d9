"""Root cause first: which finding explains which others, from what each needs to work.

The order of `CAUSES` is the order of the machine: driver, module, node number, node, library, GPU. A finding is
explained by the first cause that is really broken and reaches it; what nobody explains is a root cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from checks.report import Finding, Status

Reaches = Callable[[Finding, Finding], bool]


def _nodes(cause: Finding) -> tuple[str, ...]:
    value: Any = cause.value
    return tuple(value.get("nodes", ())) if isinstance(value, dict) else ()


def _by_nvml(effect: Finding) -> bool:
    """Findings that come from NVML readings."""
    return effect.id.startswith(("nvml.", "gpu.", "mem.", "power.", "pcie.")) or effect.id in (
        "ecc",
        "remap",
        "temp",
        "throttle",
        "persistence",
        "compute_mode",
    )


def _by_cuda(effect: Finding) -> bool:
    return effect.id in ("cuda.init", "cuda.context", "cuda.copy", "cuda.kernel")


def _module(_cause: Finding, effect: Finding) -> bool:
    return effect.id.startswith(("dev.", "drv.version")) or _by_nvml(effect) or _by_cuda(effect)


def _uvm_module(_cause: Finding, effect: Finding) -> bool:
    """The module explains missing or dead uvm nodes, also the empty file left in a node's place."""
    uvm_only = all(name.startswith("nvidia-uvm") for name in _nodes(effect))
    return (effect.id in ("dev.nodes", "dev.major") and bool(_nodes(effect)) and uvm_only) or _by_cuda(effect)


def _node(cause: Finding, effect: Finding) -> bool:
    """A node that is stale, missing, denied or no node at all stops the libraries that need it."""
    names = _nodes(cause)
    if cause.id == "dev.major" and effect.id == "dev.nodes":
        return bool(_nodes(effect)) and set(_nodes(effect)) <= set(names)
    hung = isinstance(cause.value, dict) and cause.value.get("open") == "hung"
    if "nvidiactl" in names or hung:
        return _by_nvml(effect) or _by_cuda(effect)
    if "nvidia-uvm" in names:
        return _by_cuda(effect) or (effect.id == "gpu.count" and _only_cuda_is_short(effect))
    if any(name[6:].isdigit() for name in names):
        # cards whose node does not open are the GPUs that are missing or lost
        return effect.id in ("gpu.count", "gpu.lost") or (effect.id == "gpu.identity" and effect.gpu is None)
    return False


def _only_cuda_is_short(effect: Finding) -> bool:
    value: Any = effect.value
    return isinstance(value, dict) and value.get("nvml") == effect.expected and value.get("cuda") is not None


def _version(_cause: Finding, effect: Finding) -> bool:
    return _by_nvml(effect) or _by_cuda(effect)


def _nvml(_cause: Finding, effect: Finding) -> bool:
    """Its own readings, and the contexts that wait for NVML's word on who is busy; cuInit is tested by itself."""
    return (_by_nvml(effect) and effect.id != "nvml.init") or effect.id in (
        "drv.version",
        "cuda.context",
        "cuda.copy",
        "cuda.kernel",
    )


def _gpu(cause: Finding, effect: Finding) -> bool:
    """A lost or hung GPU explains everything else about that GPU, and CUDA's trouble with it."""
    same = effect.gpu == cause.gpu and effect.gpu is not None
    return same or effect.id in ("cuda.init", "gpu.count")


def _same_gpu(cause: Finding, effect: Finding) -> bool:
    return effect.gpu == cause.gpu and effect.gpu is not None and _by_cuda(effect)


def _cuda(_cause: Finding, effect: Finding) -> bool:
    return effect.id in ("cuda.context", "cuda.copy", "cuda.kernel")


CAUSES: Final[tuple[tuple[str, Reaches], ...]] = (
    ("drv.module", _module),
    ("dev.uvm_module", _uvm_module),
    ("dev.major", _node),
    ("dev.nodes", _node),
    ("drv.version", _version),
    ("nvml.init", _nvml),
    ("gpu.responds", _gpu),
    ("gpu.lost", _gpu),
    ("gpu.count", lambda _, effect: effect.id == "gpu.identity" and effect.gpu is None),
    ("cuda.init", _cuda),
    ("compute_mode", _same_gpu),
    ("cuda.context", _same_gpu),
    ("cuda.copy", lambda cause, effect: _same_gpu(cause, effect) and effect.id == "cuda.kernel"),
)


def explain(findings: tuple[Finding, ...]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings with `because` filled in, ids of the root causes: gravest and earliest first).

    Only findings that are unknown or critical can be consequences; a good finding stays good. An unknown
    `drv.module` (no driver, nothing expected) also explains, so that a plain machine gives one sentence.
    """
    order = {name: rank for rank, (name, _) in enumerate(CAUSES)}
    explained = list(findings)
    for place, effect in enumerate(findings):
        if effect.status not in (Status.CRITICAL, Status.UNKNOWN):
            continue
        cause = _first_cause(effect, findings, order)
        if cause is not None:
            explained[place] = effect.explained_by(cause)
    roots = [
        f for f in explained if not f.because and f.status in (Status.CRITICAL, Status.WARNING, Status.UNKNOWN)
    ]
    worst = max((f.status.gravity for f in roots), default=0)
    roots.sort(key=lambda f: (-f.status.gravity, order.get(f.id, len(order))))
    # Warnings are root causes only when nothing graver is wrong: one thing first.
    return tuple(explained), tuple(dict.fromkeys(f.id for f in roots if f.status.gravity == worst))


def _first_cause(effect: Finding, findings: tuple[Finding, ...], order: dict[str, int]) -> Finding | None:
    mine = order.get(effect.id, len(order))
    for name, reaches in CAUSES:
        if order[name] >= mine:
            return None
        for cause in findings:
            broken = cause.status is Status.CRITICAL or (name == "drv.module" and cause.status is not Status.OK)
            if cause.id == name and broken and cause is not effect and reaches(cause, effect):
                return cause
    return None
