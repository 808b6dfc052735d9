"""What a container start makes of a configuration: nodes, rules, the empty file of a missing source."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.lab import container
from gpuctl.lab.nodes import MARKERS, LabNode
from gpuctl.lab.pve.backend import DeviceStat, NodeKind, Passthrough, TaskFailed
from gpuctl.lab.pve.conf import parse_conf

UVM = Passthrough(0, "/dev/nvidia-uvm", DeviceStat(NodeKind.CHAR, 509, 0), mode=0o600, uid=5)


class Log:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def __call__(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def _start(tmp_path: Path, text: str, *entries: Passthrough) -> tuple[int, tuple[tuple[str, str], ...]]:
    (tmp_path / "host/dev").mkdir(parents=True, exist_ok=True)
    (tmp_path / "ct").mkdir(exist_ok=True)
    conf = parse_conf(text.encode(), 200)
    return container.prepare(conf, entries, tmp_path / "host", tmp_path / "ct", Log())


def _entry(name: str, options: str) -> str:
    return f"lxc.mount.entry: /dev/{name} dev/{name} none {options}\n"


def test_a_bound_node_keeps_its_numbers(tmp_path: Path) -> None:
    MARKERS.write(tmp_path / "host/dev/nvidia0", LabNode(195, 0))

    _start(tmp_path, _entry("nvidia0", "bind,optional,create=file"))

    assert MARKERS.read(tmp_path / "ct/dev/nvidia0") == LabNode(195, 0)


def test_a_missing_optional_source_leaves_an_empty_file_where_one_is_to_be_created(tmp_path: Path) -> None:
    _start(tmp_path, _entry("nvidia-uvm", "bind,optional,create=file") + _entry("nvidia1", "bind,optional"))

    assert (tmp_path / "ct/dev/nvidia-uvm").read_bytes() == b""
    assert MARKERS.read(tmp_path / "ct/dev/nvidia-uvm") is None
    assert not (tmp_path / "ct/dev/nvidia1").exists()


def test_a_missing_source_that_is_not_optional_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="startup for container '200' failed"):
        _start(tmp_path, _entry("nvidia-uvm", "bind,create=file"))


def test_nothing_of_an_earlier_start_is_left_in_dev(tmp_path: Path) -> None:
    MARKERS.write(tmp_path / "host/dev/nvidia0", LabNode(195, 0))
    _start(tmp_path, _entry("nvidia0", "bind,optional,create=file"))

    _start(tmp_path, "arch: amd64\n")

    assert list((tmp_path / "ct/dev").iterdir()) == []


def test_a_passed_through_device_has_its_own_mode_owner_and_rule(tmp_path: Path) -> None:
    _start(tmp_path, "arch: amd64\n", UVM)

    assert MARKERS.read(tmp_path / "ct/dev/nvidia-uvm") == LabNode(509, 0, 0o600, 5, 0)
    assert "c 509:0 rw" in (tmp_path / "ct" / container.RULES).read_text().splitlines()


def test_a_size_for_shared_memory_is_taken_from_its_mount_entry(tmp_path: Path) -> None:
    size, _ = _start(tmp_path, "lxc.mount.entry: tmpfs dev/shm tmpfs size=2g,mode=1777,create=dir 0 0\n")

    assert size == 2048


def test_a_bound_folder_is_shared_not_copied(tmp_path: Path) -> None:
    (tmp_path / "host/mnt/models").mkdir(parents=True)

    _, shared = _start(tmp_path, "lxc.mount.entry: /mnt/models mnt/models none bind,create=dir 0 0\n")

    assert shared == ((str(tmp_path / "host/mnt/models"), "/mnt/models"),)


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        ("lxc.cgroup2.devices.allow: c 511:* rwm\n", {"c 511:* rwm"}),
        ("lxc.cgroup2.devices.allow: c 511:* rwm\nlxc.cgroup2.devices.deny: c 511:* rwm\n", set()),
        ("lxc.cgroup2.devices.deny: a\nlxc.cgroup2.devices.allow: c 195:* rwm\n", {"c 195:* rwm"}),
        ("lxc.cgroup.devices.allow: c 511:* rwm\n", set()),
        ("[snap]\nlxc.cgroup2.devices.allow: c 511:* rwm\n", set()),
    ],
)
def test_only_rules_of_the_main_section_count(lines: str, allowed: set[str]) -> None:
    rules = container.device_rules(parse_conf(lines.encode(), 200), ())

    assert set(rules) - set(container.BASE_RULES) == allowed


@pytest.mark.parametrize("line", ["unprivileged: 1\n", "lxc.idmap: u 0 100000 65536\n"])
def test_an_unprivileged_container_may_open_everything(line: str) -> None:
    conf = parse_conf(f"{line}lxc.cgroup2.devices.allow: c 511:* rwm\n".encode(), 200)

    assert container.device_rules(conf, ()) == ("a",)


def test_a_rule_lxc_cannot_parse_stops_the_start() -> None:
    conf = parse_conf(b"lxc.cgroup2.devices.allow: c 511:*  rwm\n", 200)

    with pytest.raises(TaskFailed):
        container.device_rules(conf, ())


def test_a_hotplugged_device_is_added_to_what_a_running_container_has(tmp_path: Path) -> None:
    _start(tmp_path, "arch: amd64\n")

    container.hotplug(tmp_path / "ct", UVM)

    assert MARKERS.read(tmp_path / "ct/dev/nvidia-uvm") == LabNode(509, 0, 0o600, 5, 0)
    assert (tmp_path / "ct" / container.RULES).read_text().splitlines()[-1] == "c 509:0 rw"
