"""A machine as a folder: nodes, /proc and driver state of a case file, looked at through the lab's driver stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuctl

SITE = Path(str(gpuctl.__file__)).parent / "lab" / "driver" / "site"
NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition (lab)"
DRIVER = "595.45.04"


def uuid(index: int) -> str:
    return f"GPU-0000000{index}-1111-2222-3333-444444444444"


def build(root: Path, tree: dict[str, Any]) -> Path:
    """Write the files of one machine below `root`; every key of `tree` deviates from a healthy machine of 8 cards."""
    count = tree.get("gpus", 8)
    majors = tree.get("majors", {"nvidia": 195, "nvidia-uvm": 511})
    nodes: dict[str, str | None] = {
        "nvidiactl": "c 195:255",
        "nvidia-uvm": "c 511:0",
        "nvidia-uvm-tools": "c 511:1",
    }
    nodes |= {f"nvidia{i}": f"c 195:{i}" for i in range(count)}
    nodes |= tree.get("nodes", {})
    for folder in ("dev/shm", "proc/self", "run", "etc/gpuctl-lab", "usr/lib/x86_64-linux-gnu"):
        (root / folder).mkdir(parents=True)
    for name, what in nodes.items():
        if what is not None:
            mode = tree.get("mode", "0666")
            line = f"lab-node {what} mode={mode} uid=0 gid=0\n" if what.startswith("c ") else what
            (root / "dev" / name).write_text(line)
    if not tree.get("no_proc_devices"):
        lines = "".join(f"{major} {name}\n" for name, major in majors.items())
        (root / "proc/devices").write_text(f"Character devices:\n  1 mem\n{lines}\nBlock devices:\n  8 sd\n")
    if tree.get("driver", DRIVER):
        _driver(root, count, tree.get("driver", DRIVER))
    if "rules" in tree:
        (root / "run/lab-device-rules").write_text("".join(f"{rule}\n" for rule in tree["rules"]))
    uid_map = tree.get("uid_map", "0 0 4294967295")
    (root / "proc/self/uid_map").write_text(uid_map + "\n")
    if not uid_map.startswith("0 0 "):
        (root / "run/lab-uid-map").write_text(uid_map + "\n")
    for name in tree.get("files", ()):
        (root / name).write_text("")
    cards = [_card(i) | tree.get("card", {}) | tree.get("cards", {}).get(str(i), {}) for i in range(count)]
    if tree.get("user_space", True):
        (root / "etc/gpuctl-lab/gpus.json").write_text(json.dumps(cards))
    (root / "etc/gpuctl-lab/scenario.json").write_text(json.dumps(tree.get("scenario", {})))
    return root


def _driver(root: Path, count: int, version: str) -> None:
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder)\n"
    for i in range(count):
        folder = root / f"proc/driver/nvidia/gpus/0000:0{i + 1}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {NAME}\nGPU UUID: \t {uuid(i)}\nDevice Minor: \t {i}\n")
    (root / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "proc/driver/nvidia/version").write_text(text)


def _card(i: int) -> dict[str, Any]:
    return {
        "index": i,
        "minor": i,
        "name": NAME,
        "uuid": uuid(i),
        "bus_id": f"0000:0{i + 1}:00.0",
        "memory_bytes": 102641958912,
        "power_limit_mw": 600000,
        "driver": DRIVER,
        "cuda": "13.2",
    }


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Path]:
    """Build a machine and make it the root of every probe this test starts."""

    def make(tree: dict[str, Any]) -> Path:
        root = build(tmp_path / "root", tree)
        monkeypatch.setenv("GPUCTL_ROOT", str(root))
        monkeypatch.setenv("PYTHONPATH", str(SITE))
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH"):
            monkeypatch.delenv(name, raising=False)
        return root

    return make
