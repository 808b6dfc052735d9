"""Judges on plain values: thresholds, bits, and the words for what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from checks import registry
from checks.facts import Expect, Facts, kernel_version, majors, short_bus
from checks.judge import driver, health, machine, memory, nodes
from checks.probes.lines import Ending, Reading, Reads
from checks.report import Finding, Status


def reads(values: dict[Any, Any]) -> Reads:
    """Reads from `{"key" or ("key", gpu): value or Reading}`."""
    pairs = {(key if isinstance(key, tuple) else (key, None)): value for key, value in values.items()}
    return Reads(
        {key: value if isinstance(value, Reading) else Reading(0, value) for key, value in pairs.items()},
        (Ending("done"),),
    )


def nvml(expect: Expect | None = None, **values: Any) -> Facts:
    """One GPU with these NVML readings."""
    return Facts(expect=expect or Expect(), nvml=reads({"count": 1, **{(k, 0): v for k, v in values.items()}}))


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.parametrize(
    ("mask", "status"),
    [
        (0x0, Status.OK),
        (0x1, Status.OK),
        (0x5, Status.OK),
        (0x4, Status.OK),
        (0x100, Status.OK),
        (0x8000, Status.OK),
        (0x20, Status.WARNING),
        (0x84, Status.WARNING),
        (0x8, Status.CRITICAL),
        (0x65, Status.CRITICAL),
    ],
)
def test_clock_reasons_are_judged_bit_by_bit(mask: int, status: Status) -> None:
    assert only(health.throttle(nvml(reasons=mask))).status is status


@pytest.mark.parametrize(
    ("celsius", "status"), [(31, Status.OK), (89, Status.OK), (90, Status.WARNING), (93, Status.CRITICAL)]
)
def test_temperature_is_judged_by_the_cards_own_limits(celsius: int, status: Status) -> None:
    facts = nvml(temperature=celsius, thresholds={"shutdown": 98, "slowdown": 95, "gpu_max": 90})
    assert only(health.temperature(facts)).status is status


def test_temperature_without_limits_is_only_shown() -> None:
    assert only(health.temperature(nvml(temperature=88, thresholds={}))).status is Status.OK


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([0, 0, 0, 0], Status.OK),
        ([3, 2, 0, 0], Status.OK),
        ([0, 1, 1, 0], Status.WARNING),
        ([0, 512, 0, 0], Status.CRITICAL),
        ([0, 1, 1, 1], Status.CRITICAL),
    ],
)
def test_row_remapping(rows: list[int], status: Status) -> None:
    assert only(memory.remap(nvml(remap=rows))).status is status


@pytest.mark.parametrize(
    ("new", "corrected", "old", "status"),
    [(0, 0, 0, "ok"), (1, 0, 1, "critical"), (0, 1001, 0, "warning"), (0, 12, 7, "info")],
)
def test_memory_errors_of_the_past_are_history_and_new_ones_are_critical(
    new: int, corrected: int, old: int, status: str
) -> None:
    counts = {"uncorrected": new, "corrected": corrected, "uncorrected_total": old}
    assert only(memory.ecc(nvml(ecc=counts))).status == status


@pytest.mark.parametrize("rc", [3, 13])
def test_not_supported_is_never_a_failure(rc: int) -> None:
    facts = nvml(ecc=Reading(rc), remap=Reading(rc), power_limit=Reading(rc), temperature=Reading(rc))
    for judge in (memory.ecc, memory.remap, health.power_limit, health.temperature):
        assert only(judge(facts)).status is Status.NOT_APPLICABLE


def test_not_supported_is_unknown_when_the_inventory_expects_a_value() -> None:
    facts = nvml(expect=Expect(power_limit_w=480), power_limit=Reading(3))
    assert only(health.power_limit(facts)).status is Status.UNKNOWN


def test_another_error_is_unknown_and_says_the_librarys_words() -> None:
    finding = only(health.pcie_width(nvml(pcie_width=Reading(999, None, "Unknown Error"))))
    assert finding.status is Status.UNKNOWN
    assert "Unknown Error" in finding.summary


def test_fewer_lanes_are_a_warning() -> None:
    finding = only(health.pcie_width(nvml(pcie_width=8, pcie_width_max=16)))
    assert (finding.status, finding.value, finding.expected) == (Status.WARNING, 8, 16)


@pytest.mark.parametrize(
    ("used", "processes", "busy"),
    [
        (0, [], False),
        (2 * 1024**3, [], True),
        (0, [{"pid": 1, "memory": 0}], True),
        (None, None, None),
        (None, [], False),
    ],
)
def test_busy_is_memory_or_processes_and_unknown_without_both(
    used: int | None, processes: Any, busy: bool | None
) -> None:
    facts = nvml(
        memory=Reading(3) if used is None else {"total": 96, "used": used, "reserved": 1},
        processes=Reading(3) if processes is None else processes,
    )
    assert memory.busy(facts, 0) is busy


def test_small_shared_memory_is_a_warning_with_both_numbers() -> None:
    facts = Facts(devices=reads({"shm": {"total": 64 * 1024**2, "free": 64 * 1024**2}}))
    finding = only(machine.shm(facts))
    assert finding.status is Status.WARNING
    assert "64 MiB free, 1024 MiB" in finding.summary


def test_kills_by_the_memory_limit_are_a_warning() -> None:
    assert only(machine.memory(Facts(devices=reads({"oom_kills": 3})))).status is Status.WARNING


@pytest.mark.parametrize(
    ("visible", "status"),
    [("0", "ok"), ("GPU-1", "ok"), ("", "warning"), ("-1", "warning"), ("0,9", "warning"), ("GPU-x", "warning")],
)
def test_visible_devices_that_hide_gpus_are_a_warning(visible: str, status: str) -> None:
    facts = Facts(
        devices=reads({"variables": {"CUDA_VISIBLE_DEVICES": visible}}),
        nvml=reads({"count": 1, ("uuid", 0): "GPU-1234"}),
    )
    assert only(machine.cuda_variables(facts)).status == status


def node(name: str, **values: Any) -> dict[str, Any]:
    return {"kind": "char", "open": "ok", "major": 195, "minor": 0, **values}


def test_one_symptom_on_many_nodes_is_one_finding() -> None:
    names = [f"nvidia{i}" for i in range(8)]
    facts = Facts(
        devices=reads(
            {"names": names, "proc_devices": "Character devices:\n195 nvidia\n"}
            | {f"node:{name}": node(name, open="EIO") for name in names}
        )
    )
    finding = only(nodes.nodes(facts))
    assert finding.status is Status.CRITICAL
    assert "/dev/nvidia0-7" in finding.summary


def test_one_denied_card_among_others_is_not_blamed_on_the_major() -> None:
    facts = Facts(
        devices=reads(
            {
                "names": ["nvidia0", "nvidia1"],
                "node:nvidia0": node("nvidia0"),
                "node:nvidia1": node("nvidia1", open="EPERM", minor=1),
            }
        )
    )
    assert "excluded on the host" in only(nodes.nodes(facts)).summary


@pytest.mark.parametrize("name", ["nvidia-frontend", "nvidia", "nvidiactl"])
def test_the_majors_name_of_any_driver_age_is_found(name: str) -> None:
    assert majors(f"Character devices:\n  1 mem\n195 {name}\n\nBlock devices:\n195 nvidia-uvm\n")["nvidia"] == 195


def test_block_devices_are_no_character_devices() -> None:
    assert "nvidia-uvm" not in majors("Character devices:\n1 mem\n\nBlock devices:\n511 nvidia-uvm\n")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (x@y)", "595.45.04"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  460.56  Tue Feb 23 23:31:36 UTC 2021\nGCC version: 9.3.0",
            "460.56",
        ),
        ("", ""),
        ("garbage 1.2.3", ""),
    ],
)
def test_kernel_version_is_found_in_the_drivers_text(text: str, version: str) -> None:
    assert kernel_version(text) == version


@pytest.mark.parametrize("text", ["00000000:C1:00.0", "0000:c1:00.0", "c1:00.0", "0:C1:00.0"])
def test_bus_ids_of_every_spelling_are_equal(text: str) -> None:
    assert short_bus(text) == "0000:c1:00.0"


@pytest.mark.parametrize("check", registry.CHECKS, ids=lambda check: check.id)
def test_no_check_calls_missing_data_good(check: registry.Check) -> None:
    findings = check.run(Facts(level="full"))
    assert findings
    assert all(finding.id == check.id for finding in findings)
    assert not any(finding.status in (Status.OK, Status.INFO) for finding in findings)


@pytest.mark.parametrize("check", registry.CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("junk", ["\udcff garbage", -1, 1e308, [], {}, None, [None] * 4])
def test_no_check_raises_on_odd_values(check: registry.Check, junk: Any) -> None:
    keys = (
        "memory",
        "processes",
        "temperature",
        "thresholds",
        "reasons",
        "power",
        "power_limit",
        "ecc",
        "remap",
        "uuid",
    )
    keys += ("name", "bus_id", "recovery", "pcie_width", "persistence", "compute_mode")
    plain = (
        "shm",
        "variables",
        "cards",
        "names",
        "libraries",
        "proc_devices",
        "driver_version",
        "meminfo",
        "uid_map",
    )
    facts = Facts(
        level="full",
        devices=reads(dict.fromkeys(plain, junk)),
        nvml=reads({"init": 0, "count": 1, "driver": junk} | {(key, 0): junk for key in keys}),
        cuda=reads({"init": 0, "count": 1, "version": 13000, ("uuid", 0): junk, ("memory", 0): junk}),
        use=reads({("copy", 0): junk, ("kernel", 0): junk, ("context", 0): junk}),
    )
    findings = check.run(facts)
    assert all(isinstance(finding, Finding) for finding in findings)


@pytest.mark.parametrize(
    ("text", "privileged"),
    [
        ("         0          0 4294967295\n", True),
        ("         0     100000      65536\n", False),
        ("         0       1000          1\n", None),
        ("", None),
    ],
)
def test_the_user_map_tells_privileged_from_unprivileged(text: str, privileged: bool | None) -> None:
    assert Facts(devices=reads({"uid_map": text})).privileged() is privileged


@pytest.mark.parametrize(
    ("init", "library", "files", "status"),
    [
        (0, "595.45.04", [], Status.OK),
        (0, "595.45.04", ["550.1"], Status.OK),
        (0, "580.1", [], Status.CRITICAL),
        (18, "", ["580.1"], Status.CRITICAL),
        (999, "", ["580.1"], Status.CRITICAL),
        (999, "", ["580.1", "595.45.04"], Status.OK),
        (999, "", [], Status.UNKNOWN),
    ],
)
def test_old_library_files_are_blamed_only_while_nvml_does_not_start(
    init: int, library: str, files: list[str], status: Status
) -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.45.04  Tue"
    facts = Facts(
        devices=reads({"driver_version": text, "libraries": {"libcuda.so": files}}),
        nvml=reads({"init": Reading(init)} | ({"driver": library} if library else {})),
    )
    assert only(driver.version(facts)).status is status
