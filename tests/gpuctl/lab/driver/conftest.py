"""A small lab root and a way to run Python below it with the stand-in on its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuctl

STATE = """
import ctypes, pynvml
def nvml():
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as problem:
        return -problem.value
cuda = ctypes.CDLL("libcuda.so.1")
def cu():
    number = ctypes.c_int()
    rc = cuda.cuInit(0)
    return -rc if rc else (cuda.cuDeviceGetCount(ctypes.byref(number)), number.value)[1]
print(json.dumps([nvml(), cu()]))
"""
SITE = Path(str(gpuctl.__file__)).parent / "lab" / "driver" / "site"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two cards, everything loaded and allowed."""
    for folder in ("dev", "proc/driver/nvidia", "run", "etc/gpuctl-lab"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/devices").write_text(
        "Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
    )
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64  595.45.04  Release\n")
    for name, number in (
        ("nvidiactl", "195:255"),
        ("nvidia-uvm", "511:0"),
        ("nvidia0", "195:0"),
        ("nvidia1", "195:1"),
    ):
        (tmp_path / "dev" / name).write_text(f"lab-node c {number} mode=0666 uid=0 gid=0\n")
    cards = [
        {
            "index": i,
            "minor": i,
            "name": f"Card {i} (lab)",
            "uuid": f"GPU-0000000{i}-1111-2222-3333-444444444444",
            "bus_id": f"0000:0{i + 1}:00.0",
            "memory_bytes": 96 * 1024**3,
            "power_limit_mw": 600000,
            "driver": "595.45.04",
            "cuda": "13.2",
        }
        for i in range(2)
    ]
    (tmp_path / "etc/gpuctl-lab/gpus.json").write_text(json.dumps(cards))
    return tmp_path


@pytest.fixture
def python(root: Path) -> Callable[..., Any]:
    """Run lines of Python as a lab process; the JSON it prints last is the answer. `before`: words in front."""

    def run(code: str, *, before: tuple[str, ...] = (), **env: str) -> Any:
        done = subprocess.run(
            [*before, sys.executable, "-c", f"import json, os, sys\nROOT = os.environ['GPUCTL_ROOT']\n{code}"],
            env={**os.environ, "GPUCTL_ROOT": str(root), "PYTHONPATH": str(SITE), **env},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def libraries(python: Callable[..., Any]) -> Callable[..., Any]:
    """[cards NVML counts, cards CUDA counts]; a negative number is a return code. Arguments are environment."""
    return lambda **env: python(STATE, **env)
