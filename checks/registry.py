"""Every check there is: its id, the level from which it runs, its judge, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Final

from checks.facts import LEVELS, Facts
from checks.report import Finding, Status


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the registry."""

    id: str
    level: str
    """`quick`, `standard` or `full`: the least level at which it runs."""
    judge: str
    """`module:function` below `checks.judge`; a pure function `Facts -> tuple[Finding, ...]`."""
    probe: str
    """Which probe it mainly reads: `devices`, `nvml`, `cuda` or `use`."""
    title: str
    """What it answers, in a few words."""

    def run(self, facts: Facts) -> tuple[Finding, ...]:
        """Judge; a judge that breaks on odd data is an unknown finding, never an exception."""
        module, _, function = self.judge.partition(":")
        try:
            findings: tuple[Finding, ...] = getattr(import_module(f"checks.judge.{module}"), function)(facts)
        except Exception as problem:
            summary = f"this check broke on what it read: {type(problem).__name__}: {problem}"[:300]
            return (Finding(id=self.id, status=Status.UNKNOWN, summary=summary),)
        return findings


CHECKS: Final[tuple[Check, ...]] = (
    Check("drv.module", "quick", "driver:module", "devices", "is the NVIDIA driver loaded"),
    Check("dev.uvm_module", "quick", "nodes:uvm_module", "devices", "is the kernel module nvidia-uvm loaded"),
    Check("dev.major", "quick", "nodes:major", "devices", "do the nodes carry their driver's number"),
    Check("dev.nodes", "quick", "nodes:nodes", "devices", "do the device nodes open"),
    Check("drv.version", "quick", "driver:version", "devices", "are kernel module and libraries one version"),
    Check("nvml.init", "quick", "driver:nvml_init", "nvml", "does NVML start"),
    Check("cuda.init", "standard", "driver:cuda_init", "cuda", "does CUDA start"),
    Check("cuda.lib", "standard", "driver:cuda_library", "cuda", "which libcuda answers"),
    Check("cuda.env", "quick", "machine:cuda_variables", "devices", "do inherited variables change CUDA"),
    Check("gpu.count", "quick", "gpus:count", "nvml", "are all GPUs there"),
    Check("gpu.identity", "quick", "gpus:identity", "nvml", "are they the expected GPUs"),
    Check("gpu.responds", "quick", "gpus:responds", "nvml", "does every GPU answer in time"),
    Check("gpu.lost", "quick", "gpus:lost", "nvml", "is every GPU still on the bus"),
    Check("gpu.recovery", "quick", "gpus:recovery", "nvml", "does the driver ask for a recovery action"),
    Check("mem.info", "quick", "memory:info", "nvml", "how much memory has each GPU"),
    Check("mem.used", "quick", "memory:used", "nvml", "who holds GPU memory"),
    Check("ecc", "quick", "memory:ecc", "nvml", "are there memory errors"),
    Check("remap", "quick", "memory:remap", "nvml", "are memory rows worn out"),
    Check("temp", "quick", "health:temperature", "nvml", "is a GPU too hot"),
    Check("throttle", "quick", "health:throttle", "nvml", "is a GPU slowed down"),
    Check("power.limit", "quick", "health:power_limit", "nvml", "is the power limit as wanted"),
    Check("power.read", "quick", "health:power_read", "nvml", "can the power draw be read"),
    Check("pcie.width", "quick", "health:pcie_width", "nvml", "are all PCIe lanes in use"),
    Check("persistence", "quick", "health:persistence", "nvml", "does the driver stay loaded at idle"),
    Check("compute_mode", "quick", "health:compute_mode", "nvml", "may processes share the GPU"),
    Check("cuda.context", "full", "compute:context", "use", "does each GPU give a context"),
    Check("cuda.copy", "full", "compute:copy", "use", "does data survive a copy there and back"),
    Check("cuda.kernel", "full", "compute:kernel", "use", "does each GPU compute rightly"),
    Check("env.shm", "quick", "machine:shm", "devices", "is there room in /dev/shm"),
    Check("env.memory", "quick", "machine:memory", "devices", "does the memory limit kill"),
)


def at_level(level: str) -> tuple[Check, ...]:
    """The checks that run at a level, in registry order."""
    reach = LEVELS.index(level)
    return tuple(check for check in CHECKS if LEVELS.index(check.level) <= reach)


def judge_all(facts: Facts) -> tuple[Finding, ...]:
    """Every finding of the level of these facts, causes not yet sorted out."""
    return tuple(finding for check in at_level(facts.level) for finding in check.run(facts))
