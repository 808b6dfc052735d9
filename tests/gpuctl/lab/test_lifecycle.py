"""`gpuctl lab up|status|reboot|down`: one daemon per folder, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuctl.commands.lab import lab as lab_command
from gpuctl.lab import manage, processes
from gpuctl.lab.state import open_dir
from inventory.errors import Failed, Refused
from inventory.loader import load

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def _run(*words: str) -> Any:
    return CliRunner().invoke(lab_command, [*words], standalone_mode=False)


def test_up_writes_a_valid_inventory_with_the_real_addresses(start_lab: Any) -> None:
    lab = start_lab("one")
    info = manage.running(lab)

    loaded = load((lab.inventory,))

    host = loaded.inventory.hosts["pve"]
    assert loaded.inventory.lab is True
    assert host.api.url == f"https://127.0.0.1:{info.ports['api']}"
    assert host.api.fingerprint == info.fingerprint
    assert host.ssh.port == info.ports["ssh"]
    assert loaded.inventory.containers["ct200"].weights[0].endpoint == f"http://127.0.0.1:{info.ports['hub']}"
    engine = loaded.inventory.containers["ct200"].engine
    assert engine is not None
    assert engine.port == info.ports["engine"]
    assert (lab.password.stat().st_mode & 0o777, (lab.ssh / "client_key").stat().st_mode & 0o777) == (0o600, 0o600)


def test_up_twice_starts_one_daemon(start_lab: Any) -> None:
    lab = start_lab("one")

    again = manage.up(lab)

    assert again.started is False
    assert again.info == manage.running(lab)


def test_two_ups_at_the_same_moment_share_one_daemon(tmp_path: Path) -> None:
    lab = open_dir(tmp_path / "race")
    try:
        with ThreadPoolExecutor(2) as pool:
            both = [job.result(90) for job in [pool.submit(manage.up, lab, _FREE) for _ in range(2)]]
        assert both[0].info.pid == both[1].info.pid
        assert sorted(one.started for one in both) == [False, True]
    finally:
        manage.down(lab)


def test_two_labs_run_side_by_side_and_apart(start_lab: Any, connect: Any) -> None:
    first, second = start_lab("first"), start_lab("second")
    boot_of_second = manage.running(second).boot_id
    kept = connect(second)
    connect(first).ok("pct exec 200 -- touch /dev/shm/of-the-first")

    manage.reboot(first)

    assert not set(manage.running(first).ports.values()) & set(manage.running(second).ports.values())
    assert kept.ok("cat /proc/sys/kernel/random/boot_id").strip() == boot_of_second
    assert kept.ok("pct exec 200 -- ls /dev/shm") == ""


@pytest.mark.parametrize("isolation", ["namespaces", "plain"])
def test_down_leaves_no_process_and_no_shared_memory(start_lab: Any, connect: Any, isolation: str) -> None:
    lab = start_lab("one", isolation)
    info = manage.running(lab)
    client = connect(lab)
    detached = "setsid sleep 300 > /dev/null 2>&1 < /dev/null &"
    client.ok(f"{detached} pct exec 200 -- sh -c '{detached}'")
    mark = f"GPUCTL_LAB={info.token}".encode()
    assert processes.marked(mark)

    assert manage.down(lab) is True

    assert processes.marked(mark) == []
    assert manage.daemon_pid(lab) is None
    assert list(Path("/dev/shm").glob(f"*{info.token[:8]}*")) == []
    assert manage.down(lab) is False


def test_down_cleans_up_after_a_killed_daemon_without_namespaces(start_lab: Any, connect: Any) -> None:
    lab = start_lab("one", "plain")
    info = manage.running(lab)
    connect(lab).ok("pct exec 200 -- sh -c 'setsid sleep 300 > /dev/null 2>&1 < /dev/null &'")
    os.kill(info.pid, 9)
    end = time.monotonic() + 10
    while manage.daemon_pid(lab) is not None and time.monotonic() < end:
        time.sleep(0.02)
    mark = f"GPUCTL_LAB={info.token}".encode()
    assert processes.marked(mark)

    manage.down(lab)

    assert processes.marked(mark) == []
    assert list(Path("/dev/shm").glob(f"*{info.token[:8]}*")) == []


def test_a_start_after_down_is_a_boot_that_keeps_ports_keys_and_files(start_lab: Any, connect: Any) -> None:
    lab = start_lab("one")
    before = manage.running(lab)
    connect(lab).ok("pct exec 200 -- sh -c 'echo kept > /root/kept; echo gone > /dev/shm/gone'")
    manage.down(lab)

    after = manage.up(lab).info

    client = connect(lab)
    assert (after.ports, after.fingerprint) == (before.ports, before.fingerprint)
    assert after.boot_id != before.boot_id
    assert client.ok("pct exec 200 -- sh -c 'cat /root/kept; ls /dev/shm'") == "kept\n"
    assert "nvidia-uvm" not in client.ok("cat /proc/devices")


def test_a_lab_can_change_between_plain_and_namespaces(start_lab: Any, connect: Any) -> None:
    lab = start_lab("one", "plain")
    for isolation in ("namespaces", "plain"):
        manage.down(lab)
        start_lab("one", isolation)
        client = connect(lab)
        assert manage.running(lab).isolation == isolation
        assert client.ok("pct exec 200 -- /opt/engine/bin/python -c 'import xllamacpp; print(1)'") == "1\n"
        assert client.ok("pct exec 200 -- cat /dev/nvidia0") == "lab-node c 195:0 mode=0666 uid=0 gid=0\n"


def test_purge_removes_the_folder_but_only_one_that_is_a_labs(start_lab: Any, tmp_path: Path) -> None:
    lab = start_lab("one")
    foreign = tmp_path / "foreign"
    (foreign / "precious").mkdir(parents=True)

    manage.down(lab, purge=True)

    assert not lab.root.exists()
    with pytest.raises(Refused, match="is not a lab's folder"):
        manage.down(open_dir(foreign), purge=True)
    assert (foreign / "precious").exists()


def test_a_lab_that_cannot_start_says_why(tmp_path: Path) -> None:
    lab = open_dir(tmp_path / "broken")
    (lab.root / "host").mkdir(parents=True)
    (lab.root / "host" / "rootfs").write_text("not a folder")

    with pytest.raises(Failed, match="did not start") as caught:
        manage.up(lab, _FREE)

    assert any("rootfs" in line for line in caught.value.detail)


def test_the_commands_tell_what_runs(start_lab: Any) -> None:
    lab = start_lab("one")
    at = ("--dir", str(lab.root))

    status = json.loads(_run("status", *at, "--json").output)
    up = json.loads(_run("up", *at, "--json").output)
    rebooted = json.loads(_run("reboot", *at, "--json").output)

    assert (status["running"], status["lab"], up["started"]) == (True, True, False)
    assert "token" not in status
    assert rebooted["boot_count"] == status["boot_count"] + 1
    assert str(lab.inventory) in _run("status", *at).output
    assert json.loads(_run("down", *at, "--json").output)["stopped"] is True
    stopped = _run("status", *at, "--json")
    assert (json.loads(stopped.output)["running"], stopped.return_value) == (False, 2)
    assert isinstance(_run("reboot", *at).exception, Refused)


_FREE = {"api": 0, "ssh": 0, "hub": 0, "engine": 0}


def test_labs_that_start_and_reboot_at_the_same_moment_never_take_each_others_ports(tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(4)]

    def all_at_once(*words: str) -> None:
        program = str(Path(sys.executable).parent / "gpuctl")
        running = [
            subprocess.Popen([program, "lab", *words, "--dir", str(f)], stdout=subprocess.DEVNULL) for f in folders
        ]
        assert [process.wait(60) for process in running] == [0] * len(folders)

    try:
        all_at_once("up")
        before = [manage.running(open_dir(folder)).ports for folder in folders]
        assert len({port for ports in before for port in ports.values()}) == 4 * len(folders)
        all_at_once("reboot")
        assert [manage.running(open_dir(folder)).ports for folder in folders] == before
    finally:
        for folder in folders:
            manage.down(open_dir(folder), purge=True)
