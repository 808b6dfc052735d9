"""NVIDIA functions on the PCI bus, their drivers, and the bridges above them that send peer traffic to the root."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from typing import Final

from inventory.root import at
from provision.devices.facts import Pci
from provision.devices.observe import look

DEVICES: Final = "/sys/bus/pci/devices"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ACS: Final = 0x000D
_REQUEST_REDIRECT: Final = 1 << 2

Dword = Callable[[int], int | None]
"""The 32 bits at an offset of the configuration space; None where nothing could be read."""


def functions() -> tuple[Pci, ...]:
    """Every function of vendor 0x10de, by address."""
    found = []
    for address in look.names(DEVICES)[:4096]:
        folder = f"{DEVICES}/{address}"
        if look.word(f"{folder}/vendor") != "0x10de":
            continue
        group = posixpath.basename(look.link(f"{folder}/iommu_group"))
        found.append(
            Pci(
                address,
                look.word(f"{folder}/device").removeprefix("0x"),
                look.word(f"{folder}/class"),
                posixpath.basename(look.link(f"{folder}/driver")),
                look.word(f"/sys/kernel/iommu_groups/{group}/type") if group else "",
            )
        )
    return tuple(found)


def bridges_above(path: str) -> tuple[str, ...]:
    """Addresses of the bridges in a device's path of sysfs, from the root down.

    `../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0` is below the bridge 0000:00:01.0.
    """
    return tuple(part for part in path.split("/")[:-1] if _ADDRESS.fullmatch(part))


def acs_redirects(found: tuple[Pci, ...]) -> tuple[str, ...]:
    """Bridges above a GPU that redirect its requests to other devices up to the root; empty when that is hidden."""
    above = (bridges_above(look.link(f"{DEVICES}/{function.address}")) for function in found if function.display)
    bridges = sorted({bridge for bridges in above for bridge in bridges})
    return tuple(bridge for bridge in bridges if _redirects(bridge))


def _redirects(bridge: str) -> bool:
    try:
        handle = os.open(at(f"{DEVICES}/{bridge}/config"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False

    def dword(offset: int) -> int | None:
        # Only the words on the way: each is a read on the bus, and all 4096 bytes of each bridge take milliseconds.
        try:
            data = os.pread(handle, 4, offset)
        except OSError:
            return None
        return int.from_bytes(data, "little") if len(data) == 4 else None

    try:
        return request_redirect(dword) or False
    finally:
        os.close(handle)


def request_redirect(dword: Dword) -> bool | None:
    """Whether ACS P2P Request Redirect is on; None when it has no ACS, or its extended space can't be read.

    Extended capabilities begin at 0x100: id in bits 0 to 15, next offset in bits 20 to 31; ACS (id 0x000d) has its
    control register in the upper half of the second word (PCI Express specification, 7.7.11; linux/pci_regs.h).
    """
    offset = 0x100
    for _ in range((4096 - 256) // 8):
        header = dword(offset)
        if header is None or header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == _ACS:
            control = dword(offset + 4)
            return None if control is None else bool(control >> 16 & _REQUEST_REDIRECT)
        offset = header >> 20 & ~3
        if offset < 0x100:
            return None
    return None
