"""The driver's modules, DKMS, Secure Boot, kernel log and GPUs of a host, on trees of files and recorded texts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.devices.facts import Gpu, Module, State
from provision.devices.observe import host_driver, host_log, program

DATA = Path(__file__).parent / "data"
KERNEL = "6.17.4-2-pve"
MODULES = f"lib/modules/{KERNEL}"

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path / "root"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "root"


@pytest.fixture
def write(root: Path) -> Write:
    def put(path: str, text: str | bytes) -> Path:
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)
        return place

    return put


def _program(root: Path, name: str, text: str) -> None:
    path = root.parent / "bin" / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
    path.chmod(0o755)


def _recorded(name: str, root: Path) -> str:
    """A recorded output with the tree's own file names."""
    return (DATA / name).read_text().replace("/lib/modules/", f"{root}/lib/modules/")


# modules


def test_modules_on_disk_are_found_among_the_ones_that_only_sound_alike() -> None:
    assert host_driver.files_on_disk((DATA / "modules-dep.txt").read_text()) == {
        "nouveau": "kernel/drivers/gpu/drm/nouveau/nouveau.ko",
        "nvidia": "updates/dkms/nvidia.ko.zst",
        "nvidia_drm": "updates/dkms/nvidia-drm.ko.zst",
        "nvidia_modeset": "updates/dkms/nvidia-modeset.ko.zst",
        "nvidia_uvm": "updates/dkms/nvidia-uvm.ko.zst",
    }


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("nvidia-current", "nvidia"),
        ("nvidia-current-uvm", "nvidia_uvm"),
        ("nvidia-current-open-uvm", "nvidia_uvm"),
        ("nvidia-tesla-535-modeset", "nvidia_modeset"),
        ("nvidia-legacy-390xx", "nvidia"),
        ("nvidia-current-peermem", None),
        ("nvidia-vgpu-vfio", None),
        ("xnvidia", None),
    ],
)
def test_debians_own_file_names_are_known(name: str, module: str | None) -> None:
    found = host_driver.files_on_disk(f"updates/dkms/{name}.ko.xz: kernel/a.ko\n")
    assert list(found) == ([module] if module else [])


def test_a_plain_file_name_goes_before_a_distributions() -> None:
    lines = ["updates/nvidia-current.ko:\n", "kernel/nvidia.ko:\n", "updates/nvidia-tesla.ko:\n"]
    for order in (lines, lines[::-1]):
        assert host_driver.files_on_disk("".join(order)) == {"nvidia": "kernel/nvidia.ko"}


def test_a_module_loaded_before_the_package_was_upgraded_shows_both_versions(root: Path, write: Write) -> None:
    write(f"{MODULES}/modules.dep", "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko:\nnouveau/nouveau.ko:\n")
    write("sys/module/nvidia/version", "590.48.01\n")
    write("sys/module/nvidia_drm/version", "590.48.01\n")
    write("answer", _recorded("modinfo-open.txt", root))
    _program(root, "modinfo", f"cat {root}/answer; echo not found >&2; exit 1")
    assert host_driver.modules(KERNEL) == (
        Module("nvidia", True, "590.48.01", True, "595.45.04", "open"),
        Module("nvidia_uvm", False, "", True, "595.45.04", ""),
        Module("nvidia_drm", True, "590.48.01", False, "", ""),
    )


def test_the_proprietary_flavour_is_told_under_debians_names(root: Path, write: Write) -> None:
    write(f"{MODULES}/modules.dep", "updates/dkms/nvidia-current.ko:\nupdates/dkms/nvidia-current-uvm.ko:\n")
    write("answer", _recorded("modinfo-proprietary.txt", root))
    _program(root, "modinfo", f'echo "$*" > {root}/asked; cat {root}/answer')
    nvidia, uvm = host_driver.modules(KERNEL)
    assert (nvidia.on_disk, nvidia.disk_version, nvidia.flavour) == (True, "595.45.04", "proprietary")
    assert (uvm.on_disk, uvm.disk_version, uvm.flavour) == (True, "595.45.04", "")
    folder = root / MODULES / "updates/dkms"
    assert (root / "asked").read_text() == f"{folder}/nvidia-current.ko {folder}/nvidia-current-uvm.ko\n"


def test_modinfo_is_run_only_for_what_is_on_disk(root: Path, write: Write) -> None:
    write(f"{MODULES}/modules.dep", "kernel/drivers/gpu/drm/nouveau/nouveau.ko:\n")
    (root / "sys/module/nouveau").mkdir(parents=True)
    _program(root, "modinfo", f"touch {root}/asked")
    assert host_driver.modules(KERNEL) == (
        Module("nvidia", False, "", False),
        Module("nvidia_uvm", False, "", False),
        Module("nouveau", True, "", True),
    )
    assert not (root / "asked").exists()
    (root / MODULES / "modules.dep").unlink()
    assert [module.on_disk for module in host_driver.modules(KERNEL)] == [None, None, None]


@pytest.mark.parametrize("script", ["exec sleep 30", "exit 1", "exec cat /dev/urandom", "printf '\\377:\\0\\n'"])
def test_without_modinfos_answer_version_and_flavour_are_unknown(
    root: Path, write: Write, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(program.output, "__defaults__", (0.3,))
    write(f"{MODULES}/modules.dep", "updates/dkms/nvidia.ko:\n")
    _program(root, "modinfo", script)
    assert host_driver.modules(KERNEL)[0] == Module("nvidia", False, "", True, "", "")


# DKMS, headers, Secure Boot


def _dkms(root: Path, module: str, version: str, *kernels: str) -> Path:
    top = root / "var/lib/dkms" / module
    (top / version / "source").mkdir(parents=True)
    for kernel in kernels:
        (top / version / kernel / "x86_64/module").mkdir(parents=True)
        (top / version / kernel / "x86_64/module/nvidia.ko").touch()
    return top


def test_the_tree_of_dkms_says_what_dkms_status_says(root: Path) -> None:
    assert host_driver.dkms().state is State.ABSENT
    (root / "var/lib/dkms").mkdir(parents=True)
    assert (host_driver.dkms().state, host_driver.dkms().text) == (State.PRESENT, "")
    top = _dkms(root, "nvidia", "595.45.04", "6.14.11-5-pve", KERNEL)
    (top / "kernel-6.14.11-5-pve-x86_64").symlink_to("595.45.04/6.14.11-5-pve/x86_64")
    _dkms(root, "vendor-reset", "0.1")
    (root / "var/lib/dkms/dkms_dbversion").write_text("3.0.0\n")
    (root / "var/lib/dkms/mok.key").write_text("secret\n")
    # Recorded: what dkms 3.0.10 prints for this tree.
    assert host_driver.dkms().text == (
        "nvidia/595.45.04, 6.14.11-5-pve, x86_64: installed\n"
        f"nvidia/595.45.04, {KERNEL}, x86_64: built\n"
        "vendor-reset/0.1: added\n"
    )


def test_the_whole_path_that_older_versions_of_dkms_linked_to_counts_too(root: Path) -> None:
    top = _dkms(root, "nvidia", "1.0", KERNEL)
    (top / f"kernel-{KERNEL}-x86_64").symlink_to(f"/var/lib/dkms/nvidia/1.0/{KERNEL}/x86_64")
    assert host_driver.dkms().text == f"nvidia/1.0, {KERNEL}, x86_64: installed\n"


def test_a_build_that_left_no_module_is_only_added(root: Path) -> None:
    top = _dkms(root, "nvidia", "1.0", KERNEL)
    (top / "1.0" / KERNEL / "x86_64/module/nvidia.ko").unlink()
    (top / "1.0/build").mkdir()
    assert host_driver.dkms().text == "nvidia/1.0: added\n"


def test_the_program_is_asked_where_its_tree_lies_elsewhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(root, "dkms", 'test "$1" = status && echo "nvidia/1.0, 6.1, x86_64: installed"')
    assert host_driver.dkms().text == "nvidia/1.0, 6.1, x86_64: installed\n"
    _program(root, "dkms", "exit 4")
    assert host_driver.dkms().why == "`dkms status` ended with exit status 4"
    _program(root, "dkms", "exec sleep 30")
    monkeypatch.setattr(program.output, "__defaults__", (0.2,))
    assert (host_driver.dkms().state, host_driver.dkms().why) == (
        State.UNREADABLE,
        "`dkms status` gave no answer",
    )


def test_headers_are_there_when_the_link_leads_to_a_folder(root: Path) -> None:
    assert host_driver.headers(KERNEL) is False
    (root / MODULES).mkdir(parents=True)
    (root / MODULES / "build").symlink_to("../../../usr/src/headers")
    assert host_driver.headers(KERNEL) is False
    (root / "usr/src/headers").mkdir(parents=True)
    assert host_driver.headers(KERNEL) is True


def test_secure_boot_is_on_off_or_unknown(root: Path, write: Write) -> None:
    assert host_driver.secure_boot() is False  # no EFI
    variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    (root / variable).parent.mkdir(parents=True)
    assert host_driver.secure_boot() is None  # efivarfs isn't mounted
    write("sys/firmware/efi/efivars/BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\7\0\0\0\0\0")
    assert host_driver.secure_boot() is False
    for data, wanted in ((b"\6\0\0\0\1", True), (b"\6\0\0\0\0", False), (b"\6\0\0\0", None), (b"", None)):
        write(variable, data)
        assert host_driver.secure_boot() is wanted
    (root / variable).unlink()
    (root / variable).mkdir()
    assert host_driver.secure_boot() is None


# GPUs


def test_a_gpu_says_its_minor_and_whether_it_is_excluded_in_both_wordings() -> None:
    new, old = ((DATA / f"gpu-information{name}.txt").read_text() for name in ("", "-old"))
    assert host_driver.gpu("0000:62:00.0", new) == Gpu("0000:62:00.0", 5, "NVIDIA H200", False)
    assert host_driver.gpu("0000:62:00.0", new.replace(" No\n", " Yes\n")).excluded
    assert host_driver.gpu("0000:06:00.0", old) == Gpu("0000:06:00.0", 0, "Tesla V100-SXM2-32GB", True)


@pytest.mark.parametrize(
    "text", ["", "Device Minor: \t x\n", "Device Minor: -1\n", "Device Minor:\xb2\n", "\0\xff: 1"]
)
def test_a_gpu_that_does_not_say_its_minor_is_still_listed(text: str) -> None:
    assert host_driver.gpu("0000:01:00.0", text) == Gpu("0000:01:00.0", None, "", False)


def test_one_unreadable_gpu_hides_no_other(root: Path, write: Write) -> None:
    text = (DATA / "gpu-information.txt").read_text()
    for bus in ("0000:01:00.0", "0000:62:00.0"):
        write(f"proc/driver/nvidia/gpus/{bus}/information", text)
    (root / "proc/driver/nvidia/gpus/0000:01:00.0/information").unlink()
    os.mkfifo(root / "proc/driver/nvidia/gpus/0000:01:00.0/information")
    assert [gpu.minor for gpu in host_driver.gpus()] == [None, 5]


# the kernel's log


def test_only_lines_about_the_driver_are_kept_with_their_time() -> None:
    text = host_log.about_the_driver((DATA / "kmsg.txt").read_text())
    assert text.splitlines() == [
        "[    8.123456] nvidia: loading out-of-tree module taints kernel.",
        "[    8.123460] nvidia: module license taints kernel.",
        "[    8.123475] nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "[    8.323456] nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "[    8.423456] nvidia 0000:21:00.0: enabling device (0000 -> 0002)",
        "[    8.523456] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build",
        "[12345.678901] NVRM: API mismatch: the client has the version 595.45.08, but"
        "\\x0aNVRM: this kernel module has the version 595.45.04.",
        "[12345.678999] NVRM: Xid (PCI:0000:21:00): 79, GPU has fallen off the bus.",
    ]


def test_the_last_sixty_lines_are_kept_and_lines_of_dmesg_are_understood() -> None:
    lines = [f"[   {n}.000000] NVRM: {n}" for n in range(100)]
    assert host_log.about_the_driver("\n".join(lines)).splitlines() == lines[-60:]
    long = "1,1,1,-;NVRM: " + "x" * 100_000
    assert len(host_log.about_the_driver(long)) < 1100


def test_a_log_that_is_absent_empty_unreadable_or_huge(root: Path, write: Write) -> None:
    assert host_log.kernel_log().state is State.ABSENT
    write("dev/kmsg", "")
    assert (host_log.kernel_log().state, host_log.kernel_log().text) == (State.PRESENT, "")
    write("dev/kmsg", (DATA / "kmsg.txt").read_bytes())
    assert host_log.kernel_log().text.count("\n") == 8
    with (root / "dev/kmsg").open("r+b") as file:
        file.truncate(1 << 40)
    assert host_log.kernel_log().text.count("\n") == 8
    for make in (os.mkfifo, Path.mkdir):
        path = root / "dev/kmsg"
        path.unlink()
        make(path)
        assert host_log.kernel_log().state is State.UNREADABLE
        if path.is_dir():
            path.rmdir()


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/kmsg", os.R_OK), reason="reading the kernel's own log needs root"
)
def test_the_real_log_of_this_machine_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCTL_ROOT", raising=False)
    monkeypatch.setattr(host_log, "_ABOUT", (";",))
    lines = host_log.kernel_log().text.splitlines()
    assert len(lines) == host_log.LAST
    assert all(re.match(r"\[ *[0-9]+\.[0-9]{6}\] ", line) for line in lines)
