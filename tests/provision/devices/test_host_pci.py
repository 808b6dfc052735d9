"""NVIDIA functions of the PCI bus, and the bridges above them that send peer traffic up to the root."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from provision.devices.facts import Pci
from provision.devices.observe import host_pci

RR = 0x0004
OTHERS = 0xFFFF & ~RR


def _config(*capabilities: tuple[int, int, int], size: int = 4096) -> bytes:
    """Configuration space with extended capabilities (offset, id, ACS control), each linked to the next."""
    space = bytearray(4096)
    space[:4] = struct.pack("<HH", 0x10B5, 0x8796)
    for n, (offset, number, control) in enumerate(capabilities):
        following = capabilities[n + 1][0] if n + 1 < len(capabilities) else 0
        struct.pack_into("<IHH", space, offset, number | 1 << 16 | following << 20, 0x001F, control)
    return bytes(space[:size])


def _redirects(space: bytes) -> bool | None:
    def dword(offset: int) -> int | None:
        data = space[offset : offset + 4]
        return int.from_bytes(data, "little") if len(data) == 4 else None

    return host_pci.request_redirect(dword)


AER, SERIAL, ACS = 0x0001, 0x0003, 0x000D


@pytest.mark.parametrize(
    ("space", "answer"),
    [
        (_config((0x100, ACS, RR)), True),
        (_config((0x100, ACS, OTHERS)), False),
        (_config((0x100, ACS, 0)), False),
        (_config((0x100, AER, RR), (0xE00, SERIAL, RR), (0xB70, ACS, 0x001D)), True),
        (_config((0x100, AER, RR), (0x148, SERIAL, RR)), None),
        (_config(), None),
        # Not root: the first 64 bytes; a device without extended space: 256.
        (_config((0x100, ACS, RR), size=64), None),
        (_config((0x100, ACS, RR), size=256), None),
        (_config((0x100, ACS, RR), size=0x104), None),
        (_config((0x100, ACS, RR), size=0x106), None),
        (b"", None),
        # A device that has gone answers with ones.
        (b"\xff" * 4096, None),
    ],
)
def test_request_redirect_is_read_from_the_list_of_capabilities(space: bytes, answer: bool | None) -> None:
    assert _redirects(space) is answer


def test_a_list_without_end_is_given_up() -> None:
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, AER | 0x200 << 20)
    struct.pack_into("<I", space, 0x200, AER | 0x100 << 20)
    assert _redirects(bytes(space)) is None


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs behind a switch, one at a root port, a sound function, and another vendor's card."""
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    root, switch = "pci0000:20/0000:20:01.1", "pci0000:20/0000:20:01.1/0000:21:00.0"
    for place, vendor, kind, driver, group in (
        (root, "0x1022", "0x060400", "pcieport", 1),
        (switch, "0x1000", "0x060400", "pcieport", 2),
        (f"{switch}/0000:22:00.0", "0x1000", "0x060400", "pcieport", 3),
        (f"{switch}/0000:22:00.0/0000:23:00.0", "0x10de", "0x030200", "nvidia", 14),
        (f"{switch}/0000:22:01.0", "0x1000", "0x060400", "pcieport", 4),
        (f"{switch}/0000:22:01.0/0000:24:00.0", "0x10de", "0x030000", "vfio-pci", 15),
        (f"{switch}/0000:22:01.0/0000:24:00.1", "0x10de", "0x040300", "", 15),
        ("pci0000:40/0000:40:02.0", "0x1022", "0x060400", "pcieport", None),
        ("pci0000:40/0000:40:02.0/0000:41:00.0", "0x1af4", "0x010000", "virtio", None),
    ):
        folder = tmp_path / "sys/devices" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text("0x2bb1\n")
        (folder / "class").write_text(f"{kind}\n")
        (folder / "config").write_bytes(_config((0x100, ACS, 0)))
        links = tmp_path / "sys/bus/pci/devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / folder.name).symlink_to(f"../../../devices/{place}")
        if driver:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        if group is not None:
            (folder / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{group}")
            (tmp_path / f"sys/kernel/iommu_groups/{group}").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"sys/kernel/iommu_groups/{group}/type").write_text(
                "identity\n" if group == 15 else "DMA-FQ\n"
            )
    return tmp_path


def test_every_nvidia_function_is_listed_with_its_driver_and_iommu_type(bus: Path) -> None:
    assert host_pci.functions() == (
        Pci("0000:23:00.0", "2bb1", "0x030200", "nvidia", "DMA-FQ"),
        Pci("0000:24:00.0", "2bb1", "0x030000", "vfio-pci", "identity"),
        Pci("0000:24:00.1", "2bb1", "0x040300", "", "identity"),
    )


def _set(bus: Path, address: str, data: bytes) -> None:
    (bus / "sys/bus/pci/devices" / address / "config").write_bytes(data)


def test_bridges_that_redirect_are_named_once_and_only_those_above_a_gpu(bus: Path) -> None:
    assert host_pci.acs_redirects(host_pci.functions()) == ()
    for address in ("0000:20:01.1", "0000:22:01.0", "0000:23:00.0", "0000:40:02.0"):
        _set(bus, address, _config((0x100, AER, 0), (0x148, ACS, RR)))
    assert host_pci.acs_redirects(host_pci.functions()) == ("0000:20:01.1", "0000:22:01.0")
    _set(bus, "0000:20:01.1", _config((0x100, ACS, RR), size=64))
    (bus / "sys/bus/pci/devices/0000:22:01.0/config").unlink()
    assert host_pci.acs_redirects(host_pci.functions()) == ()


def test_the_path_of_a_device_names_the_bridges_above_it() -> None:
    path = "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:04.0/0000:05:00.0"
    assert host_pci.bridges_above(path) == ("0000:00:01.0", "0000:01:00.0", "0000:02:04.0")
    assert host_pci.bridges_above("../../../devices/pci10000:e0/10000:e0:06.0/10000:e1:00.0") == ("10000:e0:06.0",)
    assert host_pci.bridges_above("") == ()


def test_a_bus_of_garbage_or_none_at_all_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    assert host_pci.functions() == ()
    (tmp_path / "sys/bus/pci/devices/x").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/x/vendor").write_bytes(b"\xff" * 100_000)
    (tmp_path / "sys/bus/pci/devices/y/vendor").mkdir(parents=True)
    assert host_pci.functions() == ()
