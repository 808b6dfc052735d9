"""`gpuctl devices` in the lab: what is shown, planned, recorded, taken back; and how few calls that takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labkit import GPUCTL, Lab

from gpuctl import cli

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture
def rebooted(lab: Lab) -> Iterator[Lab]:
    """The lab after a reboot, its configuration as it was put back afterwards."""
    before = lab.conf.read_bytes()
    lab.lab("reboot")
    yield lab
    lab.conf.write_bytes(before)


def _in_process(lab: Lab, *words: str) -> int:
    with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCTL_INVENTORY", str(lab.inventory))
        cli.main(list(words))
    return int(ended.value.code or 0)


def test_a_plan_needs_few_calls_whatever_the_number_of_gpus(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    import paramiko

    from inventory.proxmox_wire import Wire

    asked: list[str] = []
    ran: list[str] = []
    once, execute = Wire._once, paramiko.Channel.exec_command

    def counted(self: Wire, method: str, path: tuple[Any, ...], values: dict[str, Any]) -> Any:
        asked.append(f"{method} {'/'.join(map(str, path))}")
        return once(self, method, path, values)

    def executed(self: paramiko.Channel, command: Any) -> None:
        ran.append(str(command))
        execute(self, command)

    lab.run("devices", "plan", "ct200")  # the zip application is pushed once per version; that is not counted
    monkeypatch.setattr(Wire, "_once", counted)
    monkeypatch.setattr(paramiko.Channel, "exec_command", executed)
    assert _in_process(lab, "devices", "plan", "ct200") == 0
    assert 0 < len(asked) <= 4, asked
    assert 0 < len(ran) <= 4, ran


def test_after_a_reboot_it_shows_the_root_cause_first_with_its_evidence(rebooted: Lab) -> None:
    done = rebooted.run("devices", "show", "ct200")
    assert done.returncode == 2
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("cause: nvidia-uvm is not loaded on the host")
    assert second.startswith("  seen: ")
    answer = rebooted.json("devices", "show", "ct200")
    assert answer["causes"][0]["id"] == "driver-not-loaded"


def test_recorded_facts_are_planned_anywhere_with_the_same_result(rebooted: Lab, tmp_path: Path) -> None:
    conf = rebooted.conf.read_text()
    rebooted.conf.write_text(f"#the password is hunter2\n{conf}".replace("[fresh]", "[fresh]\n#hunter2 again"))
    record = rebooted.run("devices", "facts", "ct200")
    assert record.returncode == 0, record.stderr
    assert "hunter2" not in record.stdout
    file = tmp_path / "facts.json"
    file.write_text(record.stdout)
    planned = rebooted.json("devices", "plan", "ct200")
    away = subprocess.run(
        [GPUCTL, "devices", "plan", "--facts", str(file), "--json"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "GPUCTL_INVENTORY"},
    )  # fmt: skip
    assert away.returncode == 0, away.stderr
    there = json.loads(away.stdout)
    assert there["causes"] == planned["causes"]
    assert [s["plan"] for s in there["stages"]] == [
        s["plan"] for s in planned["stages"] if s["stage"] != "connect"
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no facts file"),
        ("[1]", "a list instead of an object"),
        ("{}", "'wanted' is missing"),
        ('{"wanted": {"gpus": 1, "devices": []}, "inside": null, "host": {}, "vmid": 200}', "is no facts file"),
    ],
)
def test_a_file_that_holds_no_facts_is_refused_in_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    done = subprocess.run(
        [GPUCTL, "devices", "plan", "--facts", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 78
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_an_edit_is_taken_back_and_a_changed_file_is_not(rebooted: Lab) -> None:
    before = rebooted.conf.read_bytes()
    applied = rebooted.run("devices", "apply", "ct200", "--yes")
    assert applied.returncode == 0, applied.stderr
    edited = rebooted.conf.read_bytes()
    assert edited != before
    listed = rebooted.json("devices", "undo", "ct200", "--list")["backups"]
    assert rebooted.run("devices", "undo", "ct200").returncode == 2  # not asked, not agreed
    assert rebooted.run("devices", "undo", "ct200", "--dry-run").returncode == 0
    assert rebooted.conf.read_bytes() == edited
    done = rebooted.run("devices", "undo", "ct200", "--yes")
    assert done.returncode == 0, done.stderr
    assert rebooted.conf.read_bytes() == before
    again = rebooted.run("devices", "undo", "ct200", "--yes")  # an undo can be undone
    assert again.returncode == 0, again.stderr
    assert rebooted.conf.read_bytes() == edited
    rebooted.conf.write_bytes(edited.replace(b"cores: 16", b"cores: 8", 1))
    refused = rebooted.run("devices", "undo", "ct200", "--backup", listed[0]["path"], "--yes")
    assert refused.returncode == 2
    assert "changed" in refused.stderr
    assert b"cores: 8" in rebooted.conf.read_bytes()


def test_the_boot_unit_is_shown_installed_and_removed(lab: Lab) -> None:
    unit = lab.folder / "host/rootfs/etc/systemd/system/gpuctl-devices.service"
    shown = lab.run("devices", "boot-unit", "pve")
    assert shown.returncode == 0, shown.stderr
    assert "Before=pve-guests.service" in shown.stdout
    assert "is not installed" in shown.stderr
    assert lab.run("devices", "boot-unit", "ct200", "--install", "--dry-run").returncode == 0
    assert not unit.exists()
    installed = lab.run("devices", "boot-unit", "ct200", "--install", "--yes")
    assert installed.returncode == 0, installed.stderr
    assert "nvidia-modprobe -u" in unit.read_text()
    twice = lab.run("devices", "boot-unit", "ct200", "--install", "--yes")
    assert "already" in twice.stdout
    assert lab.json("devices", "boot-unit", "ct200", "--remove", "--yes")["changed"] is True
    assert not unit.exists()


def test_with_the_boot_unit_the_next_reboot_leaves_only_the_moved_number(lab: Lab) -> None:
    before = lab.conf.read_bytes()
    lab.conf.write_text(re.sub(r"c (509|511):", "c 500:", lab.conf.read_text()))
    assert lab.run("devices", "boot-unit", "pve", "--install", "--yes").returncode == 0
    try:
        lab.lab("reboot")
        answer = lab.json("devices", "show", "ct200")
        assert next(cause["id"] for cause in answer["causes"]) == "stale-rule"
        assert not [s for s in answer["stages"] if s["stage"] == "host" and s["plan"]]
    finally:
        lab.run("devices", "boot-unit", "pve", "--remove", "--yes")
        lab.conf.write_bytes(before)


def test_raw_lines_become_dev_entries_when_asked_and_follow_the_number_from_then_on(lab: Lab) -> None:
    before = lab.conf.read_bytes()
    try:
        planned = lab.run("devices", "plan", "ct200", "--prefer", "dev")
        assert re.search(r"plan +in /etc/pve/lxc/200.conf: \d+ changes\n", planned.stderr)
        assert planned.stderr.count("turn the mount of /dev/nvidia") == 11
        applied = lab.run("devices", "apply", "ct200", "--prefer", "dev", "--yes")
        assert applied.returncode == 0, applied.stderr
        main, snapshot = lab.conf.read_text().split("[fresh]")
        assert "lxc." not in main
        assert "lxc.cgroup2.devices.allow" in snapshot
        lab.lab("reboot")
        assert lab.run("devices", "apply", "ct200", "--yes").returncode == 0
        assert lab.conf.read_text().split("[fresh]")[0] == main  # the number moved, the file did not change
        assert lab.json("devices", "show", "ct200")["causes"] == []
    finally:
        lab.conf.write_bytes(before)
        lab.run("devices", "apply", "ct200", "--yes")
