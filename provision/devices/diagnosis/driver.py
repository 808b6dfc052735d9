"""What the driver, its module builder and the kernel's log say about themselves: parsers, one a source.

Texts of the log: NVIDIA/open-gpu-kernel-modules 595.45.04, nv.c, nv-pci.c and osapi.c; the closed module's words
are those quoted in its users' reports (NixOS/nixos-hardware#1880, NVIDIA/open-gpu-kernel-modules#322).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from provision.devices.facts import HostFacts

TURING: Final = 0x1E00
"""Device ids from here on have the GSP that the open modules need; the lowest in their README is 1E02."""
BLACKWELL: Final = 0x2900
"""Device ids from here on have only the open modules; the lowest Blackwell in their README is 2901."""

_VERSION: Final = r"(\d{2,4}\.\d+(?:\.\d+)*)"


def version(host: HostFacts) -> str:
    """Version of the loaded kernel module; empty when it can't be told."""
    match = re.search(rf"Kernel Module.*?\s{_VERSION}(?:\s|$)", host.driver.text)
    if match:
        return match[1]
    module = host.module("nvidia")
    return module.version if module is not None and module.loaded else ""


def flavour(host: HostFacts) -> str:
    """`open` or `proprietary`, of the loaded module when there is one, else of the file on disk; "" when unknown."""
    if "Open Kernel Module" in host.driver.text:
        return "open"
    if "Kernel Module" in host.driver.text:
        return "proprietary"
    module = host.module("nvidia")
    return module.flavour if module is not None else ""


def params(text: str) -> dict[str, str]:
    """/proc/driver/nvidia/params: `ModifyDeviceFiles: 1` and its like."""
    return dict(re.findall(r'^(\w+):[ \t]*"?(.*?)"?[ \t\r]*$', text, re.MULTILINE))


def may_make_nodes(text: str) -> bool:
    """Whether the driver's tools may make and repair nodes (NVreg_ModifyDeviceFiles)."""
    return params(text).get("ModifyDeviceFiles", "1") != "0"


def node_mode(text: str) -> int | None:
    """The mode that the driver's tools give to nodes (NVreg_DeviceFileMode, printed as a decimal)."""
    value = params(text).get("DeviceFileMode", "")
    return int(value) & 0o7777 if re.fullmatch(r"[0-9]{1,6}", value) else None


@dataclass(frozen=True, slots=True)
class Build:
    """One line of `dkms status`; `kernel` is empty for a module that was only added."""

    module: str
    version: str
    kernel: str
    state: str
    """`added`, `built`, `installed`, `installed-weak` or `broken`."""
    line: str


_NEW: Final = re.compile(r"([^/,\s]+)/([^,\s:]+)(?:,\s*([^,\s]+),\s*([^:,\s]+))?:\s*([a-z-]+)", re.ASCII)
_OLD: Final = re.compile(r"([^/,\s]+),\s*([^,\s:]+)(?:,\s*([^,\s]+),\s*([^:,\s]+))?:\s*([a-z-]+)", re.ASCII)


def dkms(text: str) -> tuple[Build, ...]:
    """NVIDIA's modules in `dkms status`, of version 3 (`nvidia/595.45.04, KERNEL, ARCH: installed`) and 2 (commas)."""
    found = []
    for line in text.splitlines():
        match = _NEW.match(line.strip()) or _OLD.match(line.strip())
        if match is not None and match[1].startswith("nvidia"):
            found.append(Build(match[1], match[2], match[3] or "", match[5], line.strip()))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Told:
    """One thing the kernel's log says: which GPU (PCI address, "" when it doesn't say), a number or a version."""

    what: str
    address: str
    value: str
    text: str


_BUS: Final = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_GPU: Final = rf"v?GPU\s+{_BUS}\s+\(PCI ID: 10de:([0-9a-fA-F]{{4}})\) installed in this "
_CARD: Final = rf"{_GPU}(?:vGPU host )?system "
_SAID: Final = tuple(
    (what, re.compile(pattern))
    for what, pattern in {
        "needs-open": _CARD + r"requires use of (?:the )?NVIDIA open kernel modules",
        "needs-closed": _CARD + r"is not supported by open nvidia\.ko",
        "unsupported": _CARD + r"is not supported by the NVIDIA [\d.]+ driver release",
        "legacy": r"()GPU installed in this system is supported through the NVIDIA (\d+\.?\w*) Legacy drivers",
        "fallen": _CARD + r"has fallen off the bus",
        "lost": rf"{_BUS}: GPU has fallen off the bus()",
        "xid": rf"Xid \(PCI:{_BUS}[^)]*\): (\d+)",
        "init": rf"GPU {_BUS}: RmInitAdapter failed! \(([0-9a-fx:]+)\)",
        "excluded": rf"{_BUS}: open\(\) not permitted for excluded (\S+)",
        "mismatch": r"()API mismatch: the client (?:'[^']*' \(pid \d+\) )?has the version (\d[\d.]*\d)",
        "not-probed": r"()The NVIDIA probe routine was not called for (\d+) device",
        "no-gpu": r"()No NVIDIA (?:GPU found|PCI devices found|devices probed)()",
        "rejected": r"()[Ll]oading of (unsigned module|module with un\w+ \w+) is rejected",
        "refused-key": r"()(Key was rejected by service|Required key not available)",
        "lockdown": r"()Lockdown: \S+ (unsigned module loading) is restricted",
        "unverified": r"()module verification failed: (signature and/or required key missing)",
        "symbols": r"()nvidia[\w-]*: disagrees about version of symbol (\w+)",
    }.items()
)


def _joined(text: str) -> str:
    """The log as one line: time stamps, unit names and the prefix of continued lines are taken out."""
    rows = []
    for row in text.splitlines():
        row = re.sub(r"^(?:\w{3} +\d+ [\d:]+|[\dT:.,+-]{19,}) \S+ kernel: ", "", row.strip())
        rows.append(re.sub(r"^(?:kernel: )?(?:<\d+>)?(?:\[[^\]]*\d[^\]]*\] ?)?", "", row))
    return re.sub(r"\s+", " ", " ".join(re.sub(r"^\s*NVRM:\s*", " ", row) for row in rows))


@lru_cache(maxsize=16)
def log(text: str) -> tuple[Told, ...]:
    """What the kernel's log says about the driver and its GPUs, each thing once, in the order of the log."""
    whole = _joined(text)
    found: dict[tuple[str, str, str], tuple[int, Told]] = {}
    for what, pattern in _SAID:
        for match in pattern.finditer(whole):
            address, value = (match[1] or "").lower(), match[2] or ""
            # Kept in its last place: what counts is what was said last.
            found[what, address, value] = (match.start(), Told(what, address, value, match[0].strip()))
    return tuple(told for _, told in sorted(found.values(), key=lambda entry: entry[0]))


def same_gpu(one: str, other: str) -> bool:
    """Whether two PCI addresses name the same card: the domain may have 4 or 8 digits, the function may be left out."""
    return _plain(one) == _plain(other) != ""


def _plain(address: str) -> str:
    match = re.fullmatch(_BUS, address)
    if match is None:
        return ""
    domain, bus, slot = match[1].split(".")[0].lower().split(":")
    return f"{int(domain, 16):x}:{bus}:{slot}"
