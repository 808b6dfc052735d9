"""Calls of nvidia-modprobe that gpuctl makes: which options there are, what they ask for, and nothing else.

Options of NVIDIA/nvidia-modprobe 610.43.03 (option-table.h, nvidia-modprobe.c, nvidia-modprobe-utils.c):
`-c N` makes /dev/nvidiaN, with 255 nvidiactl (64 times at most; it takes no other meaning of N);
`-u` loads nvidia-uvm *instead*, and its `-c 0` makes nvidia-uvm and nvidia-uvm-tools, so one call can't make both
GPU nodes and uvm nodes; `-s` makes with each `-c N` nvidia-nvswitchN (255: nvidia-nvswitchctl); `-l` makes
nvidia-nvlink; of `-l`, `-s` and `-u` only the first in this order counts. `-m` (nvidia-modeset and its node) and
`-f FILE` (the node of the capability that a file below /proc/driver/nvidia describes) come in addition.
The nodes of uvm are made even with ModifyDeviceFiles=0, always with mode 0666; those of GPUs are not.
A call that fails says nothing, and only its exit status is 1: the first failure ends it. Without an NVIDIA display
function on the PCI bus it loads nothing.

IMEX channels (/dev/nvidia-caps-imex-channels/channelN) have no option: the library function that makes them is used
by libnvidia-container alone. The driver makes channel0 when loaded with NVreg_CreateImexChannel0=1; others need
mknod by the admin (NVIDIA's IMEX guide). `-i` was the module instance of drivers up to 430, never IMEX. The
minor of the capability fabric-imex-mgmt is not fixed; its file says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from inventory.errors import ConfigError

Argv = tuple[str, ...]
MODULES: Final = ("nvidia", "nvidia_uvm")
"""What `modprobe` itself may be asked to load."""
_CTL: Final = 255
_MOST: Final = 32
"""Minors in one call; nvidia-modprobe takes 64."""
_CAPABILITY: Final = re.compile(r"/proc/driver/nvidia(?:-nvlink)?/capabilities(?:/[a-z0-9][a-z0-9-]*)+")
_MINOR: Final = re.compile(r"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Calls:
    """What a set of calls makes."""

    gpus: frozenset[int] = frozenset()
    """Minors of /dev/nvidiaN, 255 for nvidiactl."""
    uvm: bool = False
    modeset: bool = False
    nvlink: bool = False
    switches: frozenset[int] = frozenset()
    """Minors of nvidia-nvswitchN, 255 for nvidia-nvswitchctl."""
    capabilities: frozenset[str] = frozenset()
    """Files below /proc/driver/nvidia/capabilities."""

    def __or__(self, other: Calls) -> Calls:
        return Calls(
            self.gpus | other.gpus,
            self.uvm or other.uvm,
            self.modeset or other.modeset,
            self.nvlink or other.nvlink,
            self.switches | other.switches,
            self.capabilities | other.capabilities,
        )

    def argvs(self, program: str = "nvidia-modprobe") -> tuple[Argv, ...]:
        """The calls, those that CUDA needs first: each asks for one kind of node."""
        found: list[Argv] = [(program, *words) for words in _minors(self.gpus)]
        if self.uvm:
            found.append((program, "-u", "-c", "0"))
        found += [(program, "-f", path) for path in sorted(self.capabilities)]
        if self.nvlink:
            found.append((program, "-l"))
        found += [(program, "-s", *words) for words in _minors(self.switches)]
        if self.modeset:
            found.append((program, "-m"))
        return tuple(found)


def _minors(minors: Iterable[int]) -> list[Argv]:
    ordered = sorted(minors)
    parts = [ordered[n : n + _MOST] for n in range(0, len(ordered), _MOST)]
    return [tuple(word for minor in part for word in ("-c", str(minor))) for part in parts]


def read(options: Sequence[str]) -> Calls:
    """What the options of one call ask for; raises `ConfigError` for every option that gpuctl does not use."""
    flags, minors, files = set(), set(), set()
    words = iter(options)
    for word in words:
        if word in ("-u", "-m", "-l", "-s"):
            flags.add(word)
        elif word == "-c" and _MINOR.fullmatch(value := next(words, "")) and int(value) <= _CTL:
            minors.add(int(value))
        elif word == "-f" and _CAPABILITY.fullmatch(value := next(words, "")):
            files.add(value)
        else:
            raise ConfigError(
                f"nvidia-modprobe {' '.join(options)!r} is no call that gpuctl makes",
                hint="allowed are -u, -m, -l, -s, -c MINOR and -f FILE of a capability of the driver",
            )
    if len(flags & {"-u", "-l", "-s"}) > 1 or ("-u" in flags and minors - {0}) or ("-l" in flags and minors):
        raise ConfigError(f"nvidia-modprobe {' '.join(options)!r} asks for nodes of two drivers in one call")
    return Calls(
        gpus=frozenset(minors) if not flags & {"-u", "-s"} else frozenset(),
        uvm="-u" in flags,
        modeset="-m" in flags,
        nvlink="-l" in flags,
        switches=frozenset(minors) if "-s" in flags else frozenset(),
        capabilities=frozenset(files),
    )


def check_step(argv: Sequence[str]) -> None:
    """Raises `ConfigError` unless it is `modprobe` of NVIDIA's module or a call of nvidia-modprobe."""
    if tuple(argv[:1]) == ("nvidia-modprobe",):
        read(argv[1:])
    elif len(argv) != 2 or argv[0] != "modprobe" or argv[1] not in MODULES:
        raise ConfigError(
            f"{' '.join(argv)!r} is no step of preparing a host",
            hint=f"only nvidia-modprobe is, and modprobe of {' or '.join(MODULES)}",
        )
