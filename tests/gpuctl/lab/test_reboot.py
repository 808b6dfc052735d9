"""What `gpuctl lab reboot` does to a lab, seen from outside and inside."""

from __future__ import annotations

import json
import time
from typing import Any

import paramiko
import pytest

from gpuctl.lab import manage
from gpuctl.lab.state import LabDir

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_the_first_start_is_a_machine_set_up_right(lab: LabDir, client: Any) -> None:
    if manage.running(lab).boot_count != 1:
        pytest.skip("another test rebooted this lab")
    assert client.uvm_major() == "511"
    for inside in (False, True):
        found = client.look("nvidia-uvm", "nvidia-uvm-tools", "nvidia7", inside=inside)
        assert found == ["511:0 0666 opens", "511:1 0666 opens", "195:7 0666 opens"]
    assert client.ok("pct exec 200 -- ls /dev/shm") == ""


def test_a_reboot_drops_connections_and_changes_the_boot(lab: LabDir, connect: Any) -> None:
    before, old = manage.running(lab), connect(lab)
    _, out, _ = old.ssh.exec_command("echo begun; sleep 60", timeout=20)
    assert out.readline() == "begun\n"
    began = time.monotonic()

    after = manage.reboot(lab)

    assert out.channel.recv_exit_status() == -1
    with pytest.raises((paramiko.SSHException, EOFError, OSError)):
        old.run("true")
    assert after.ports == before.ports
    new = connect(lab)
    assert new.ok("cat /proc/sys/kernel/random/boot_id").strip() == after.boot_id != before.boot_id
    assert float(new.ok("cat /proc/uptime").split()[0]) < time.monotonic() - began + 1


def test_after_a_reboot_cuda_cannot_work_in_the_container(lab: LabDir, connect: Any) -> None:
    first = connect(lab)
    first.ok("nvidia-modprobe -u -c 0; touch /dev/shm/weights; pct exec 200 -- touch /dev/shm/weights")
    major = first.uvm_major()

    manage.reboot(lab)

    client = connect(lab)
    assert client.uvm_major() == ""
    assert client.ok("ls /dev/shm; pct exec 200 -- ls /dev/shm") == ""
    nodes = {path.rpartition("/")[2] for path in client.ok("ls -d /dev/nvidia*").split()}
    assert nodes == {f"nvidia{index}" for index in range(8)} | {"nvidiactl"}
    # Started before the module was loaded: the mount entries made empty files.
    assert client.ok("pct exec 200 -- stat -c '%F %s' /dev/nvidia-uvm /dev/nvidia-uvm-tools").splitlines() == [
        "regular empty file 0",
        "regular empty file 0",
    ]
    client.ok("nvidia-modprobe -u -c 0")
    assert major != client.uvm_major()
    assert {major, client.uvm_major()} <= {"511", "509", "203"}
    assert f"{major} nvidia-uvm" not in client.ok("cat /proc/devices")
    assert [line for line in client.ok("cat /proc/devices").splitlines() if line.startswith(major)]


def test_container_is_right_after_module_rules_and_restart(lab: LabDir, connect: Any) -> None:
    manage.reboot(lab)
    client = connect(lab)
    client.ok("nvidia-modprobe -u -c 0")
    major = client.uvm_major()

    client.ok(
        f"sed -i '/allow: c 195/!s/allow: c [0-9]*:/allow: c {major}:/' /etc/pve/lxc/200.conf; pct reboot 200"
    )

    assert client.look("nvidia-uvm", "nvidia-uvm-tools") == [f"{major}:0 0666 opens", f"{major}:1 0666 opens"]


def test_a_made_up_result_of_the_earlier_boot_lies_about(lab: LabDir, connect: Any) -> None:
    before = manage.running(lab).boot_id
    connect(lab).ok("pct exec 200 -- sh -c 'rm -rf /var/lib/gpuctl/results'")

    manage.reboot(lab)

    old = json.loads(connect(lab).ok("pct exec 200 -- cat /var/lib/gpuctl/results/bench_old.json"))
    assert old["lab"] is True
    assert old["boot_id"] == before


def test_real_results_survive_and_nothing_is_planted_beside_them(lab: LabDir, connect: Any) -> None:
    folder = "/var/lib/gpuctl/results"
    connect(lab).ok(
        f"pct exec 200 -- sh -c 'rm -rf {folder}; mkdir -p {folder}/r1; echo 1 > {folder}/r1/result.json'"
    )

    manage.reboot(lab)

    assert connect(lab).ok(f"pct exec 200 -- find {folder} -type f").strip().endswith("/results/r1/result.json")


def test_the_start_of_containers_is_a_task_everyone_can_see(lab: LabDir) -> None:
    import proxmoxer

    info = manage.reboot(lab)
    api = proxmoxer.ProxmoxAPI(
        "127.0.0.1",
        port=info.ports["api"],
        user="root@pam",
        password=lab.password.read_text().strip(),
        verify_ssl=str(lab.cert),
        timeout=20,
    )

    tasks = api.nodes("pve").tasks.get()

    assert [(task["type"], task["user"], task["status"]) for task in tasks] == [("startall", "root@pam", "OK")]


def test_the_host_reboots_when_told_so_from_inside(lab: LabDir, connect: Any) -> None:
    before = manage.running(lab)
    connect(lab).run("reboot")

    end = time.monotonic() + 20
    while manage.running(lab).boot_count == before.boot_count and time.monotonic() < end:
        time.sleep(0.05)

    assert manage.running(lab).boot_count == before.boot_count + 1
    assert connect(lab).ok("pct status 200") == "status: running\n"


def test_a_ticket_outlives_the_reboot_and_its_connection_does_not(lab: LabDir) -> None:
    import requests

    port = manage.running(lab).ports["api"]
    base = f"https://127.0.0.1:{port}/api2/json"
    with requests.Session() as session:
        session.trust_env = False
        session.verify = str(lab.cert)
        form = {"username": "root@pam", "password": lab.password.read_text().strip()}
        ticket = session.post(f"{base}/access/ticket", data=form, timeout=10).json()["data"]["ticket"]
        cookie = {"Cookie": f"PVEAuthCookie={ticket}"}
        before = session.get(f"{base}/nodes/pve/status", headers=cookie, timeout=10).json()["data"]["uptime"]
        time.sleep(1.1)

        manage.reboot(lab)

        # requests reconnects by itself; what it then reads is the uptime of the new boot.
        after = session.get(f"{base}/nodes/pve/status", headers=cookie, timeout=10)
        assert after.status_code == 200
        assert after.json()["data"]["uptime"] <= before + 4


_UNIT = """[Unit]
Before=pve-guests.service
[Service]
Type=oneshot
ExecStart=-/no/such/program
ExecStart=nvidia-modprobe -u -c 0
[Install]
WantedBy=multi-user.target
"""


def test_an_enabled_unit_that_comes_before_the_guests_makes_the_nodes_in_time(lab: LabDir, connect: Any) -> None:
    client, unit = connect(lab), "gpuctl-devices.service"
    client.ok(f"cat > /etc/systemd/system/{unit} && systemctl daemon-reload", _UNIT.encode())
    assert client.run(f"systemctl is-enabled {unit}").out == "disabled\n"
    client.ok(f"systemctl enable {unit}")
    assert client.ok(f"systemctl is-enabled {unit}") == "enabled\n"
    try:
        manage.reboot(lab)
        client = connect(lab)
        assert client.uvm_major()
        assert client.look("nvidia-uvm")[0].startswith(f"{client.uvm_major()}:0 0666 ")
    finally:
        client.ok(f"systemctl disable {unit} && rm /etc/systemd/system/{unit}")

    manage.reboot(lab)

    assert connect(lab).look("nvidia-uvm") == ["file"]
