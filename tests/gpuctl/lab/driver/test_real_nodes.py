"""At level 1 the kernel answers for device nodes; only the driver behind NVIDIA's numbers is stood in for."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Python = Callable[..., Any]

MINE = {"GPUCTL_LAB_LEVEL": "1"}
OPEN = """
import errno
def attempt(name, flags=os.O_RDWR):
    try:
        os.close(os.open(f"{ROOT}/dev/{name}", flags | os.O_CLOEXEC))
        return "ok"
    except OSError as problem:
        return errno.errorcode[problem.errno]
"""


def _opens(python: Python, name: str) -> str:
    return str(python(f"{OPEN}\nprint(json.dumps(attempt({name!r})))", **MINE))


@pytest.fixture
def mknod(root: Path) -> Callable[..., Path]:
    """Make a real character device below the root's /dev: mknod(name, major, minor, mode)."""
    for path in (root / "dev").iterdir():
        path.unlink()

    def make(name: str, major: int, minor: int, mode: int = 0o666) -> Path:
        path = root / "dev" / name
        try:
            os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("this user may not make device nodes here")
        path.chmod(mode)
        return path

    return make


@pytest.fixture
def all_nodes(mknod: Callable[..., Path]) -> None:
    for name, major, minor in (("nvidiactl", 195, 255), ("nvidia-uvm", 511, 0), ("nvidia0", 195, 0)):
        mknod(name, major, minor)


def _cpuid_opens(folder: Path) -> bool:
    """Whether this machine has a driver behind 203:0 which a probe may open."""
    try:
        os.mknod(folder / "cpuid", stat.S_IFCHR | 0o600, os.makedev(203, 0))
        os.close(os.open(folder / "cpuid", os.O_RDONLY))
    except OSError:
        return False
    return True


def test_a_marker_file_is_only_a_file(python: Python) -> None:
    seen = python(
        "import stat\npath = f'{ROOT}/dev/nvidia-uvm'\nbegin = os.read(os.open(path, os.O_RDONLY), 8)\n"
        "print(json.dumps([stat.S_ISREG(os.stat(path).st_mode), begin.decode(),"
        " os.stat.__module__, os.lstat.__module__, os.open.__module__, os.open in os.supports_dir_fd]))",
        **MINE,
    )
    assert seen == [True, "lab-node", "posix", "posix", "lab_driver.real_nodes", True]


def test_a_node_that_is_not_there_is_the_kernels_enoent(python: Python, root: Path) -> None:
    (root / "dev/nvidia-uvm").unlink()
    assert _opens(python, "nvidia-uvm") == "ENOENT"


@pytest.mark.root
@pytest.mark.parametrize(
    ("node", "devices", "answer"),
    [
        (("nvidia0", 195, 0), "195 nvidia\n511 nvidia-uvm\n", "ok"),
        (("nvidia-uvm", 511, 0), "195 nvidia\n511 nvidia-uvm\n", "ok"),
        (("nvidia0", 195, 0), "195 nvidia-frontend\n", "ok"),
        (("nvidia-uvm", 511, 0), "195 nvidia\n509 nvidia-uvm\n", "ENXIO"),
        (("nvidia-uvm", 511, 0), "195 nvidia\n511 ipmidev\n", "ENXIO"),
        (("nvidia0", 195, 0), "511 nvidia-uvm\n", "ENXIO"),
        (("nvidia-uvm", 511, 0), "195 nvidia\n\nBlock devices:\n511 nvidia-uvm\n", "ENXIO"),
    ],
)
def test_enxio_is_stood_in_for_only_while_the_number_is_nvidias(
    python: Python,
    root: Path,
    mknod: Callable[..., Path],
    node: tuple[str, int, int],
    devices: str,
    answer: str,
) -> None:
    mknod(*node)
    (root / "proc/devices").write_text(f"Character devices:\n{devices}")
    assert _opens(python, node[0]) == answer


@pytest.mark.root
def test_without_proc_devices_the_kernels_answer_stays(
    python: Python, root: Path, mknod: Callable[..., Path]
) -> None:
    mknod("nvidia0", 195, 0)
    (root / "proc/devices").unlink()
    assert _opens(python, "nvidia0") == "ENXIO"


@pytest.mark.root
def test_a_stood_in_node_is_still_the_real_one_for_stat(python: Python, all_nodes: None) -> None:
    seen = python(
        "import stat\nfound = os.stat(f'{ROOT}/dev/nvidia-uvm')\n"
        "handle = os.open(f'{ROOT}/dev/nvidia-uvm', os.O_RDWR | os.O_CLOEXEC)\n"
        "print(json.dumps([stat.S_ISCHR(found.st_mode), os.major(found.st_rdev), os.minor(found.st_rdev),"
        " os.fstat(handle).st_rdev == os.stat('/dev/null').st_rdev, os.get_inheritable(handle)]))",
        **MINE,
    )
    assert seen == [True, 511, 0, True, False]


@pytest.mark.root
def test_a_node_with_a_driver_is_opened_for_real(python: Python, root: Path, mknod: Callable[..., Path]) -> None:
    if not _cpuid_opens(root):
        pytest.skip("no driver behind 203:0 (cpuid) on this kernel")
    mknod("nvidia-uvm", 203, 0)
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n203 nvidia-uvm\n")
    seen = python(
        "print(json.dumps(os.major(os.fstat(os.open(f'{ROOT}/dev/nvidia-uvm', os.O_RDONLY)).st_rdev)))", **MINE
    )
    assert seen == 203


@pytest.mark.root
def test_mode_bits_refuse_before_anything_is_stood_in(python: Python, mknod: Callable[..., Path]) -> None:
    """As root without the capability to pass over mode bits: what root of an unprivileged container is."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("no setpriv (util-linux) here")
    os.chown(mknod("nvidia-uvm", 511, 0, 0o660), 1234, 1234)
    before = (setpriv, "--bounding-set=-dac_override,-dac_read_search")
    assert python(f"{OPEN}\nprint(json.dumps(attempt('nvidia-uvm')))", before=before, **MINE) == "EACCES"


@pytest.mark.root
@pytest.mark.parametrize(("name", "answer"), [("nvidia0", "EIO"), ("nvidiactl", "ok")])
def test_a_scenario_speaks_after_the_kernel(
    python: Python, root: Path, all_nodes: None, name: str, answer: str
) -> None:
    wanted = {"open": {"nvidia0": "EIO", "nvidia7": "EIO"}}
    (root / "etc/gpuctl-lab/scenario.json").write_text(json.dumps(wanted))
    assert _opens(python, name) == answer
    assert _opens(python, "nvidia7") == "ENOENT"


@pytest.mark.root
@pytest.mark.parametrize(
    ("broken", "answer"),
    [
        (None, [1, 1]),
        ("nvidia-uvm", [1, -999]),
        ("nvidiactl", [-9, -100]),
        ("nvidia0", [0, -100]),
    ],
)
def test_nvml_and_cuda_follow_the_real_nodes(
    libraries: Python, root: Path, all_nodes: None, broken: str | None, answer: list[int]
) -> None:
    if broken:
        (root / "dev" / broken).unlink()
    assert libraries(**MINE) == answer


@pytest.mark.root
def test_a_file_in_the_place_of_a_node_opens_and_is_no_driver(
    python: Python, libraries: Python, root: Path, all_nodes: None
) -> None:
    (root / "dev/nvidia-uvm").unlink()
    (root / "dev/nvidia-uvm").touch()
    assert _opens(python, "nvidia-uvm") == "ok"
    assert libraries(**MINE) == [1, -999]


def test_starting_loads_neither_json_nor_ctypes(python: Python) -> None:
    code = "import sys; print(sorted(set(sys.modules) & {'json', 'ctypes', 're', 'lab_driver.real_nodes'}))"
    loaded = python(
        "import subprocess\n"
        f"done = subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True)\n"
        "print(json.dumps(done.stdout.strip()))",
        **MINE,
    )
    assert loaded == "['lab_driver.real_nodes']"
