"""The lab's kernel: majors, nodes, boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.lab import kernel as lab_kernel
from gpuctl.lab.kernel import Kernel, rewrite
from gpuctl.lab.nodes import MARKERS, LabNode


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    made = Kernel(tmp_path / "kernel.json", tmp_path / "host", {200: tmp_path / "ct"}, "token")
    (tmp_path / "host/dev").mkdir(parents=True)
    made.boot()
    return made


def _characters(path: Path) -> dict[str, int]:
    lines = path.read_text().partition("Character devices:\n")[2].partition("\n\n")[0].splitlines()
    return {name: int(number) for number, name in (line.split() for line in lines)}


def test_the_module_shows_its_major_to_host_and_container_and_makes_no_node(
    kernel: Kernel, tmp_path: Path
) -> None:
    assert "nvidia-uvm" not in _characters(tmp_path / "host/proc/devices")

    kernel.load_uvm()

    for machine in ("host", "ct"):
        assert _characters(tmp_path / machine / "proc/devices")["nvidia-uvm"] == 511
        assert (tmp_path / machine / "sys/module/nvidia_uvm/version").read_text() == "595.45.04\n"
    assert not (tmp_path / "host/dev/nvidia-uvm").exists()


def test_majors_alternate_and_the_old_number_belongs_to_another_driver(kernel: Kernel, tmp_path: Path) -> None:
    seen = []
    for _ in range(4):
        kernel.load_uvm()
        found = _characters(tmp_path / "host/proc/devices")
        assert len(set(found.values()) & {509, 510, 511}) == 3
        seen.append(found["nvidia-uvm"])
        kernel.boot()

    assert seen == [511, 509, 511, 509]


def test_a_boot_changes_its_id_and_clears_what_only_memory_held(kernel: Kernel, tmp_path: Path) -> None:
    kernel.load_uvm()
    kernel.make_uvm_nodes()
    before = kernel.boot_id

    kernel.boot()

    assert kernel.boot_id != before
    assert (tmp_path / "ct/proc/sys/kernel/random/boot_id").read_text() == f"{kernel.boot_id}\n"
    names = sorted(path.name for path in (tmp_path / "host/dev").iterdir())
    assert names == [*(f"nvidia{index}" for index in range(8)), "nvidiactl"]
    assert kernel.uptime_s() < 5


def test_a_wrong_node_is_replaced_and_a_right_one_is_left(kernel: Kernel, tmp_path: Path) -> None:
    uvm, tools = tmp_path / "host/dev/nvidia-uvm", tmp_path / "host/dev/nvidia-uvm-tools"
    MARKERS.write(uvm, LabNode(509, 0))
    MARKERS.write(tools, LabNode(511, 1))
    inode = tools.stat().st_ino

    kernel.load_uvm()
    assert kernel.make_uvm_nodes() is True

    assert MARKERS.read(uvm) == LabNode(511, 0)
    assert tools.stat().st_ino == inode


def test_no_node_is_made_where_the_driver_was_told_not_to(kernel: Kernel, tmp_path: Path) -> None:
    params = tmp_path / "host/proc/driver/nvidia/params"
    params.parent.mkdir(parents=True)
    params.write_text("ModifyDeviceFiles: 0\n")

    assert kernel.make_uvm_nodes() is False
    assert not (tmp_path / "host/dev/nvidia-uvm").exists()


def test_state_survives_the_daemon(kernel: Kernel, tmp_path: Path) -> None:
    kernel.load_uvm()

    again = Kernel(tmp_path / "kernel.json", tmp_path / "host", {}, "other token")

    assert (again.boot_id, again.boot_count, again.token) == (kernel.boot_id, 1, "token")
    assert "nvidia_uvm" in again.modules()


@pytest.mark.parametrize(
    "content", [b"", b"lab-node c 511:0 mode=0666 uid=0 gid=0", b"lab-node\n", b"\xff\xfe", b"text\n"]
)
def test_any_other_file_is_not_a_node(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    assert MARKERS.read(path) is None


def test_a_file_mounted_elsewhere_is_rewritten_in_place(tmp_path: Path) -> None:
    path = tmp_path / "devices"
    rewrite(path, "a long first content\n")
    inode = path.stat().st_ino

    rewrite(path, "short\n")

    assert path.read_text() == "short\n"
    assert path.stat().st_ino == inode


def test_gpus_have_stable_uuids_that_differ_between_labs() -> None:
    first = [gpu["uuid"] for gpu in lab_kernel.gpus("one")]

    assert first == [gpu["uuid"] for gpu in lab_kernel.gpus("one")]
    assert len(set(first) | {gpu["uuid"] for gpu in lab_kernel.gpus("two")}) == 16
    assert all(gpu["name"].endswith("(lab)") for gpu in lab_kernel.gpus("one"))
