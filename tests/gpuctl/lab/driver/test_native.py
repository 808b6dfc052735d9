"""The library in C: loadable by anyone, and its cuInit answers by what the kernel says of the nodes."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuctl.lab.driver import native
from inventory.errors import Failed, Refused

Python = Callable[..., Any]

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

LOAD = """
import ctypes, json, os, sys
cuda = ctypes.CDLL(sys.argv[1])
number, text = ctypes.c_int(-1), ctypes.c_char_p()
before = cuda.cuDeviceGetCount(ctypes.byref(number))
rc = cuda.cuInit(0)
cuda.cuGetErrorName(rc, ctypes.byref(text))
name = text.value.decode()
cuda.cuDeviceGetCount(ctypes.byref(number))
print(json.dumps([before, rc, name, number.value]))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native.build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def ask(library: Path, root: Path) -> Callable[[], list[Any]]:
    """Load the library in a process without the stand-in: [count before init, cuInit, its name, cards]."""

    def run() -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-I", "-c", LOAD, str(library)],
            env={**os.environ, "GPUCTL_ROOT": str(root)},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, list)
        return answer

    return run


@pytest.fixture
def nodes(root: Path) -> Path:
    """The root's /dev with real nodes for two cards."""
    folder = root / "dev"
    for path in folder.iterdir():
        path.unlink()
    try:
        for name, major, minor in (
            ("nvidiactl", 195, 255),
            ("nvidia-uvm", 511, 0),
            ("nvidia-uvm-tools", 511, 1),
            ("nvidia0", 195, 0),
            ("nvidia1", 195, 1),
        ):
            os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("this user may not make device nodes here")
    return folder


@needs_cc
def test_the_real_loader_opens_it_and_its_errors_have_names(library: Path) -> None:
    cuda = ctypes.CDLL(str(library))
    text, version = ctypes.c_char_p(), ctypes.c_int()
    assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value == 13000
    assert cuda.cuGetErrorString(999, ctypes.byref(text)) == 0
    assert text.value == b"unknown error"
    assert cuda.cuGetErrorName(12345, ctypes.byref(text)) == 1
    assert text.value is None
    assert [cuda.cuInit(1), cuda.cuGetErrorName(0, None), cuda.cuDriverGetVersion(None)] == [1, 1, 1]


@needs_cc
def test_a_machine_without_nodes_has_no_device(ask: Callable[[], list[Any]], root: Path) -> None:
    for path in (root / "dev").iterdir():
        path.unlink()
    assert ask() == [3, 100, "CUDA_ERROR_NO_DEVICE", -1]


@needs_cc
@pytest.mark.root
def test_with_all_nodes_let_through_it_initialises(ask: Callable[[], list[Any]], nodes: Path) -> None:
    assert ask() == [3, 0, "CUDA_SUCCESS", 2]


@needs_cc
@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "node", "answer"),
    [
        ("nvidia-uvm", None, 999),
        ("nvidia-uvm", "file", 999),
        ("nvidia-uvm", "folder", 999),
        ("nvidia-uvm", (509, 0), 999),  # the number of another boot
        ("nvidia-uvm", (1, 3), 999),  # opens, but belongs to another driver
        ("nvidiactl", None, 100),
        ("nvidiactl", "file", 100),
        ("nvidia1", None, 0),
        ("nvidia1", "file", 0),
    ],
)
def test_one_wrong_node(
    ask: Callable[[], list[Any]], nodes: Path, name: str, node: str | tuple[int, int] | None, answer: int
) -> None:
    (nodes / name).unlink()
    if node == "file":
        (nodes / name).touch()
    elif node == "folder":
        (nodes / name).mkdir()
    elif isinstance(node, tuple):
        os.mknod(nodes / name, stat.S_IFCHR | 0o666, os.makedev(*node))
    cards = {0: 1, 100: -1, 999: -1}[answer]
    assert ask()[1::2] == [answer, cards]


@needs_cc
@pytest.mark.root
@pytest.mark.parametrize(
    ("devices", "answer"),
    [
        ("195 nvidia\n", 999),
        ("195 nvidia\n509 nvidia-uvm\n511 ipmidev\n", 999),
        ("195 nvidia\n511 nvidia-uvm-tools2\n", 999),
        ("195 nvidia\n\nBlock devices:\n511 nvidia-uvm\n", 999),
        ("511 nvidia-uvm\n", 100),
        ("195 nvidia-frontend\n511 nvidia-uvm\n", 0),
        (None, 100),
    ],
)
def test_a_number_without_its_driver_is_not_let_through(
    ask: Callable[[], list[Any]], nodes: Path, root: Path, devices: str | None, answer: int
) -> None:
    place = root / "proc/devices"
    if devices is None:
        place.unlink()
    else:
        place.write_text(f"Character devices:\n{devices}")
    assert ask()[1] == answer


@needs_cc
@pytest.mark.root
def test_the_stand_in_asks_it_first_and_does_the_rest_itself(
    python: Python, libraries: Python, library: Path, nodes: Path
) -> None:
    level1 = {"GPUCTL_LAB_LEVEL": "1", "GPUCTL_LAB_NATIVE": str(library.parent)}
    assert libraries(**level1) == [2, 2]
    loaded = python(
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\nrc = cuda.cuInit(0)\nb = ctypes.create_string_buffer(99)\n"
        "cuda.cuDeviceGetName(b, 99, 1)\n"
        "print(json.dumps([rc, b.value.decode(), 'native' in open('/proc/self/maps').read()]))",
        **level1,
    )
    assert loaded == [0, "Card 1 (lab)", True]
    (nodes / "nvidia-uvm").unlink()
    assert libraries(**level1) == [2, -999]


@needs_cc
@pytest.mark.root
def test_at_level_0_it_is_not_asked(libraries: Python, library: Path, nodes: Path) -> None:
    """Real nodes are no marker files, so level 0 sees no device at all."""
    assert libraries(GPUCTL_LAB_NATIVE=str(library.parent)) == [-9, -100]


@needs_cc
def test_building_again_replaces_the_library_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    first = native.build(tmp_path / "new" / "folder")
    assert native.build(first.parent) == first
    assert [path.name for path in first.parent.iterdir()] == ["libcuda.so.1"]


def test_without_a_compiler_it_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        native.build(tmp_path, compiler="no-such-compiler")
    assert "no-such-compiler" in caught.value.message
    assert "gcc" in caught.value.hint


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'stdio.h: No such file or directory' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(Failed) as caught:
        native.build(tmp_path / "out", compiler=str(compiler))
    assert caught.value.detail == ("stdio.h: No such file or directory",)
    assert not list((tmp_path / "out").iterdir())
