"""What an engine's last lines mean: a table of known signatures, and which lines are worth showing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Sign:
    """A regular expression over log lines, what it means, and what to do."""

    pattern: str
    meaning: str
    hint: str


SIGNS: Final = (
    Sign(
        r"cuda unknown error|cuInit.*999|cudaErrorUnknown|nvml.*\b999\b",
        "CUDA cannot start although NVML may work: /dev/nvidia-uvm is missing or its major number has changed",
        "run `gpuctl recover`: its device stage loads nvidia-uvm and corrects the container's rules",
    ),
    Sign(
        r"driver/library version mismatch",
        "the driver libraries in the container differ from the host's kernel module",
        "install the host's driver version in the container, or restart it after a driver update",
    ),
    Sign(
        r"failed to initialize nvml",
        "the container has lost access to its GPUs",
        "run `gpuctl devices show` for the container; a restart of the container restores its rules",
    ),
    Sign(
        r"no space left on device",
        "a file system is full; in a container /dev/shm is a tmpfs of half the memory by default",
        "enlarge /dev/shm or remove what is left there, then start again",
    ),
    Sign(
        r"max_num_seqs.*exceeds available mamba cache blocks",
        "the default number of sequences is too high for this hybrid model",
        "add engine args `--max-num-seqs 8`",
    ),
    Sign(
        r"cuda out of memory|no available memory for the cache blocks|less than desired gpu memory utilization"
        r"|cudaMalloc failed: out of memory",
        "GPU memory does not suffice, or another process holds it",
        "see `nvidia-smi` for others; lower --gpu-memory-utilization, --mem-fraction-static or the context",
    ),
    Sign(
        r"custom allreduce is disabled|not supported on more than two pcie-only gpus",
        "custom all-reduce does not work on more than two GPUs without NVLink (a note, not a fault)",
        "look at the lines after it",
    ),
    Sign(
        r"nccl.*(init complete|timeout|unhandled)|watchdog caught collective operation timeout",
        "GPUs do not reach each other: peer to peer is blocked by IOMMU or ACS",
        "try engine env NCCL_P2P_DISABLE=1; the real fix is iommu=pt and ACS off on the host",
    ),
    Sign(
        r"address already in use|couldn't bind|failed to bind|bind.*failed",
        "its port is in use",
        "stop the other server, or choose another engine.port in the inventory",
    ),
    Sign(
        r"unrecognized arguments?|invalid argument|unknown argument|no such option|invalid choice",
        "it does not know one of its arguments",
        "compare engine.args in the inventory with this engine version's --help",
    ),
    Sign(
        r"has no usable xllamacpp|no module named|modulenotfounderror|importerror",
        "its Python environment lacks a module",
        "check engine.venv in the inventory and what is installed there",
    ),
    Sign(
        r"failed to load model|error loading model|invalid magic|not a valid gguf|gguf_init_from_file",
        "the model file cannot be read by this engine",
        "check the file with `gpuctl stage`; perhaps this engine version does not know the model's architecture",
    ),
    Sign(
        r"no such file or directory|cannot execute|permission denied|engine program not found",
        "its program or a file it needs is missing or not allowed",
        "check engine.venv and engine.command in the inventory",
    ),
    Sign(
        r"illegal instruction|ggml_assert|segmentation fault|sigabrt",
        "it crashed inside its own native code",
        "try without engine.args, then another version of the engine",
    ),
)
"""First match wins: from the most particular to the most general."""

_PATTERNS: Final = tuple((re.compile(sign.pattern, re.IGNORECASE), sign) for sign in SIGNS)
_NOISE: Final = re.compile(r"^\s*$|^\s*\d+%\|.*\||it/s\]|^\s*[\^~]+\s*$")
_LOUD: Final = re.compile(r"error|exception|fatal|fail|abort|traceback|killed|cannot|not found", re.IGNORECASE)
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def clean(line: str) -> str:
    """A log line without colour codes and carriage-return progress; at most 300 characters."""
    return _ANSI.sub("", line).rstrip().rsplit("\r", 1)[-1][:300]


def meaningful(lines: Iterable[str], *, last: int = 12) -> tuple[str, ...]:
    """The lines to show: no blank lines and progress bars, no immediate repeats, the loud ones kept."""
    kept: list[str] = []
    for raw in lines:
        line = clean(raw)
        if not _NOISE.search(line) and (not kept or kept[-1] != line):
            kept.append(line)
    tail = kept[-last:]
    loud = [line for line in kept[:-last] if _LOUD.search(line)][-4:]
    return tuple(loud + tail)


def diagnose(lines: Iterable[str]) -> Sign | None:
    """The first sign, in the table's order, that any line shows."""
    cleaned = tuple(clean(line) for line in lines)
    for pattern, sign in _PATTERNS:
        if any(pattern.search(line) for line in cleaned):
            return sign
    return None
