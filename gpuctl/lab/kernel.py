"""The lab's kernel and NVIDIA driver as files: boot id, /proc/devices, device nodes, and what nvidia-modprobe does."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuctl.lab.nodes import MARKERS, LabNode, NodeFiles
from gpuctl.lab.state import write_json

DRIVER: Final = "595.45.04"
CUDA: Final = 13000
NVIDIA_MAJOR: Final = 195
GPUS: Final = 8
UVM_MAJORS: Final = (511, 509)
"""Major of nvidia-uvm at the first, second, third ... boot, in turn: who registers first changes from boot to boot."""
GPU_NAME: Final = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition (lab)"

_BUSES: Final = ("01", "21", "41", "61", "81", "A1", "C1", "E1")
_STATIC_MAJORS: Final = (
    (1, "mem"), (4, "/dev/vc/0"), (4, "tty"), (5, "/dev/tty"), (5, "/dev/console"), (5, "/dev/ptmx"), (7, "vcs"),
    (10, "misc"), (13, "input"), (29, "fb"), (128, "ptm"), (136, "pts"), (180, "usb"), (195, "nvidia"),
    (195, "nvidia-modeset"), (195, "nvidiactl"), (226, "drm"), (251, "watchdog"), (252, "ptp"), (253, "pps"),
    (254, "rtc"),
)  # fmt: skip
_BLOCK: Final = "Block devices:\n  7 loop\n  8 sd\n  9 md\n 65 sd\n252 device-mapper\n253 virtblk\n259 blkext\n"


def gpus(token: str) -> list[dict[str, Any]]:
    """The lab's GPUs for the driver stand-in; UUIDs are the same in every boot of one lab."""
    space = uuid.uuid5(uuid.NAMESPACE_URL, f"gpuctl-lab:{token}")
    return [
        {
            "index": index,
            "minor": index,
            "name": GPU_NAME,
            "uuid": f"GPU-{uuid.uuid5(space, str(index))}",
            "bus_id": f"00000000:{bus}:00.0",
            "memory_bytes": 97_887 << 20,
            "power_limit_mw": 600_000,
            "driver": DRIVER,
            "cuda": CUDA,
            "lab": True,
        }
        for index, bus in enumerate(_BUSES[:GPUS])
    ]


@dataclass(slots=True)
class _State:
    token: str
    boot_id: str = ""
    boot_count: int = 0
    booted_at: float = 0.0
    uvm_loaded: bool = False


class Kernel:
    """State shared by host and containers, kept in kernel.json and shown as files in every rootfs."""

    def __init__(
        self,
        file: Path,
        host: Path,
        containers: Mapping[int, Path],
        token: str,
        *,
        nodes: NodeFiles = MARKERS,
        uvm_majors: tuple[int, int] = UVM_MAJORS,
    ) -> None:
        self._file = file
        self._nodes = nodes
        self._uvm_majors = uvm_majors
        self._host = host
        self._roots = (host, *containers.values())
        self._lock = threading.RLock()
        try:
            self._state = _State(**json.loads(file.read_bytes()))
        except FileNotFoundError:
            self._state = _State(token=token)

    @property
    def token(self) -> str:
        return self._state.token

    @property
    def boot_id(self) -> str:
        return self._state.boot_id

    @property
    def boot_count(self) -> int:
        return self._state.boot_count

    @property
    def booted_at(self) -> float:
        """Seconds since the epoch."""
        return self._state.booted_at

    def uptime_s(self) -> float:
        return max(0.0, time.time() - self._state.booted_at)

    @property
    def uvm_major(self) -> int:
        """The major that nvidia-uvm has, or would get, in this boot."""
        return self._uvm_majors[(self._state.boot_count - 1) % len(self._uvm_majors)]

    def boot(self) -> None:
        """Power on: new boot id, no nvidia-uvm; the persistence daemon has made the nodes of major 195."""
        with self._lock:
            self._state.boot_id = str(uuid.uuid4())
            self._state.boot_count += 1
            self._state.booted_at = time.time()
            self._state.uvm_loaded = False
            for path in (self._host / "dev").glob("nvidia*"):
                path.unlink()
            for index in range(GPUS):
                self._make_missing(f"nvidia{index}", LabNode(NVIDIA_MAJOR, index))
            self._make_missing("nvidiactl", LabNode(NVIDIA_MAJOR, 255))
            self._publish()

    def load_uvm(self) -> None:
        """What `modprobe nvidia-uvm` does: the major appears in /proc/devices, no node does."""
        with self._lock:
            self._state.uvm_loaded = True
            self._publish()

    def unload_uvm(self) -> None:
        with self._lock:
            self._state.uvm_loaded = False
            self._publish()

    def make_uvm_nodes(self) -> bool:
        """mknod of nvidia-uvm and nvidia-uvm-tools; a wrong node is replaced. False when that is switched off."""
        with self._lock:
            if not self._may_make_nodes():
                return False
            self._make_missing("nvidia-uvm", LabNode(self.uvm_major, 0))
            self._make_missing("nvidia-uvm-tools", LabNode(self.uvm_major, 1))
            return True

    def make_gpu_node(self, minor: int) -> bool:
        """mknod of nvidiaN (255: nvidiactl, 254: nvidia-modeset). False when that is switched off."""
        with self._lock:
            if not self._may_make_nodes():
                return False
            name = {255: "nvidiactl", 254: "nvidia-modeset"}.get(minor, f"nvidia{minor}")
            self._make_missing(name, LabNode(NVIDIA_MAJOR, minor))
            return True

    def modules(self) -> tuple[str, ...]:
        return ("nvidia", "nvidia_modeset", *(("nvidia_uvm",) if self._state.uvm_loaded else ()))

    def _may_make_nodes(self) -> bool:
        """The driver's own switch: ModifyDeviceFiles in /proc/driver/nvidia/params."""
        try:
            text = (self._host / "proc/driver/nvidia/params").read_text()
        except OSError:
            return True
        return "ModifyDeviceFiles: 0" not in text

    def _make_missing(self, name: str, node: LabNode) -> None:
        path = self._host / "dev" / name
        if self._nodes.read(path) != node:
            self._nodes.write(path, node)

    def _publish(self) -> None:
        devices = proc_devices(self.uvm_major, self._uvm_majors, loaded=self._state.uvm_loaded)
        for root in self._roots:
            rewrite(root / "proc/devices", devices)
            rewrite(root / "proc/sys/kernel/random/boot_id", f"{self._state.boot_id}\n")
            _show_modules(root / "sys/module", self.modules())
        state = {name: getattr(self._state, name) for name in _State.__slots__}
        write_json(self._file, state)


def proc_devices(uvm: int, majors: tuple[int, int], *, loaded: bool) -> str:
    """Text of /proc/devices. Other drivers hold the numbers that nvidia-uvm has in another boot."""
    lines = [(number, name) for number, name in _STATIC_MAJORS]
    others = sorted({*majors, 510} - {uvm}, reverse=True)
    lines += list(zip(others, ("ipmidev", "hidraw"), strict=True))
    if loaded:
        lines.append((uvm, "nvidia-uvm"))
    lines.sort(key=lambda item: item[0])
    return "Character devices:\n" + "".join(f"{number:3d} {name}\n" for number, name in lines) + "\n" + _BLOCK


def rewrite(path: Path, text: str) -> None:
    """Replace a file's content without replacing the file: it is mounted into running machines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    with path.open("r+b" if path.exists() else "wb") as file:
        # One write, then cut: a reader never sees an empty file.
        file.write(data)
        file.flush()
        file.truncate(len(data))


def _show_modules(folder: Path, loaded: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("nvidia", "nvidia_modeset", "nvidia_uvm"):
        place = folder / name
        if name in loaded:
            place.mkdir(exist_ok=True)
            (place / "version").write_text(f"{DRIVER}\n")
            (place / "initstate").write_text("live\n")
            (place / "refcnt").write_text("0\n")
        elif place.is_dir():
            for file in place.iterdir():
                file.unlink()
            place.rmdir()


def driver_files(gpu_list: list[dict[str, Any]]) -> dict[str, str]:
    """Files below /proc/driver/nvidia, by path."""
    files = {
        "version": (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (lab)\n"
            "GCC version:  gcc version 14.2.0 (Debian 14.2.0-19)\n"
        ),
        "params": (
            "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\n"
            "DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
        ),
    }
    for gpu in gpu_list:
        bus = f"{gpu['bus_id'][4:]}".lower()
        files[f"gpus/{bus}/information"] = (
            f"Model: \t\t {gpu['name']}\nIRQ:   \t\t {120 + gpu['index']}\nGPU UUID: \t {gpu['uuid']}\n"
            "Video BIOS: \t 98.02.52.00.02\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
            f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {bus}\nDevice Minor: \t {gpu['minor']}\n"
            f"GPU Firmware: \t {DRIVER}\nGPU Excluded:\t No\n"
        )
    return files
