"""What the driver, dkms and the kernel's log say, as recorded."""

# ruff: noqa: E501 - recorded lines stay whole

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.devices.diagnosis import driver
from provision.devices.facts import Content, Module, State

VERSIONS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.06  Thu May 1 20:33:21 UTC 2025\nGCC version:  gcc\n": (
        "570.148.06", "proprietary",
    ),
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (dvs-builder@U22)\n": (
        "595.45.04", "open",
    ),
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  515.57  Release Build Mi 20. Jul 11:53:35\n": ("515.57", "open"),
    "NVRM version: NVIDIA UNIX aarch64 Kernel Module  550.127.05  Tue Oct 8\n": ("550.127.05", "proprietary"),
    "nonsense": ("", ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "told"), VERSIONS.items())
def test_version_and_flavour_of_the_loaded_module(make: Any, text: str, told: tuple[str, str]) -> None:
    host = make.host("", driver=Content(State.PRESENT, text), modules=())
    assert (driver.version(host), driver.flavour(host)) == told


def test_without_the_proc_file_the_modules_own_version_counts(make: Any) -> None:
    host = make.host("", driver=Content(), modules=(Module("nvidia", True, "590.44.01", flavour="open"),))
    assert (driver.version(host), driver.flavour(host)) == ("590.44.01", "open")
    assert driver.version(replace(host, modules=(Module("nvidia", False, "590.44.01"),))) == ""


def test_params_of_the_driver() -> None:
    text = 'ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileMode: 432\nExcludedGpus: "GPU-8e3f"\r\n'
    assert driver.params(text)["ExcludedGpus"] == "GPU-8e3f"
    assert not driver.may_make_nodes(text)
    assert driver.node_mode(text) == 0o660
    assert driver.may_make_nodes("")
    assert driver.node_mode("") is None


def test_dkms_of_both_versions() -> None:
    text = (
        "nvidia/580.95.05, 6.14.11-5-pve, x86_64: installed\n"
        "nvidia-current/550.163.01, 6.17.4-2-pve, x86_64: built (WARNING! Diff between built and installed module!)\n"
        "nvidia, 535.247.01, 6.8.12-8-pve, x86_64: installed\n"
        "nvidia-open/595.45.04: added\nnvidia/470: broken\nError! nvidia\nzfs/2.3.4, 6.17.4-2-pve, x86_64: installed\n"
    )
    told = [(b.module, b.version, b.kernel, b.state) for b in driver.dkms(text)]
    assert told == [
        ("nvidia", "580.95.05", "6.14.11-5-pve", "installed"),
        ("nvidia-current", "550.163.01", "6.17.4-2-pve", "built"),
        ("nvidia", "535.247.01", "6.8.12-8-pve", "installed"),
        ("nvidia-open", "595.45.04", "", "added"),
        ("nvidia", "470", "", "broken"),
    ]


LOGS = {
    # an RTX 5090 with the proprietary module; three ways a log shows the continued lines
    "[ 2.1] NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58)\n[ 2.1] NVRM: installed in this system requires use of"
    " the NVIDIA open kernel modules.\n": ("needs-open", "0000:02:00.0", "2c58"),
    "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58)\n               NVRM: installed in this system requires use of"
    " the NVIDIA open kernel modules.\n": ("needs-open", "0000:02:00.0", "2c58"),
    "Nov 30 22:59:29 pve kernel: NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58)\nNov 30 22:59:29 pve kernel: NVRM:"
    " installed in this system requires use of the NVIDIA open kernel modules.\n": ("needs-open", "0000:02:00.0", "2c58"),
    # NVIDIA/open-gpu-kernel-modules#322
    "[ 1157.046099] NVRM: The NVIDIA GPU 0000:af:00.0 (PCI ID: 10de:1db5)\n               NVRM: installed in this system is"
    " not supported by open\n               NVRM: nvidia.ko because it does not include the required GPU\n": (
        "needs-closed", "0000:af:00.0", "1db5",
    ),
    "NVRM: The NVIDIA GPU 0000:0a:00.0 (PCI ID: 10de:3180)\nNVRM: installed in this system is not supported by the\n"
    "NVRM: NVIDIA 595.45.04 driver release.\n": ("unsupported", "0000:0a:00.0", "3180"),
    # siderolabs/talos#8764
    "kern:     err: [2024-05-20T02:46:53.856596762Z]: NVRM: The NVIDIA GeForce GT 710 GPU installed in this system is \n"
    " NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please\n": ("legacy", "", "470.xx"),
    "[ 5.1] NVRM: The NVIDIA GPU 0000:02:00.0\nNVRM: (PCI ID: 10de:2bb1) installed in this system has\nNVRM: fallen off the"
    " bus and is not responding to commands.\n": ("fallen", "0000:02:00.0", "2bb1"),
    "[ 5.1] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n": ("lost", "0000:01:00.0", ""),
    "[ 5.1] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>\n": ("xid", "0000:01:00", "79"),
    "[ 5.1] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE\n": ("xid", "0000:01:00", "94"),
    # NVIDIA/cuda-samples#104
    "Feb 09 15:47:06 debian kernel: NVRM: GPU 0000:13:00.0: RmInitAdapter failed! (0x26:0x56:1463)\n": (
        "init", "0000:13:00.0", "0x26:0x56:1463",
    ),
    "[ 9.9] NVRM: GPU 0000:02:00.0: open() not permitted for excluded GPU-8e3f\n": ("excluded", "0000:02:00.0", "GPU-8e3f"),
    "[ 9.9] NVRM: API mismatch: the client has the version 570.148.08, but\nNVRM: this kernel module has the version\n": (
        "mismatch", "", "570.148.08",
    ),
    "[ 9.9] NVRM: API mismatch: the client 'python3' (pid 77)\nNVRM: has the version 570.148.08, but this kernel\n": (
        "mismatch", "", "570.148.08",
    ),
    "[ 9.9] NVRM: The NVIDIA probe routine was not called for 2 device(s).\n": ("not-probed", "", "2"),
    "[ 9.9] NVRM: No NVIDIA GPU found.\n": ("no-gpu", "", ""),
    "[ 4.1] nvidia: loading of module with unavailable key is rejected\n": ("rejected", "", "module with unavailable key"),
    "[ 4.1] Loading of unsigned module is rejected\n": ("rejected", "", "unsigned module"),
    "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n": (
        "refused-key", "", "Key was rejected by service",
    ),
    "[ 4.1] Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7\n": (
        "lockdown", "", "unsigned module loading",
    ),
    "[ 4.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel\n": (
        "unverified", "", "signature and/or required key missing",
    ),
    "[ 4.1] nvidia_uvm: disagrees about version of symbol nvUvmInterfaceRegisterGpu\n": (
        "symbols", "", "nvUvmInterfaceRegisterGpu",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "told"), LOGS.items())
def test_a_line_of_the_log(text: str, told: tuple[str, str, str]) -> None:
    assert [
        (t.what, t.address, t.value) for t in driver.log(f"[ 1.0] usb 1-1: new device\n{text}[ 99.9] done\n")
    ] == [told]


def test_a_log_that_repeats_itself_says_each_thing_once_in_its_last_place() -> None:
    text = "NVRM: Xid (PCI:0000:01:00): 79, x\nNVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x1:0x2:3)\n" * 2
    assert [told.what for told in driver.log(text)] == ["xid", "init"]


@given(st.text(max_size=300))
def test_no_text_upsets_a_parser(text: str) -> None:
    assert isinstance(driver.log(text), tuple)
    assert isinstance(driver.dkms(text), tuple)
    assert isinstance(driver.params(text), dict)
    driver.node_mode(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0000:01:00.0", "00000000:01:00.0", True),
        ("0000:01:00", "0000:01:00.0", True),
        ("0000:0A:00.0", "0000:0a:00.0", True),
        ("0000:01:00.0", "0001:01:00.0", False),
        ("", "", False),
        ("odd", "odd", False),
    ],
)
def test_two_spellings_of_one_card(one: str, other: str, same: bool) -> None:
    assert driver.same_gpu(one, other) is same
