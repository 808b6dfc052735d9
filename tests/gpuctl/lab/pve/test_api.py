"""What the recordings do not show: quorum, running states, VMs, tasks in progress, connections, limits."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuctl.lab.pve.auth import ROLES, Authority, Grant, Token, User, Users
from gpuctl.lab.pve.backend import DeviceStat, NodeKind
from gpuctl.lab.pve.memory import MemoryBackend
from gpuctl.lab.pve.schema import endpoints
from gpuctl.lab.pve.server import fingerprint, serve

CONF = b"""arch: amd64
cores: 4
hostname: ct200
memory: 4096
ostype: debian
rootfs: local-zfs:subvol-200-disk-0,size=16G
swap: 512
lxc.cgroup2.devices.allow: c 195:* rwm
"""
UVM = {"/dev/nvidia-uvm": ["c", 511, 0]}
GUEST = "/nodes/pve/lxc/200"


def _end(lab, upid: str) -> str:
    task = lab.server.site.tasks.get(upid)
    assert task.done.wait(5)
    return task.exit_status


def test_without_quorum_a_change_fails_at_the_file_and_a_start_at_once(lab, call):
    lab.reset(CONF)
    lab.backend.cluster, lab.backend.read_only = False, True
    change = call("PUT", f"{GUEST}/config", {"cores": "8"})
    assert change.status == 500
    shown = f"/etc/pve/nodes/pve/lxc/200.conf.tmp.{os.getpid()}"
    assert change.reason == f"unable to open file '{shown}' - Permission denied"
    assert lab.conf.read_bytes() == CONF
    begin = call("POST", f"{GUEST}/status/start", {})
    assert (begin.status, begin.reason) == (500, "cluster not ready - no quorum?")
    rows = {row["type"]: row for row in call("GET", "/cluster/status").json()["data"]}
    assert rows["cluster"]["quorate"] == 0


def test_a_node_without_a_cluster_says_nothing_about_quorum(lab, call):
    rows = call("GET", "/cluster/status").json()["data"]
    assert [row["type"] for row in rows] == ["node"]


@pytest.mark.parametrize(
    ("running", "action", "reason"),
    [
        (True, "start", "CT 200 already running"),
        (False, "stop", "CT 200 not running"),
        (False, "shutdown", "CT 200 not running"),
        (False, "reboot", "VM 200 not running"),
    ],
)
def test_an_action_that_makes_no_sense_is_refused_at_once(lab, call, running, action, reason):
    lab.reset(CONF, running=running)
    answer = call("POST", f"{GUEST}/status/{action}", {})
    assert (answer.status, answer.reason) == (500, reason)


def test_a_container_that_does_not_stop_shows_only_in_the_exit_status(lab, call):
    lab.reset(CONF, running=True)
    lab.backend.stubborn = True
    answer = call("POST", f"{GUEST}/status/shutdown", {"timeout": "1"})
    assert answer.status == 200
    assert _end(lab, answer.json()["data"]) == "container did not stop"
    assert lab.backend.running(200)
    forced = call("POST", f"{GUEST}/status/shutdown", {"timeout": "1", "forceStop": "1"})
    assert _end(lab, forced.json()["data"]) == "OK"
    assert not lab.backend.running(200)


def test_a_reboot_whose_start_fails_leaves_the_container_stopped(lab, call):
    lab.reset(CONF + b"dev0: /dev/nvidia-uvm\n", running=True)
    upid = call("POST", f"{GUEST}/status/reboot", {}).json()["data"]
    assert _end(lab, upid) == "Device /dev/nvidia-uvm does not exist"
    assert not lab.backend.running(200)


def test_a_new_device_is_plugged_into_a_running_container_with_what_the_host_has_now(lab, call):
    lab.reset(CONF, running=True, devices=UVM)
    assert call("PUT", f"{GUEST}/config", {"dev0": "/dev/nvidia-uvm,mode=0666,gid=44"}).status == 200
    (entry,) = lab.backend.plugged
    assert (entry.path, entry.device.major, entry.mode, entry.gid, entry.uid) == (
        "/dev/nvidia-uvm",
        511,
        0o666,
        44,
        0,
    )
    assert b"dev0: /dev/nvidia-uvm,mode=0666,gid=44\n" in lab.conf.read_bytes()


def test_a_device_that_cannot_be_plugged_leaves_the_file_alone(lab, call):
    lab.reset(CONF, running=True)
    lab.backend.devices = {"/dev/loop0": DeviceStat(NodeKind.BLOCK, 7, 0)}
    answer = call("PUT", f"{GUEST}/config", {"dev0": "/dev/loop0"})
    assert answer.status == 400
    assert answer.json()["errors"]["dev0"].startswith("unable to hotplug dev0: ")
    assert lab.conf.read_bytes() == CONF


def test_the_device_check_uses_the_host_of_this_moment(lab):
    lab.reset(
        CONF + b"dev0: /dev/nvidia-uvm\ndev10: /dev/nvidia-uvm\n", devices={"/dev/nvidia-uvm": ["c", 509, 0]}
    )
    found = lab.server.site.guests.devices(lab.server.site.store.load(200))
    assert [(entry.index, entry.device.major, entry.mode) for entry in found] == [
        (0, 509, 0o660),
        (10, 509, 0o660),
    ]


def test_a_pending_change_waits_while_the_container_runs_and_can_be_reverted(lab, call):
    lab.reset(CONF + b"dev0: /dev/nvidia-uvm\n", running=True, devices=UVM)
    call("PUT", f"{GUEST}/config", {"dev0": "/dev/nvidia-uvm,mode=0666"})
    rows = {row["key"]: row for row in call("GET", f"{GUEST}/pending").json()["data"]}
    assert rows["dev0"] == {"key": "dev0", "value": "/dev/nvidia-uvm", "pending": "/dev/nvidia-uvm,mode=0666"}
    assert call("GET", f"{GUEST}/config?current=1").json()["data"]["dev0"] == "/dev/nvidia-uvm"
    call("PUT", f"{GUEST}/config", {"revert": "dev0"})
    assert b"pve:pending" not in lab.conf.read_bytes()


def test_a_token_may_not_revert_a_device(lab, call):
    lab.reset(CONF + b"\n[pve:pending]\ndev0: /dev/nvidia-uvm\n")
    answer = call("PUT", f"{GUEST}/config", {"revert": "dev0"}, token="root@pam!full")
    assert answer.reason.startswith("Permission check failed (configuring device passthrough")


def test_vms_are_listed_but_are_no_containers(lab, call):
    lab.reset(CONF)
    lab.backend.machines = {101: "router"}
    rows = {row["vmid"]: row for row in call("GET", "/cluster/resources?type=vm").json()["data"]}
    assert (rows[101]["type"], rows[101]["name"], rows[200]["type"]) == ("qemu", "router", "lxc")
    assert call("GET", "/nodes/pve/lxc/101/config").status == 500
    assert call("GET", "/nodes/pve/qemu/101/config").status == 200
    assert call("GET", "/cluster/nextid").json()["data"] == "100"


def test_a_task_is_running_until_its_work_ends(lab, call):
    lab.reset(CONF)
    gate = threading.Event()
    tasks = lab.server.site.tasks
    upid = tasks.start("vzstart", "200", "root@pam", lambda log: gate.wait(5) and None).upid
    path = f"/nodes/pve/tasks/{upid}"
    status = call("GET", f"{path}/status").json()["data"]
    assert status["status"] == "running"
    assert "exitstatus" not in status
    assert [row["upid"] for row in call("GET", "/nodes/pve/tasks?source=active").json()["data"]] == [upid]
    gate.set()
    assert _end(lab, upid) == "OK"
    assert call("GET", f"{path}/status").json()["data"]["exitstatus"] == "OK"


def test_an_unknown_task_has_a_log_of_one_line_but_no_status(lab, call):
    upid = "UPID:pve:0000FFFF:00001234:6B0D7152:vzstart:200:root@pam:"
    status = call("GET", f"/nodes/pve/tasks/{upid}/status")
    assert (status.status, status.json()["errors"]) == (400, {"upid": "no such task"})
    assert len(call("GET", f"/nodes/pve/tasks/{upid}/log").json()["data"]) == 1
    assert call("GET", "/nodes/pve/tasks/nonsense/status").json()["errors"] == {
        "upid": "unable to parse worker upid"
    }


def test_a_failing_worker_gives_its_first_line_as_exit_status(lab):
    def work(log):
        log("one\ntwo")
        raise RuntimeError("broken\nbadly")

    task = lab.server.site.tasks.start("vzstart", "200", "root@pam", work)
    assert _end(lab, task.upid) == "RuntimeError: broken"
    assert task.lines[:2] == ["one", "two"]


def test_a_user_sees_the_tasks_of_his_tokens_and_no_others(lab, call):
    lab.reset(CONF, running=True)
    own = call("POST", f"{GUEST}/status/stop", {}, token="ops@pve!tok").json()["data"]
    assert ":ops@pve!tok:" in own
    _end(lab, own)
    assert call("GET", f"/nodes/pve/tasks/{own}/status", token="ops@pve!tok").status == 200
    stranger = call("GET", f"/nodes/pve/tasks/{own}/status", token="low@pve!tok")
    assert stranger.reason == "Permission check failed (/nodes/pve, Sys.Audit)"


def test_a_least_privilege_role_can_watch_and_switch_but_not_change(certificate, tmp_path):
    users = Users(
        users={"gpuctl@pve": User(tokens={"t1": Token("s")})},
        grants=tuple(
            Grant("/", who, frozenset({"VM.Audit", "VM.PowerMgmt", "Sys.Audit"}))
            for who in ("gpuctl@pve", "gpuctl@pve!t1")
        ),
    )
    assert users.privileges("gpuctl@pve!t1", "/vms/200") == {"VM.Audit", "VM.PowerMgmt", "Sys.Audit"}
    narrowed = Users(users.users, (*users.grants, Grant("/vms/200", "gpuctl@pve!t1", ROLES["NoAccess"])))
    assert narrowed.privileges("gpuctl@pve!t1", "/vms/200") == frozenset()
    assert narrowed.privileges("gpuctl@pve!t1", "/vms/201") == {"VM.Audit", "VM.PowerMgmt", "Sys.Audit"}


def test_a_snapshot_shows_its_options_but_not_its_raw_lines(lab, call):
    lab.reset(CONF + b"parent: before\n\n[before]\nmemory: 2048\nsnaptime: 1700000000\nlxc.autodev: 1\n")
    rows = call("GET", f"{GUEST}/snapshot").json()["data"]
    assert [row["name"] for row in rows] == ["before", "current"]
    assert call("GET", f"{GUEST}/snapshot/before/config").json()["data"] == {
        "memory": 2048,
        "snaptime": 1700000000,
    }
    assert call("GET", f"{GUEST}/snapshot/nosuch/config").reason == "snapshot 'nosuch' does not exist"


def test_every_answer_says_that_it_comes_from_the_lab(lab, call):
    for path in ("/version", "/nosuch", f"{GUEST}/config"):
        assert call("GET", path).headers["X-Gpuctl-Lab"] == "1"


def test_an_unknown_path_is_501_and_never_404(lab, call):
    answer = call("GET", "/nodes/pve/nosuch")
    assert (answer.status, answer.reason) == (501, "Method 'GET /nodes/pve/nosuch' not implemented")


def test_a_client_that_says_nothing_does_not_keep_others_waiting(lab, call):
    silent = [socket.create_connection(("127.0.0.1", lab.server.port), timeout=5) for _ in range(3)]
    began = time.monotonic()
    assert call("GET", "/version").status == 200
    assert time.monotonic() - began < 2
    for connection in silent:
        connection.close()


def test_changes_from_many_clients_are_all_kept(lab, certificate):
    lab.reset(CONF)
    guests = lab.server.site.guests
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(guests.update, 200, {f"mp{n}": f"/srv/{n},mp=/mnt/{n}"}) for n in range(8)]
    assert [future.exception(5) for future in done] == [None] * 8
    assert lab.conf.read_bytes().count(b"mp=/mnt/") == 8
    assert sorted(path.name for path in lab.backend.conf_dir.iterdir()) == ["200.conf"]


def test_a_refused_login_is_delayed_when_told_to(certificate, tmp_path):
    cert, key = certificate
    users = Users({"root@pam": User("right")})
    server = serve(MemoryBackend(tmp_path), cert=cert, key=key, users=users, auth_delay_s=0.4)
    try:
        context = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=5, context=context)
        began = time.monotonic()
        connection.request("GET", "/api2/json/version")
        response = connection.getresponse()
        assert (response.status, response.reason, response.read()) == (401, "No ticket", b"")
        assert time.monotonic() - began >= 0.4
    finally:
        server.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=2)


def test_a_ticket_of_another_server_is_worth_nothing():
    users = Users({"root@pam": User("x")})
    assert Authority(users).owner(Authority(users).ticket("root@pam")) is None


def test_the_fingerprint_is_that_of_the_certificate(certificate):
    shown = fingerprint(certificate[0])
    assert len(shown.split(":")) == 32
    assert shown == shown.upper()


def test_the_schema_knows_every_call_the_lab_answers():
    assert "PUT /nodes/{node}/lxc/{vmid}/config" in endpoints()
    assert "dev255" in endpoints()["PUT /nodes/{node}/lxc/{vmid}/config"].properties
    assert "dev256" not in endpoints()["PUT /nodes/{node}/lxc/{vmid}/config"].properties
