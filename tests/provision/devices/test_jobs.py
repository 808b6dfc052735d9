"""The jobs that look, on trees of files and real nodes of this machine."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.machine import ignore
from provision.devices import change_job, ct_job, host_job, look
from provision.devices.facts import CtFacts, HostFacts, NodeKind, State

INFORMATION = """Model: \t\t NVIDIA RTX PRO 6000 Blackwell
IRQ:   \t\t 120
GPU UUID: \t GPU-1
Bus Location: \t 0000:21:00.0
Device Minor: \t {minor}
GPU Excluded:\t {excluded}
"""


def _write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def host_root(conf_root: Path) -> Path:
    _write(
        conf_root,
        {
            "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
            "proc/sys/kernel/osrelease": "6.17.4-2-pve\n",
            "proc/uptime": "300.25 1000.00\n",
            "proc/devices": "Character devices:\n195 nvidia\n511 nvidia-uvm\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  R\n",
            "proc/driver/nvidia/gpus/0000:21:00.0/information": INFORMATION.format(minor=1, excluded="No"),
            "proc/driver/nvidia/gpus/0000:41:00.0/information": INFORMATION.format(minor=0, excluded="Yes"),
            "sys/module/nvidia/version": "595.45.04\n",
            "lib/modules/6.17.4-2-pve/modules.dep": "dkms/nvidia.ko: kernel/x.ko\ndkms/nvidia-uvm.ko.zst:\n",
            "sys/bus/pci/devices/0000:61:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:61:00.0/class": "0x030000\n",
            "sys/bus/pci/devices/0000:62:00.0/vendor": "0x8086\n",
            "dev/nvidia0": "",
            "dev/nvidia-caps/nvidia-cap1": "",
        },
    )
    (conf_root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (conf_root / "sys/bus/pci/devices/0000:61:00.0/driver").symlink_to("../../drivers/vfio-pci")
    return conf_root


def _facts() -> HostFacts:
    return HostFacts.from_json(json.loads(json.dumps(host_job.facts({"vmid": 200}, ignore))))


def test_the_host_is_read_in_one_job(host_root: Path) -> None:
    host = _facts()
    assert host.boot_id == "11111111-2222-3333-4444-555555555555"
    assert (host.kernel, host.uptime_s) == ("6.17.4-2-pve", 300.25)
    assert [(gpu.minor, gpu.excluded) for gpu in host.gpus] == [(1, False), (0, True)]
    assert host.conf.text.startswith("arch: amd64\n")
    assert host.conf_path == "/etc/pve/lxc/200.conf"
    assert host.foreign == (("0000:61:00.0", "vfio-pci"),)


def test_a_module_is_loaded_or_only_on_disk_or_neither(host_root: Path) -> None:
    host = _facts()
    assert [(m.name, m.loaded, m.on_disk) for m in host.modules] == [
        ("nvidia", True, True),
        ("nvidia_uvm", False, True),
    ]
    (host_root / "lib/modules/6.17.4-2-pve/modules.dep").write_text("kernel/nvidia_uvm_like.ko:\n")
    assert [m.on_disk for m in _facts().modules] == [False, False]
    (host_root / "lib/modules/6.17.4-2-pve/modules.dep").unlink()
    assert [m.on_disk for m in _facts().modules] == [None, None]


def test_nodes_absent_and_wrong_ones_are_told_apart(host_root: Path) -> None:
    host = _facts()
    assert host.node("/dev/nvidia0").kind is NodeKind.REGULAR
    assert host.node("/dev/nvidia-uvm").kind is NodeKind.ABSENT
    assert host.node("/dev/nvidia-caps").kind is NodeKind.DIRECTORY
    assert host.node("/dev/nvidia-caps/nvidia-cap1").kind is NodeKind.REGULAR
    assert host.node("/dev/never-looked-at").kind is NodeKind.UNREADABLE


def test_absent_unreadable_and_empty_files_are_three_things(
    host_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host_root / "proc/devices").write_text("")
    assert _facts().proc_devices.state is State.PRESENT
    (host_root / "proc/devices").unlink()
    assert _facts().proc_devices.state is State.ABSENT
    (host_root / "proc/devices").mkdir()
    assert (_facts().proc_devices.state, _facts().proc_devices.why) == (State.UNREADABLE, "EISDIR")


def test_what_the_configuration_names_is_looked_at_too(host_root: Path) -> None:
    path = host_root / "etc/pve/lxc/200.conf"
    path.write_text("dev0: /dev/dri/renderD128\nlxc.mount.entry: /srv/models models none bind\n")
    host = _facts()
    assert host.node("/dev/dri/renderD128").kind is NodeKind.ABSENT
    assert host.node("/srv/models").kind is NodeKind.ABSENT


def test_a_configuration_in_any_encoding_survives_the_wire(host_root: Path) -> None:
    data = b"# Gr\xfc\xdfe \xe2\x82\xac\r\nmemory: 1\n"
    (host_root / "etc/pve/lxc/200.conf").write_bytes(data)
    host = _facts()
    assert host.conf.text.encode("latin-1") == data
    answer = change_job.edit_conf(
        {"vmid": 200, "digest": host.conf_digest, "text": host.conf.text + "cores: 1\n"}, ignore
    )
    assert (host_root / "etc/pve/lxc/200.conf").read_bytes() == data + b"cores: 1\n"
    assert answer["digest"] != host.conf_digest


def test_an_empty_machine_gives_facts_that_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    host = _facts()
    assert (host.conf.state, host.conf_digest, host.gpus) == (State.ABSENT, "", ())
    inside = CtFacts.from_json(ct_job.facts({"nodes": ["nvidia-uvm"]}, ignore))
    assert inside.node("/dev/nvidia-uvm").kind is NodeKind.ABSENT


def _pretend(monkeypatch: pytest.MonkeyPatch, error: int | None) -> list[int]:
    """A character device at /dev/nvidia0 that opens, or not, as told; gives the flags it was opened with."""
    flags: list[int] = []
    real_lstat, real_open = os.lstat, os.open

    def lstat(path: Any, **more: Any) -> Any:
        if str(path).endswith("/dev/nvidia0"):
            return SimpleNamespace(
                st_mode=stat.S_IFCHR | 0o660, st_rdev=os.makedev(195, 0), st_uid=65534, st_gid=44, st_ctime=5.0
            )
        return real_lstat(path, **more)

    def open_(path: Any, given: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("/dev/nvidia0"):
            flags.append(given)
            if error is not None:
                raise OSError(error, os.strerror(error))
            return real_open("/dev/null", given)
        return real_open(path, given, *rest, **more)

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(os, "open", open_)
    return flags


@pytest.mark.parametrize("name", ["EPERM", "EACCES", "ENXIO", "EIO", "ENODEV", ""])
def test_inside_each_node_is_opened_and_its_errno_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    flags = _pretend(monkeypatch, getattr(errno, name) if name else None)
    node = CtFacts.from_json(ct_job.facts({"nodes": ["nvidia0"]}, ignore)).node("/dev/nvidia0")
    assert (node.kind, node.number, node.mode, node.opened) == (NodeKind.CHAR, (195, 0), 0o660, name)
    assert flags == [os.O_RDWR | os.O_CLOEXEC]


def test_a_real_node_of_this_machine_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCTL_ROOT", raising=False)
    node = look.node("/dev/null", try_open=True)
    assert (node.kind, node.number, node.opened) == (NodeKind.CHAR, (1, 3), "")


def test_library_versions_in_the_container_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    names = ("libcuda.so.595.45.04", "libcuda.so.1", "libnvidia-ml.so.595.45.04", "libc.so.6")
    _write(tmp_path, {f"usr/lib/x86_64-linux-gnu/{name}": "" for name in names})
    assert CtFacts.from_json(ct_job.facts({}, ignore)).libraries == (
        "libcuda.so.595.45.04",
        "libnvidia-ml.so.595.45.04",
    )
