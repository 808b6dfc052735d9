"""Jobs that change a host: only what gpuctl does can be asked for, and every program has its limit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuctl import agent
from inventory.errors import ConfigError, Failed
from inventory.machine import ignore
from provision.devices.change import change_job, tool
from provision.devices.planning import modprobe

Make = Callable[..., Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Puts a shell script on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return make


def _prepare(*steps: list[str]) -> Any:
    return change_job.prepare({"steps": list(steps)}, ignore)


class TestPrepare:
    @pytest.mark.parametrize(
        "argv",
        [
            ["nvidia-modprobe", "-u", "-c", "0"],
            ["nvidia-modprobe", "-c", "0", "-c", "7", "-c", "255"],
            ["nvidia-modprobe", "-m"],
            ["nvidia-modprobe"],
            ["nvidia-modprobe", "-s", "-c", "255"],
            ["nvidia-modprobe", "-l"],
            ["nvidia-modprobe", "-f", "/proc/driver/nvidia/capabilities/mig/config"],
            ["nvidia-modprobe", "-f", "/proc/driver/nvidia/capabilities/gpu0/mig/gi3/ci0/access"],
            ["nvidia-modprobe", "-f", "/proc/driver/nvidia/capabilities/fabric-imex-mgmt"],
            ["modprobe", "nvidia"],
            ["modprobe", "nvidia_uvm"],
        ],
    )
    def test_the_calls_that_make_nodes_are_allowed(self, argv: list[str]) -> None:
        modprobe.check_step(argv)

    @pytest.mark.parametrize(
        "argv",
        [
            [],
            ["rm", "-rf", "/"],
            ["/tmp/nvidia-modprobe"],
            ["nvidia-modprobe", "-c", "0; reboot"],
            ["nvidia-modprobe", "-c", "256"],
            ["nvidia-modprobe", "-c"],
            ["nvidia-modprobe", "-c", "٣"],
            ["nvidia-modprobe", "-i", "1"],
            ["nvidia-modprobe", "-a"],
            ["nvidia-modprobe", "-u", "-c", "1"],
            ["nvidia-modprobe", "-u", "-s"],
            ["nvidia-modprobe", "-f", "/proc/driver/nvidia/capabilities/../../../etc/shadow"],
            ["nvidia-modprobe", "-f", "/etc/shadow"],
            ["modprobe"],
            ["modprobe", "nouveau"],
            ["modprobe", "-r", "nvidia"],
            ["modprobe", "nvidia", "NVreg_ModifyDeviceFiles=0"],
            ["modprobe", "nvidia-uvm"],
        ],
    )
    def test_every_other_call_is_refused_before_the_first_step_runs(
        self, argv: list[str], program: Make, tmp_path: Path
    ) -> None:
        program("nvidia-modprobe", f"touch {tmp_path}/ran")
        with pytest.raises(ConfigError):
            _prepare(["nvidia-modprobe", "-m"], argv)
        assert not (tmp_path / "ran").exists()

    def test_exit_status_and_words_are_told(self, program: Make) -> None:
        program("nvidia-modprobe", 'echo "told: $*" >&2; exit 3')
        program("modprobe", 'echo "out: $*"')
        assert _prepare(["nvidia-modprobe", "-u", "-c", "0"], ["modprobe", "nvidia_uvm"]) == {
            "ran": [
                {"argv": ["nvidia-modprobe", "-u", "-c", "0"], "rc": 3, "stderr": "told: -u -c 0"},
                {"argv": ["modprobe", "nvidia_uvm"], "rc": 0, "stderr": "out: nvidia_uvm"},
            ]
        }

    def test_a_missing_program_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(Failed, match="nvidia-modprobe is not installed") as caught:
            _prepare(["nvidia-modprobe", "-u"])
        assert "install the package" in caught.value.hint

    def test_a_call_that_hangs_is_ended_with_its_children(
        self, program: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program("nvidia-modprobe", f"echo loading >&2; sleep 30 & echo $! > {tmp_path}/pid; trap '' TERM; wait")
        monkeypatch.setattr(change_job, "STEP_LIMIT_S", 0.5)
        monkeypatch.setattr(tool, "_END_S", 0.5)
        began = time.monotonic()
        with pytest.raises(Failed, match=r"did not end within 0\.5 s") as caught:
            _prepare(["nvidia-modprobe", "-u"])
        assert time.monotonic() - began < 10
        assert caught.value.detail == ("loading",)
        pid = int((tmp_path / "pid").read_text())
        end = time.monotonic() + 5
        while _runs(pid):
            assert time.monotonic() < end, "its child outlived it"
            time.sleep(0.02)

    def test_a_child_that_keeps_the_output_open_does_not_hold_us_up(self, program: Make, tmp_path: Path) -> None:
        program("nvidia-modprobe", f"sleep 20 & echo $! > {tmp_path}/pid")
        began = time.monotonic()
        try:
            assert _prepare(["nvidia-modprobe", "-u"])["ran"][0]["rc"] == 0
            assert time.monotonic() - began < 10
        finally:
            os.kill(int((tmp_path / "pid").read_text()), 9)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class TestLiveRules:
    def test_each_rule_is_given_to_lxc(self, program: Make) -> None:
        program("lxc-cgroup", "exit 0")
        rules = {"rules": ["c 509:* rwm", "c 195:0 rw"], "deny": ["c 246:* rwm"]}
        ran = change_job.live_rules({"vmid": 200, **rules}, ignore)["ran"]
        assert [one["argv"] for one in ran] == [
            ["lxc-cgroup", "-n", "200", "devices.allow", "c 509:* rwm"],
            ["lxc-cgroup", "-n", "200", "devices.allow", "c 195:0 rw"],
            ["lxc-cgroup", "-n", "200", "devices.deny", "c 246:* rwm"],
        ]

    def test_the_first_that_fails_is_the_last(self, program: Make) -> None:
        program("lxc-cgroup", 'echo "container 200 is not running" >&2; exit 1')
        ran = change_job.live_rules({"vmid": 200, "rules": ["c 509:* rwm", "c 195:0 rw"]}, ignore)["ran"]
        assert [(one["rc"], one["stderr"]) for one in ran] == [(1, "container 200 is not running")]

    @pytest.mark.parametrize(
        "rule", ["a", "c *:* rwm", "a *:* rwm", "c 509:* rwm\n", "c 509:*  rwm", "509", "", "c 509:* rwx", "-n 1"]
    )
    def test_what_is_no_rule_for_one_major_is_refused(self, program: Make, tmp_path: Path, rule: str) -> None:
        program("lxc-cgroup", f"touch {tmp_path}/ran")
        with pytest.raises(ConfigError):
            change_job.live_rules({"vmid": 200, "rules": ["c 195:* rwm", rule]}, ignore)
        assert not (tmp_path / "ran").exists()

    def test_more_rules_than_anyone_needs_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="65 rules"):
            change_job.live_rules({"vmid": 200, "rules": ["c 195:* rwm"] * 65}, ignore)


def test_every_job_of_a_host_is_known_to_the_agent() -> None:
    names = ("prepare", "edit_conf", "undo_conf", "pct_set", "live_rules", "boot_unit")
    assert [agent.find(f"host.{name}") for name in names] == [getattr(change_job, name) for name in names]


def test_case_30_words_on_stderr_are_no_failure_and_silence_is_no_success(program: Make) -> None:
    program("nvidia-modprobe", 'echo "Plugin X is implementing an older storage API" >&2')
    assert _prepare(["nvidia-modprobe", "-u"])["ran"][0]["rc"] == 0
    program("nvidia-modprobe", "exit 255")
    assert _prepare(["nvidia-modprobe", "-u"])["ran"][0] == {
        "argv": ["nvidia-modprobe", "-u"], "rc": 255, "stderr": "",
    }  # fmt: skip


def test_answers_travel_as_json(program: Make) -> None:
    program("lxc-cgroup", "printf '\\377' >&2")
    answer = change_job.live_rules({"vmid": 200, "rules": ["c 509:* rwm"]}, ignore)
    assert json.loads(json.dumps(answer)) == answer
