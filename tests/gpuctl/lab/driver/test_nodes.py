"""Device nodes of the lab answer stat and open as the kernel does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Python = Callable[..., Any]

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
    return str(python(f"{OPEN}\nprint(json.dumps(attempt({name!r})))"))


def test_a_node_is_a_character_device_for_os_and_pathlib(python: Python) -> None:
    seen = python(
        "import pathlib, stat\n"
        "found = os.stat(f'{ROOT}/dev/nvidia-uvm')\n"
        "print(json.dumps([stat.S_ISCHR(found.st_mode), os.major(found.st_rdev), os.minor(found.st_rdev),"
        " stat.S_IMODE(found.st_mode), found.st_size, pathlib.Path(f'{ROOT}/dev/nvidia1').is_char_device(),"
        " os.path.exists(f'{ROOT}/dev/nvidia0'), stat.S_ISCHR(os.lstat(f'{ROOT}/dev/nvidia0').st_mode),"
        " os.stat(os.open(f'{ROOT}/dev/nvidia0', os.O_RDWR)).st_rdev == os.stat('/dev/null').st_rdev]))"
    )
    assert seen == [True, 511, 0, 0o666, 0, True, True, True, True]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "hello\n",
        "lab-node c 195:0\n",
        "lab-node c 195:0 mode=0666 uid=0 gid=0\nmore\n",
        "lab-node c x:0 mode=0 uid=0 gid=0\n",
    ],
)
def test_any_other_file_is_a_regular_file(python: Python, root: Path, content: str) -> None:
    (root / "dev/nvidia0").write_text(content)
    seen = python("import stat\nprint(json.dumps(stat.S_ISREG(os.stat(f'{ROOT}/dev/nvidia0').st_mode)))")
    assert seen is True
    assert _opens(python, "nvidia0") == "ok"


def test_a_marker_outside_dev_stays_a_file(python: Python, root: Path) -> None:
    (root / "etc/nvidia0").write_text((root / "dev/nvidia0").read_text())
    assert python("import stat\nprint(json.dumps(stat.S_ISREG(os.stat(f'{ROOT}/etc/nvidia0').st_mode)))") is True


def test_refusals_come_in_the_kernels_order(python: Python, root: Path) -> None:
    """All four faults at once, then one repaired after the other."""
    node = root / "dev/nvidia-uvm"
    line = node.read_text()
    node.unlink()
    (root / "run/lab-device-rules").write_text("c 195:* rwm\n")
    (root / "run/lab-uid-map").write_text("0 100000 65536\n")
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    assert _opens(python, "nvidia-uvm") == "ENOENT"
    node.write_text(line.replace("0666", "0600"))
    assert _opens(python, "nvidia-uvm") == "EACCES"
    node.write_text(line)
    assert _opens(python, "nvidia-uvm") == "EPERM"
    (root / "run/lab-device-rules").write_text("c 195:* rwm\nc 511:* rwm\n")
    assert _opens(python, "nvidia-uvm") == "ENXIO"
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n511 nvidia-uvm\n")
    assert _opens(python, "nvidia-uvm") == "ok"


@pytest.mark.parametrize(
    ("rules", "answer"),
    [
        (None, "ok"),
        ("", "EPERM"),
        ("a\n", "ok"),
        ("c 195:* rwm\n", "ok"),
        ("c *:* m\n", "EPERM"),
        ("c 195:1 rwm\n", "EPERM"),
        ("c 195:0 r\n", "EPERM"),
        ("c 195:0 rw\n", "ok"),
        ("b 195:* rwm\n", "EPERM"),
        ("c 509:* rwm\n# words\nc 195\n", "EPERM"),
    ],
)
def test_device_rules_are_read_as_the_cgroup_reads_them(
    python: Python, root: Path, rules: str | None, answer: str
) -> None:
    if rules is not None:
        (root / "run/lab-device-rules").write_text(rules)
    assert _opens(python, "nvidia0") == answer


def test_a_block_driver_with_the_same_number_is_no_driver(python: Python, root: Path) -> None:
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n\nBlock devices:\n511 other\n")
    assert _opens(python, "nvidia-uvm") == "ENXIO"


def test_root_of_an_unprivileged_container_has_only_what_mode_bits_give(python: Python, root: Path) -> None:
    (root / "run/lab-uid-map").write_text("0 100000 65536\n")
    line = (root / "dev/nvidia0").read_text()
    (root / "dev/nvidia0").write_text(line.replace("0666", "0660"))
    assert _opens(python, "nvidia0") == "EACCES"
    (root / "dev/nvidia0").write_text(line.replace("0666", "0660").replace("gid=0", "gid=100000"))
    assert _opens(python, "nvidia0") == "ok"
    seen = python("found = os.stat(f'{ROOT}/dev/nvidia0')\nprint(json.dumps([found.st_uid, found.st_gid]))")
    assert seen == [65534, 0]


def test_starting_loads_neither_json_nor_ctypes(python: Python) -> None:
    heavy = '{"json", "ctypes", "re", "lab_driver.nvml", "lab_driver.cuda"}'
    code = f"import sys; print(sorted(set(sys.modules) & {heavy}), 'lab_driver.nodes' in sys.modules)"
    loaded = python(
        "import subprocess\n"
        f"done = subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True)\n"
        "print(json.dumps(done.stdout.strip()))"
    )
    assert loaded == "[] True"
